"""Gives requests to sessions, and takes their answers in parts."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from gateway.domain.answers import CollectedAnswer, ExpectedAnswer, part_fault
from gateway.domain.forms import answer_form, whole_answer
from gateway.domain.parts import read_part, write_part
from gateway.errors import NO_ANSWER, error_text
from gateway.metrics import GatewayMetrics
from gateway.sessions.opening import wrong_session
from gateway.settings import GatewaySettings, Verify
from gateway.store.database import Database, Entry, RequestRow
from gateway.store.doorbell import Doorbell
from gateway.store.scripts import AddPart, FailAttempt, FinishRequest, PollSession
from protocol.errors import Conflict, Unprocessable
from protocol.identifiers import Digest, digest
from protocol.openai.bodies import parse_body
from protocol.openai.errors import InvalidRequest
from protocol.redis.connection import store_errors
from protocol.runtime.clock import Clock, milliseconds
from protocol.runtime.logs import get_logger
from protocol.runtime.randomness import randbelow
from protocol.runtime.threads import run_in_thread
from protocol.wire.answers import AnswerRecord
from protocol.wire.served import RequestKind, answer_digest
from protocol.wire.serving import (
    AnswerFailure,
    AnswerPart,
    AnswerParts,
    AssignedRequest,
    PartsTaken,
    TakenRequests,
    TakeRequests,
)

INLINE_BYTES = 64 * 1024
"""Size of an answer up to which it is checked in the event loop's thread."""

_TOO_LARGE = AnswerFailure(
    code="answer-too-large",
    detail="the answer takes more bytes than the gateway stores",
    param="max_tokens",
    hint="ask for fewer tokens or choices, or without log-probabilities",
)
_log = get_logger(__name__)
_CODE = re.compile(r"[^a-z0-9-]+")


