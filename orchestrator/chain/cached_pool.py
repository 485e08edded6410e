"""The pool as the ledger has it, remembered so that no request waits for the chain twice."""

from __future__ import annotations

from datetime import timedelta

from orchestrator.chain.interface import PoolLedger, PoolStanding
from protocol.http.lookups import Lookups
from protocol.runtime.clock import Clock

FRESH = timedelta(seconds=10)
"""Time after which a change of roles is noticed."""

STALE = timedelta(minutes=10)
"""While the chain is down, what it said last is believed for so long; then nobody has a role."""


class CachedPool:
    """Reads the pool with all who have a role in it, so that no caller has the chain asked about its own address.

    Args:
        ledger: The pool on the ledger.
        clock: Measures how old the last answer is.
    """

    def __init__(self, ledger: PoolLedger, *, clock: Clock) -> None:
        self._lookups: Lookups[None, PoolStanding] = Lookups(
            lambda _: ledger.pool(),
            what=lambda _: "reading the pool from the ledger",
            fresh=lambda _: FRESH,
            stale=STALE,
            clock=clock,
        )

    async def get(self) -> PoolStanding:
        """Returns the pool, at most some seconds old while the chain answers.

        Raises:
            Unavailable: The chain has been down for longer than what it said is believed.
        """
        return await self._lookups.get(None)
