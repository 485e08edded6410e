"""One slot's session with a gateway: takes requests, sends their answers in parts, and ends with the signed list."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import TypeVar

import numpy as np

from protocol.clients.gateway import CLOSE_TIMEOUT, GatewayClient
from protocol.errors import Conflict, MusterError, NotFound, RateLimited, Unauthenticated
from protocol.http.client import BadAnswer
from protocol.runtime.backoff import backoff
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.retry import Backoff, is_retryable
from protocol.runtime.waiting import cancel_all, wait_first
from protocol.wire.served import SignedServedList, answer_digest
from protocol.wire.serving import (
    MOST_FREE,
    MOST_PARTS,
    AnswerFailure,
    AnswerPart,
    AnswerParts,
    AssignedRequest,
    PartsTaken,
    ServingSession,
    TakenRequests,
    TakeRequests,
)
from protocol.wire.slots import SlotGrant
from rollouts.files.samples import RolloutFile, Sample, SlotHeader
from rollouts.task.serving_answer import AnswerInProgress, FinishedAnswer, ServingVersion

POLL = timedelta(seconds=5)
"""Longest wait of a poll while no client was answered. The gateway considers a session lost if it does not poll for
10 s."""
BUSY_POLL = timedelta(milliseconds=250)
"""The same while answers are in progress: the engine's room grows when they end, and a poll states the room."""
_PAID_POLL = timedelta(seconds=1)
"""The same after an answer, because the slot ends some time after its first one."""
BATCHING = timedelta(milliseconds=50)
"""Time for which tokens are collected before the next request with parts."""
EARLY = timedelta(seconds=5)
"""Time before a session's end at which the next slot is leased, so that clients need not wait for it."""

_ROOM_POLL = timedelta(milliseconds=50)
_KEEP_ALIVE = timedelta(seconds=2)
"""Interval of polls while the engine has no room."""
_CLOSING_POLL = timedelta(milliseconds=200)
_SEND_TIMEOUT = timedelta(seconds=10)
_SHORTEST_PAUSE, _LONGEST_PAUSE = timedelta(milliseconds=100), timedelta(seconds=2)
_MOST_RENEWALS = 8
_ONCE = Backoff(attempts=1)
_MOST_BODY = 1 << 20
"""Bytes of parts in one request, unless a single part is larger."""
_LARGEST_PART = (4 << 20) - (64 << 10)
"""Maximum bytes of one part, below the limit of gateways for a request (6 MiB)."""

_T = TypeVar("_T")
_log = get_logger(__name__)


class WrongList(BadAnswer):
    """The gateway's list does not fit the answers of this session; a file with it would be judged forged."""

    code = "wrong-list"
    default_hint = "the task releases the slot, unpaid; tell the pool's owner"


