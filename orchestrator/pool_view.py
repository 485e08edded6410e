"""The pool as the ledger has it, remembered so that no request waits for the chain twice."""

from __future__ import annotations

from datetime import timedelta

import structlog

from orchestrator.chain import PoolLedger, PoolStanding
from protocol.clock import Clock
from protocol.errors import Unavailable
from protocol.retry import Deadline

FRESH = timedelta(seconds=10)
"""How soon a change of roles is noticed."""

STALE = timedelta(minutes=10)
"""While the chain is down, what it said last is believed for so long; then nobody counts as the manager."""

_log = structlog.get_logger(__name__)


class PoolView:
    """Reads the pool from the ledger, and from memory while the chain is slow.

    Args:
        ledger: The pool on the ledger.
        clock: Whose time counts.
    """

    def __init__(self, ledger: PoolLedger, *, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._read_at = 0.0
        self._last: PoolStanding | None = None

    async def get(self) -> PoolStanding:
        """The pool as it stands, at most some seconds old while the chain answers.

        Raises:
            Unavailable: The chain has been down for longer than what it said is believed.
        """
        age = self._clock.monotonic() - self._read_at
        if self._last is not None and age < FRESH.total_seconds():
            return self._last
        deadline = Deadline.after(timedelta(seconds=3), clock=self._clock)
        try:
            self._last = await deadline.bound(self._ledger.pool(), what="reading the pool from the ledger")
        except Unavailable as error:
            if self._last is None or age > STALE.total_seconds():
                raise
            _log.warning("ledger-stale", age_s=round(age), reason=error.detail)
            return self._last
        self._read_at = self._clock.monotonic()
        return self._last
