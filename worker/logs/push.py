"""Pushes a task's output to the orchestrator while a client there reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from protocol.errors import MusterError
from protocol.runtime.backoff import GrowingPause
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.threads import run_in_thread
from protocol.runtime.waiting import sleep_or
from protocol.wire.logs import BATCH_CHARACTERS, BATCH_LINES, LINE_OVERHEAD, LogBatch, LogLine
from worker.logs.store import LogStore
from worker.session.orchestrator_client import OrchestratorSession

_LOOK = timedelta(milliseconds=250)
"""Interval at which the pusher checks requested logs for new lines."""
_LONGEST_PAUSE = timedelta(seconds=15)
_log = get_logger(__name__)


@dataclass(slots=True)
class _Wanted:
    since: int
    until_ms: int


class LogPusher:
    """Executes the orchestrator's `send-logs` commands.

    Args:
        store_of: Function that returns the log store of an assignment; None if this worker has none.
        clock: Clock that measures the pauses.
    """

    def __init__(self, store_of: Callable[[str], LogStore | None], *, clock: Clock) -> None:
        self._store_of = store_of
        self._clock = clock
        self._wanted: dict[str, _Wanted] = {}
        self._asked = asyncio.Event()
        self.orchestrator: OrchestratorSession | None = None
        """Session to which logs are pushed; None while this node is not a member."""

    def want(self, assignment_id: str, *, since: int, until_ms: int) -> None:
        """Requests that an assignment's log is pushed from line `since` on.

        `until_ms` is the Unix time in milliseconds at which the push ends. If the log is being pushed already, only
        the end is extended, and `since` is ignored.
        """
        known = self._wanted.get(assignment_id)
        if known is None:
            self._wanted[assignment_id] = _Wanted(since, until_ms)
        else:
            known.until_ms = max(known.until_ms, until_ms)
        self._asked.set()

    async def run(self) -> None:
        """Pushes requested logs until the task that runs this method is cancelled."""
        pause = GrowingPause(first=timedelta(milliseconds=500), longest=_LONGEST_PAUSE)
        while True:
            self._asked.clear()
            try:
                moved = [await self._push(each) for each in list(self._wanted)]
            except MusterError as error:
                _log.info("logs-not-pushed", detail=error.detail)
                await self._clock.sleep(pause.failed())
                continue
            pause.succeeded()
            if not self._wanted:
                await sleep_or(self._clock, timedelta(minutes=1), self._asked)
            elif not any(moved):
                await sleep_or(self._clock, _LOOK, self._asked)

    async def _push(self, assignment_id: str) -> bool:
        """Pushes the next batch of one log; returns whether there was a batch."""
        wanted, orchestrator = self._wanted[assignment_id], self.orchestrator
        store = self._store_of(assignment_id)
        if store is None or orchestrator is None:
            del self._wanted[assignment_id]
            return False
        lines = _bounded(await run_in_thread(store.read, wanted.since, most=BATCH_LINES))
        if not lines:
            if orchestrator.time.now().timestamp() * 1000 > wanted.until_ms:
                del self._wanted[assignment_id]
            return False
        receipt = await orchestrator.push_logs(LogBatch(assignment_id=assignment_id, lines=tuple(lines)))
        # `since` never decreases: an orchestrator that lost its state could make this loop push the same lines for
        # ever.
        wanted.since = max(receipt.next_sequence, lines[-1].sequence + 1)
        wanted.until_ms = receipt.wanted_until_ms
        return True


def _bounded(lines: list[LogLine]) -> list[LogLine]:
    """Returns the first lines that fit into one batch, but at least one line."""
    total = 0
    for position, line in enumerate(lines):
        total += len(line.text) + LINE_OVERHEAD
        if total > BATCH_CHARACTERS and position:
            return lines[:position]
    return lines