class SlotSession:
    """The session of one leased slot.

    Args:
        session: The open session.
        grant: The slot.
        version: The version that answers.
        renew: Opens the session again, if its token is not valid any more.
        clock: Clock for waiting.
        stop: Set when the task stops: answers in progress are given up.
        allow_plain_http: Whether plain http to other machines is allowed.
    """

    def __init__(
        self,
        session: ServingSession,
        *,
        grant: SlotGrant,
        version: ServingVersion,
        renew: Callable[[], Awaitable[ServingSession]],
        clock: Clock,
        stop: asyncio.Event,
        allow_plain_http: bool = False,
    ) -> None:
        self.grant = grant
        self.version = version
        self._arithmetic = version.arithmetic
        self._session = session
        self._renew = renew
        self._clock = clock
        self._stop = stop
        self._allow_plain_http = allow_plain_http
        self._ends = clock.monotonic() + session.ends_at_ms / 1000 - clock.now().timestamp()
        self._closing = asyncio.Event()
        self._answers: dict[str, AnswerInProgress] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._finished: dict[str, FinishedAnswer] = {}
        self._news = asyncio.Event()
        self._clients = AsyncExitStack()
        self._client: GatewayClient | None = None
        self._renewals = 0
        self._renewing = asyncio.Lock()

    @property
    def is_ending(self) -> bool:
        """Whether the session takes no further requests, or soon takes none."""
        return self._closing.is_set() or self._clock.monotonic() >= self._ends - EARLY.total_seconds()

    def retire(self) -> None:
        """Takes no further requests; the session ends after the answers in progress."""
        self._closing.set()

    async def run(self) -> SignedServedList:
        """Answers requests until the session ends, and returns the gateway's list.

        Raises:
            MusterError: The session is lost, or the gateway did not answer until its end.
        """
        async with self._clients:
            working = [asyncio.create_task(self._take_requests()), asyncio.create_task(self._send_parts())]
            both = asyncio.gather(*working)
            try:
                await wait_first(self._stop.wait(), tasks=[both])
                if not self._stop.is_set():
                    await both
            finally:  # if one has failed, the other one still runs
                await cancel_all([both, *working, *self._running.values()])
            return await self._close()

    def file(self, signed: SignedServedList, header: SlotHeader) -> RolloutFile | None:
        """Returns the rollout file of a list; None if the list is empty.

        Raises:
            WrongList: The list has a wrong signature, or other answers than this session gave.
        """
        lease = self.grant.lease
        if signed.signer(work_key=lease.lease.key.hash, domain=lease.domain) != self.version.gateway:
            raise WrongList("the list is not signed by the gateway that the recipe names")
        served = signed.parse()
        samples: list[Sample] = []
        for position, request in enumerate(served.requests):
            answer = self._finished.get(request.id)
            if answer is None:
                raise WrongList(f"request {request.id} of the list was not answered by this session")
            given = [(text, one.tokens) for text, one in zip(answer.texts, answer.completions, strict=True)]
            if len(given) != request.choices or answer_digest(given) != request.answer:
                raise WrongList(f"the list has another answer to request {request.id} than this session gave")
            samples += _rows(answer, position=position, first=len(samples))
        return RolloutFile(header, tuple(samples), signed) if samples else None

    # Requests

    async def _take_requests(self) -> None:
        """Polls until the session closes and all answers in progress have been sent."""
        while self._clock.monotonic() < self._ends and not (self._closing.is_set() and not self._answers):
            free = 0 if self._closing.is_set() else min(self.version.room, MOST_FREE)
            try:
                taken = await self._calling(partial(self._take, free=free))
            except Conflict as error:
                if error.code != "session-closed":
                    raise
                break
            for identifier in taken.cancelled:
                self._cancel(identifier)
            for assigned in taken.requests:
                self._answer(assigned)
            if taken.closing:
                self._closing.set()
            if not taken.requests:
                await self._until_room(was_full=not free)
        self._closing.set()
        for identifier in [*self._answers]:
            self._cancel(identifier)
        self._news.set()  # lets `_send_parts` end

    async def _take(self, client: GatewayClient, *, free: int) -> TakenRequests:
        left = timedelta(seconds=max(0.0, self._ends - self._clock.monotonic()))
        longest = BUSY_POLL if self._answers else _PAID_POLL if self._finished else POLL
        wait = min(longest, left) if free else timedelta()
        request = TakeRequests(free=free, wait_ms=int(wait.total_seconds() * 1000))
        return await client.take(self._session.id, request)

    def _answer(self, assigned: AssignedRequest) -> None:
        """Begins to answer a request; an earlier attempt of this session ends."""
        self._cancel(assigned.id)
        answer = AnswerInProgress(
            assigned,
            version=self.version,
            arithmetic=self._arithmetic,
            wake=self._news.set,
        )
        self._answers[assigned.id] = answer
        self._running[assigned.id] = asyncio.create_task(answer.run())

    async def _until_room(self, *, was_full: bool) -> None:
        """Waits until the engine has room again, at most until the next poll is due."""
        if self._closing.is_set():
            await wait_first(self._clock.sleep(_CLOSING_POLL), self._stop.wait())
            return
        until = self._clock.monotonic() + _KEEP_ALIVE.total_seconds()
        while True:  # waits at least once, so that a gateway that answers at once is not polled without pause
            await wait_first(self._clock.sleep(_ROOM_POLL), self._stop.wait())
            if not was_full or self.version.room or self._closing.is_set() or self._clock.monotonic() >= until:
                return

    def _cancel(self, identifier: str) -> None:
        self._answers.pop(identifier, None)
        running = self._running.pop(identifier, None)
        if running is not None:
            running.cancel()

    # Parts

    async def _send_parts(self) -> None:
        """Sends new parts, in their order, until the session has closed and none is left."""
        while True:
            await self._news.wait()
            self._news.clear()
            for parts in _bodies([part for answer in [*self._answers.values()] if (part := answer.take_part())]):
                await self._send(parts)
            if self._closing.is_set() and not self._answers:
                return
            await self._clock.sleep(BATCHING)

    async def _send(self, parts: AnswerParts) -> None:
        for part in parts.parts:
            answer = self._answers.get(part.id)
            if part.record is not None and answer is not None and answer.finished is not None:
                self._finished[part.id] = answer.finished  # kept whatever happens: the list decides about the rows
        try:
            taken: PartsTaken = await self._calling(
                lambda client: client.send(self._session.id, parts, call_timeout=_SEND_TIMEOUT)
            )
        except Conflict as error:
            if error.code != "session-closed":
                raise
            self._closing.set()
            return
        for identifier in taken.cancelled:
            self._cancel(identifier)
        for part in parts.parts:
            answer = self._answers.get(part.id)
            if answer is not None and answer.assigned.attempt == part.attempt and (part.record or part.failure):
                del self._answers[part.id], self._running[part.id]

    # The gateway

    async def _close(self) -> SignedServedList:
        """Closes the session; after a stop, only one short attempt is made."""
        if not self._stop.is_set():
            limit = CLOSE_TIMEOUT
            return await self._calling(lambda client: client.close_session(self._session.id, call_timeout=limit))
        client = self._connected()
        return await client.close_session(self._session.id, call_timeout=timedelta(milliseconds=300))

    async def _calling(self, call: Callable[[GatewayClient], Awaitable[_T]]) -> _T:
        """Calls the gateway; repeats the call until the lease's end if the gateway is unreachable or busy.

        Raises:
            MusterError: The gateway refused the call, or the lease has ended.
        """
        failures, renewals, refusal = 0, self._renewals, None
        while True:
            try:
                if refusal is not None:
                    await self._open_again(renewals, refusal)
                renewals, refusal = self._renewals, None
                return await call(self._connected())
            except (Unauthenticated, NotFound) as error:
                if refusal is not None:
                    raise
                refusal = error
            except MusterError as error:
                if not is_retryable(error) or self._clock.now().timestamp() >= self.grant.lease.expiry:
                    raise
                failures += 1
                pause = backoff(_SHORTEST_PAUSE, _LONGEST_PAUSE, failures)
                if isinstance(error, RateLimited):
                    pause = max(pause, min(error.retry_after, _LONGEST_PAUSE))
                _log.info("gateway-call-repeated", why=error.detail, pause=pause.total_seconds())
                await self._clock.sleep(pause)

    async def _open_again(self, renewals: int, error: MusterError) -> None:
        """Opens the session again after its token was refused, once for all calls that were refused."""
        async with self._renewing:
            if renewals != self._renewals:
                return
            if self._renewals >= _MOST_RENEWALS:
                raise error
            _log.warning("session-opened-again", why=error.detail)
            await self._clock.sleep(backoff(_SHORTEST_PAUSE, _LONGEST_PAUSE, self._renewals + 1))
            self._session = await self._renew()
            self._renewals += 1
            self._client = None

    def _connected(self) -> GatewayClient:
        if self._client is None:
            client = GatewayClient(
                self._session.url,
                token=self._session.token,
                backoff=_ONCE,
                allow_plain_http=self._allow_plain_http,
            )
            self._clients.push_async_callback(client.aclose)
            self._client = client
        return self._client


