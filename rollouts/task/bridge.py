"""The task's side of the bridge to its worker."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Self

import httpx

from protocol.http.client import ServiceClient
from protocol.runtime.clock import Clock
from protocol.runtime.retry import Backoff
from protocol.wire.bridge import HandedOver, HandOver, Metrics, TaskIdentity
from protocol.wire.runs import StepAnswer
from protocol.wire.slots import ReleasedSlots, SlotGrant, SlotName, SlotWish

_HAND_OVER_PATIENCE = timedelta(minutes=10)
"""A worker that restarts is back long before; until then the file stays on the task's own volume."""
_COPY_PATIENCE = timedelta(minutes=2)
_BRIEF = timedelta(seconds=2)


class Bridge:
    """Asks the worker for steps and slots, and hands it files and figures.

    Args:
        socket: The bridge's unix socket.
        token: This task's token.
        clock: Whose time is waited.
        backoff: How retries wait.
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
        """Who this task runs for."""
        return (await self._client.get("/v1/identity")).read(TaskIdentity)

    async def step(self) -> StepAnswer:
        """What to work on now."""
        return (await self._client.get("/v1/step")).read(StepAnswer)

    async def slot(self, wish: SlotWish) -> SlotGrant:
        """Leases a slot. A request whose fate is unknown is not repeated: at worst a lease goes unused.

        Raises:
            MusterError: The orchestrator gives none now, and says why.
        """
        return (await self._client.post("/v1/slots", wish)).read(SlotGrant)

    async def release(self, slot: SlotName) -> None:
        """Gives a slot up, once: if nobody hears it, the lease expires instead."""
        await self._client.post(
            "/v1/slots/release", ReleasedSlots(slots=(slot,)), patience=_BRIEF, attempt_patience=_BRIEF
        )

    async def hand_over(self, file: HandOver) -> HandedOver:
        """Returns when the worker has its own copy. The same key is the same file, so it is repeated until it works."""
        answer = await self._client.post(
            "/v1/files", file, repeatable=True, patience=_HAND_OVER_PATIENCE, attempt_patience=_COPY_PATIENCE
        )
        return answer.read(HandedOver)

    async def report(self, metrics: Mapping[str, float]) -> None:
        """Reports gauges, once: the next report says more."""
        await self._client.post("/v1/metrics", Metrics(metrics=dict(metrics)), patience=_BRIEF, attempt_patience=_BRIEF)

    async def aclose(self) -> None:
        """Closes its connections."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
