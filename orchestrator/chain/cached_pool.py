"""Caches the pool's state on the ledger, so that requests rarely wait for the chain."""

from __future__ import annotations

from datetime import timedelta

from orchestrator.chain.interface import PoolLedger, PoolStanding
from protocol.http.lookups import Lookups
from protocol.runtime.clock import Clock

FRESH = timedelta(seconds=10)
"""Time after which the cached state is read again, and so a change of roles is noticed."""

STALE = timedelta(minutes=10)
"""While the chain is down, the cached state is used for this long; after that, no key has a role."""


class CachedPool:
    """Reads the pool with all holders of roles, so that callers cause no reads about their own address.

    Args:
        ledger: The pool on the ledger.
        clock: Measures the age of the cached state.
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
        """Returns the pool, at most `FRESH` old while the chain answers.

        Raises:
            Unavailable: The chain has been down for longer than `STALE`.
        """
        return await self._lookups.get(None)
