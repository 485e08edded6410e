"""Cache of the pool's state on the ledger, so that requests rarely wait for the chain."""

from __future__ import annotations

from datetime import timedelta

from orchestrator.chain.interface import PoolLedger, PoolLedgerStatus
from protocol.http.lookups import Lookups
from protocol.runtime.clock import Clock

FRESH = timedelta(seconds=10)
"""Age up to which a cached state is returned without a read, so a change of roles takes effect within this time."""

STALE = timedelta(minutes=10)
"""Age up to which a cached state is returned while the chain is down. After that, requests that need a role fail."""


class CachedPool:
    """Caches the pool with all its role keys.

    All roles are cached together, so that requests signed with unknown keys cause no further reads of the chain.

    Args:
        ledger: The pool on the ledger.
        clock: Clock for the age of the cached state.
    """

    def __init__(self, ledger: PoolLedger, *, clock: Clock) -> None:
        self._lookups: Lookups[None, PoolLedgerStatus] = Lookups(
            lambda _: ledger.pool(),
            what=lambda _: "reading the pool from the ledger",
            fresh=lambda _: FRESH,
            stale=STALE,
            clock=clock,
        )

    async def get(self) -> PoolLedgerStatus:
        """Returns the pool, at most `FRESH` old while the chain answers.

        Raises:
            Unavailable: The chain is down, and the cached state is older than `STALE`.
        """
        return await self._lookups.get(None)