class SessionAnswering:
    """Serves the polls and answers of sessions' tasks.

    Args:
        settings: Settings of the gateway.
        database: State in Redis.
        doorbell: Wakes waiting polls.
        metrics: Counters.
        clock: Clock of polls.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        database: Database,
        doorbell: Doorbell,
        metrics: GatewayMetrics,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._database = database
        self._doorbell = doorbell
        self._metrics = metrics
        self._clock = clock
        self._lost_ms = round(settings.session_lost_s * 1000)

    async def take(
        self, session: str, token_hash: str, request: TakeRequests, *, stopping: asyncio.Event
    ) -> TakenRequests:
        """Returns requests for a session; waits for the first one, for a cancellation, or for the session's end.

        Raises:
            Unauthenticated: The token is not that of the session.
            Conflict: The session is closed.
        """

        async def read(left: timedelta) -> tuple[TakenRequests, bool]:
            taken = await self._poll(session, token_hash, request.free, wait_ms=milliseconds(left))
            return taken, bool(taken.requests or taken.cancelled or taken.closing)

        wait = timedelta(milliseconds=request.wait_ms)
        try:
            return await self._doorbell.poll(f"s{session}", read, wait=wait, stopping=stopping, clock=self._clock)
        except asyncio.CancelledError:
            # The task is gone, so the session must not count as alive until the poll's end.
            with store_errors():
                alive = {session: self._database.now_ms() + self._lost_ms}
                await self._database.redis.zadd(self._database.keys.of("alive"), alive, xx=True)
            raise

    async def _poll(self, session: str, token_hash: str, free: int, *, wait_ms: int) -> TakenRequests:
        polled = await self._database.scripts.run(
            PollSession(
                session=session,
                token_hash=token_hash,
                free=free,
                now_ms=self._database.now_ms(),
                alive_ms=self._lost_ms,
                wait_ms=wait_ms,
                slot_ms=round(self._settings.slot_time_s * 1000),
            )
        )
        if polled.outcome == "denied":
            raise wrong_session()
        if polled.outcome == "closed":
            raise Conflict("the session is closed", hint="lease another slot", code="session-closed")
        rows = polled.requests
        return TakenRequests(
            requests=tuple(_assigned(rows[place : place + 7]) for place in range(0, len(rows), 7)),
            cancelled=polled.cancelled,
            closing=polled.closing,
        )

    async def take_parts(self, session: str, token_hash: str, request: AnswerParts) -> PartsTaken:
        """Stores parts of answers, and ends requests whose last part is among them.

        Raises:
            Unauthenticated: The token is not that of the session.
            Conflict: A part is missing before one of these.
            Unprocessable: A part is empty.
        """
        _check_content(request.parts)
        gone: set[str] = set()
        rows: dict[str, RequestRow | None] = {}
        waiting: list[tuple[AnswerPart, AddPart]] = []
        for part in request.parts:
            if part.id in gone:
                continue
            if part.id not in rows:
                rows[part.id] = await self._database.request(part.id)
            row = rows[part.id]
            if row is None or row.session != session or row.attempt != part.attempt:
                gone.add(part.id)
                continue
            if part.tokens:
                if (fault := _fault_of(part, row)) is not None:
                    gone.add(part.id)
                    await self._refuse(session, token_hash, part, [fault])
                    continue
                waiting.append((part, self._add(session, token_hash, part)))
            if part.record is not None or part.failure is not None:
                await self._store(session, token_hash, waiting, gone)
                if part.id not in gone:
                    await self._end(session, token_hash, part, row, gone)
        await self._store(session, token_hash, waiting, gone)
        return PartsTaken(cancelled=tuple(sorted(gone)))

    def _add(self, session: str, token_hash: str, part: AnswerPart) -> AddPart:
        counts: dict[str, int] = {}
        for each in part.tokens:
            counts[str(each.choice)] = counts.get(str(each.choice), 0) + len(each.tokens)
        return AddPart(
            session=session,
            token_hash=token_hash,
            request=part.id,
            attempt=part.attempt,
            part=part.number,
            now_ms=self._database.now_ms(),
            alive_ms=self._lost_ms,
            most_bytes=self._settings.answer_bytes,
            content=write_part(part.tokens),
            counts={choice: str(count) for choice, count in counts.items()},
        )

    async def _store(
        self, session: str, token_hash: str, waiting: list[tuple[AnswerPart, AddPart]], gone: set[str]
    ) -> None:
        """Stores the collected parts in one round trip, and clears the list."""
        replies = await self._database.scripts.run_many([call for _, call in waiting])
        parts = [part for part, _ in waiting]
        waiting.clear()
        for part, added in zip(parts, replies, strict=True):
            match added.outcome:
                case "ok" | "again":
                    continue
                case "denied":
                    raise wrong_session()
                case "gap":
                    if part.id in gone:
                        continue
                    raise Conflict(
                        f"part {part.number} of request {part.id} came, but part {added.expected} is missing",
                        hint="send the parts in order",
                        code="part-missing",
                    )
                case "gone":
                    gone.add(part.id)
                case "bytes":  # the client's options made the answer so large: no fault of the node
                    if part.id not in gone:
                        gone.add(part.id)
                        await self._fail(session, token_hash, part, _TOO_LARGE)
                case reason:
                    if part.id not in gone:
                        gone.add(part.id)
                        await self._refuse(session, token_hash, part, [f"too many {reason}"])

    async def _end(self, session: str, token_hash: str, part: AnswerPart, row: RequestRow, gone: set[str]) -> None:
        if part.failure is not None:
            await self._fail(session, token_hash, part, part.failure)
            return
        record = part.record
        if record is None:
            raise ValueError("the part has neither record nor failure")
        stored = await self._all_entries(part.id)
        shown = row.verify == Verify.BEFORE.value or self._samples()
        work = (row, record, stored, shown)
        size = sum(len(entry.part) for entry in stored)
        checked = _check(*work) if size < INLINE_BYTES else await run_in_thread(_check, *work)
        if checked.differences:
            gone.add(part.id)
            await self._refuse(session, token_hash, part, checked.differences)
            return
        finished = await self._database.scripts.run(
            FinishRequest(
                session=session,
                token_hash=token_hash,
                request=part.id,
                attempt=part.attempt,
                now_ms=self._database.now_ms(),
                answer=checked.answer,
                used=checked.read + checked.written,
                written=checked.written,
                sampled=shown and row.verify != Verify.BEFORE.value,
                verify_ms=round(self._settings.verify_timeout_s * 1000),
                last=checked.last,
                shown=checked.shown,
            )
        )
        match finished.outcome:
            case "denied":
                raise wrong_session()
            case "gone":
                gone.add(part.id)
            case "ok":
                self._metrics.tokens.labels("prompt").inc(checked.read)
                self._metrics.tokens.labels("completion").inc(checked.written)
            case _:
                pass

    def _samples(self) -> bool:
        """Draws whether an answer is verified after its delivery; workers must not be able to predict it."""
        share = self._settings.verify_share if self._settings.verify is Verify.SAMPLED else 0.0
        return randbelow(1 << 30) < share * (1 << 30)

    async def _all_entries(self, request: str) -> list[Entry]:
        found: list[Entry] = []
        while more := await self._database.entries(request, after=found[-1].id if found else ""):
            found += more
        return found

    async def _refuse(self, session: str, token_hash: str, part: AnswerPart, differences: Sequence[str]) -> None:
        """Ends an attempt whose parts or record are wrong; another worker answers the request."""
        _log.warning("answer-refused", session=session, request=part.id, differences=differences[:5])
        self._metrics.refused.inc()
        await self._give_up(
            session, token_hash, part, strike_ms=round(self._settings.distrust_time_s * 1000), cause="refused"
        )

    async def _fail(self, session: str, token_hash: str, part: AnswerPart, failure: AnswerFailure) -> None:
        _log.info("answer-failed", session=session, request=part.id, code=failure.code, param=failure.param)
        code = _CODE.sub("-", failure.code) or "error"
        error = InvalidRequest(failure.param, failure.detail, hint=failure.hint, code=code)
        await self._give_up(
            session,
            token_hash,
            part,
            cause="failed",
            client_fault=f"{code}:{failure.param}" if failure.param else "",
            fault=error_text(error, param=failure.param),
        )

    async def _give_up(
        self,
        session: str,
        token_hash: str,
        part: AnswerPart,
        *,
        cause: str,
        strike_ms: int = 0,
        client_fault: str = "",
        fault: str = "",
    ) -> None:
        failed = await self._database.scripts.run(
            FailAttempt(
                session=session,
                token_hash=token_hash,
                request=part.id,
                attempt=part.attempt,
                now_ms=self._database.now_ms(),
                alive_ms=self._lost_ms,
                client_fault=client_fault,
                fault=fault,
                strike_ms=strike_ms,
                last=NO_ANSWER,
            )
        )
        if failed.outcome == "denied":
            raise wrong_session()
        if failed.outcome == "ok" and not failed.ended:
            self._metrics.retries.labels(cause).inc()


class _Checked:
    """Result of the check of an answer: differences, or what is stored about it."""

    __slots__ = ("answer", "differences", "last", "read", "shown", "written")

    def __init__(self, differences: list[str]) -> None:
        self.differences = differences
        self.answer: Digest = digest(bytes(32))
        self.last = b""
        self.shown = b""
        self.read = 0
        self.written = 0


def _check(row: RequestRow, record: AnswerRecord, entries: Sequence[Entry], with_whole: bool) -> _Checked:
    collected = CollectedAnswer(row.choices)
    for entry in entries:
        if entry.part and entry.attempt == row.attempt:
            collected.add(read_part(entry.part))
    body = parse_body(row.kind, row.body)
    expected = ExpectedAnswer(
        body=body, seed=Digest(row.seed), version=Digest(row.digest), arithmetic=row.arithmetic, limit=row.cap
    )
    checked = _Checked(expected.differences(record, collected))
    if checked.differences:
        return checked
    texts = ["" if row.kind is RequestKind.GENERATE else choice.text for choice in collected.choices]
    tokens = [choice.tokens for choice in collected.choices]
    checked.answer = answer_digest(list(zip(texts, tokens, strict=True)))
    checked.read, checked.written = collected.used(record)
    plain: dict[str, Any] = record.model_dump(mode="json")
    checked.last = json.dumps({"record": plain}, separators=(",", ":")).encode()
    if with_whole:
        form = answer_form(row.form, kind=row.kind, arithmetic=row.arithmetic, version=row.digest)
        checked.shown = whole_answer(form, row.kind, collected, record)
    return checked


def _check_content(parts: Sequence[AnswerPart]) -> None:
    for place, part in enumerate(parts):
        if not part.tokens and part.record is None and part.failure is None:
            raise Unprocessable(f"part {place} has no tokens, record or failure", fields={"parts": "empty part"})


def _fault_of(part: AnswerPart, row: RequestRow) -> str | None:
    faults = (part_fault(each, choices=row.choices, with_pieces=row.with_pieces) for each in part.tokens)
    return next((fault for fault in faults if fault is not None), None)


def _assigned(values: tuple[bytes, ...]) -> AssignedRequest:
    identifier, attempt, kind, body, seed, choices, pieces = (value.decode() for value in values)
    return AssignedRequest(
        id=identifier,
        attempt=int(attempt),
        kind=RequestKind(kind),
        body=body,
        seed=digest(bytes.fromhex(seed[2:])),
        choices=int(choices),
        with_pieces=pieces == "1",
    )