def _rows(answer: FinishedAnswer, *, position: int, first: int) -> list[Sample]:
    return [
        Sample(
            group=first + choice,
            sample=first + choice,
            prompt_index=position,
            prompt_tokens=np.array(request.prompt_tokens, np.int32),
            output_tokens=np.array(one.tokens, np.int32),
            logprobs=one.logprobs,
            finish=one.finish,
            task_reward=0.0,
            length_penalty=0.0,
            reward=0.0,
            target_length=None,
            proofs=one.proofs,
        )
        for choice, (request, one) in enumerate(zip(answer.requests, answer.completions, strict=True))
    ]


def _bodies(parts: list[AnswerPart]) -> list[AnswerParts]:
    """Groups parts into requests of bounded size, in order."""
    bodies: list[AnswerParts] = []
    group: list[AnswerPart] = []
    size = 0
    for each in parts:
        part, own = each, len(each.model_dump_json().encode())
        if own > _LARGEST_PART:
            detail = f"the last part of the answer has {own} bytes; the limit is {_LARGEST_PART}"
            failure = AnswerFailure(code="answer-too-large", detail=detail, hint="ask for fewer choices or tokens")
            part, own = AnswerPart(id=each.id, attempt=each.attempt, number=each.number, failure=failure), 1024
        if group and (len(group) == MOST_PARTS or size + own > _MOST_BODY):
            bodies.append(AnswerParts(parts=tuple(group)))
            group, size = [], 0
        group.append(part)
        size += own
    return [*bodies, AnswerParts(parts=tuple(group))] if group else bodies
