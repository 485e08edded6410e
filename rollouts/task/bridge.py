"""The task's client of the bridge to its worker."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Self

import httpx

from protocol.http.client import ServiceClient
from protocol.runtime.clock import Clock
from protocol.runtime.retry import Backoff
from protocol.wire.bridge import HandedOver, HandOver, Metrics, SessionWish, TaskIdentity
from protocol.wire.runs import StepAnswer
from protocol.wire.serving import ServingSession
from protocol.wire.slots import ReleasedSlots, SlotGrant, SlotName, SlotWish

_HAND_OVER_TIMEOUT = timedelta(minutes=10)
"""Time-out for handing a file over, much longer than a restart of the worker. The file stays on the task's volume until
the worker has its own copy.
"""
_COPY_TIMEOUT = timedelta(minutes=2)
_SHORT_TIMEOUT = timedelta(seconds=2)
_SESSION_TIMEOUT = timedelta(seconds=20)
"""Longer than the worker's attempts to reach the gateway."""


class Bridge:
    """Requests steps and slots from the worker, and submits files and metrics to it.

    Args:
        socket: The bridge's unix socket.
        token: This task's token.
        clock: Clock for waiting.
        backoff: Retry policy.
    """

    def __init__(self, socket: str, *, token: str, clock: Clock, backoff: Backoff | None = None) -> None:
        self._client = ServiceClient(
            "http://localhost",
            token=token,
            clock=clock,
            transport=httpx.AsyncHTTPTransport(uds=socket),
            backoff=backoff or Backoff(attempts=1000, most=timedelta(seconds=5)),
        )

    async def identity(self) -> TaskIdentity:
        """Returns the identity of the node that this task runs for."""
        return (await self._client.get("/v1/identity")).read(TaskIdentity)

    async def step(self) -> StepAnswer:
        """Returns the current step and version."""
        return (await self._client.get("/v1/step")).read(StepAnswer)

    async def slot(self, wish: SlotWish) -> SlotGrant:
        """Leases a slot. A request without a response is not repeated, so at worst a lease expires unused.

        Raises:
            MusterError: The orchestrator gives no lease now; the message has the reason.
        """
        return (await self._client.post("/v1/slots", wish)).read(SlotGrant)

    async def open_session(self, slot: SlotName, *, arithmetic: str) -> ServingSession:
        """Opens a session with the run's gateway for a slot; a session that is opened again gets a new token.

        Args:
            slot: A slot that this task holds.
            arithmetic: Engine and data type, or numerics class, with which the task answers.

        Raises:
            MusterError: The gateway takes no session for this slot, or does not answer.
        """
        wish = SessionWish(step=slot.step, index=slot.index, arithmetic=arithmetic)
        answer = await self._client.post(
            "/v1/sessions", wish, repeatable=True, call_timeout=_SESSION_TIMEOUT, attempt_timeout=_SESSION_TIMEOUT
        )
        return answer.read(ServingSession)

    async def release(self, slot: SlotName) -> None:
        """Releases a slot. The request is not retried: if it is lost, the lease expires instead."""
        await self._client.post(
            "/v1/slots/release",
            ReleasedSlots(slots=(slot,)),
            call_timeout=_SHORT_TIMEOUT,
            attempt_timeout=_SHORT_TIMEOUT,
        )

    async def hand_over(self, file: HandOver) -> HandedOver:
        """Hands a file over; returns when the worker has its own copy.

        The request is retried, because requests with the same key are idempotent.
        """
        answer = await self._client.post(
            "/v1/files", file, repeatable=True, call_timeout=_HAND_OVER_TIMEOUT, attempt_timeout=_COPY_TIMEOUT
        )
        return answer.read(HandedOver)

    async def report(self, metrics: Mapping[str, float]) -> None:
        """Reports metrics. The request is not retried: the next report replaces these metrics."""
        await self._client.post(
            "/v1/metrics", Metrics(metrics=dict(metrics)), call_timeout=_SHORT_TIMEOUT, attempt_timeout=_SHORT_TIMEOUT
        )

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
