"""Reports to the orchestrator which numerics classes this validator can verify."""

from __future__ import annotations

from datetime import timedelta

from protocol.clients import NodeClient
from protocol.errors import MusterError, NotFound
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.wire.validators import MOST_VERIFIED, NumericsReport
from validator.store.members import Members

LONGEST_SILENCE = timedelta(minutes=5)
"""Time after which an unchanged report is repeated; the orchestrator may ask for a shorter time."""

RETRY = timedelta(seconds=30)
"""Time after which a failed report is repeated."""

_log = get_logger(__name__)


class NumericsReports:
    """Loop that reports numerics classes at the start, after each change, and every five minutes.

    Args:
        members: Validator processes on this Redis, whose classes are reported together.
        orchestrator: Client of the pool's orchestrator with the validator's key.
        clock: Clock of repetitions.
    """

    def __init__(self, members: Members, *, orchestrator: NodeClient, clock: Clock) -> None:
        self._members = members
        self._orchestrator = orchestrator
        self._clock = clock
        self._reported: tuple[str, ...] | None = None
        """Classes of the last accepted report; None if the last attempt failed."""
        self._due = clock.monotonic()
        self._failure = ""
        """Code of the last logged error; empty after a success."""

    async def round(self) -> None:
        """Sends a report if one is due.

        An error of the orchestrator is logged once and not raised, because judging does not depend on reports.

        Raises:
            StoreUnavailable: Redis is down.
        """
        classes = (await self._members.numerics())[:MOST_VERIFIED]
        changed = self._reported is not None and classes != self._reported
        if not changed and self._clock.monotonic() < self._due:
            return
        try:
            receipt = await self._orchestrator.report_numerics(NumericsReport(classes=classes))
        except MusterError as error:
            self._failed(error)
            return
        again_s = min(receipt.again_in_ms / 1000, LONGEST_SILENCE.total_seconds())
        self._reported, self._due, self._failure = classes, self._clock.monotonic() + again_s, ""

    def _failed(self, error: MusterError) -> None:
        older = isinstance(error, NotFound)
        pause = LONGEST_SILENCE if older else RETRY
        self._reported, self._due = None, self._clock.monotonic() + pause.total_seconds()
        if error.code == self._failure:
            return
        self._failure = error.code
        if older:
            _log.info("numerics-not-reported", why="the orchestrator's release takes no reports of numerics classes")
        else:
            _log.warning("numerics-not-reported", why=error.detail, code=error.code, hint=error.hint)
