"""Reads from the ledger which versions of a run are still needed by leases and open work."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import timedelta

from ledger.client import Ledger
from ledger.events.types import WorkExpired, WorkFinal, WorkSubmitted
from protocol.identifiers import Digest
from protocol.runtime.budgets import Needs
from protocol.runtime.clock import Clock

CLOCKS_DIFFER = timedelta(minutes=2)
"""Default tolerance between block time, by which the ledger accepts work, and this machine's clock, which dates
versions."""
REORG_DEPTH = 64
"""Number of newest blocks that every call of `read` reads again, because a reorg may have replaced them."""


class VersionNeeds:
    """Tracks the open work of one run.

    Args:
        ledger: Client of the ledger; read-only access suffices.
        pool_id: The pool.
        run: The run's id.
        clock: This machine's clock, which dates the submissions that were read.
        clocks_differ: Tolerance between block time and this machine's clock.
    """

    def __init__(
        self, ledger: Ledger, *, pool_id: int, run: Digest, clock: Clock, clocks_differ: timedelta = CLOCKS_DIFFER
    ) -> None:
        self._ledger = ledger
        self._pool_id = pool_id
        self._run = run
        self._clock = clock
        self._clocks_differ = clocks_differ
        self._next: int | None = None
        self._open: dict[Digest, tuple[int, float]] = {}
        self._longest_lease = timedelta()
        self._longest_open = timedelta()

    async def read(self, held: Collection[int]) -> Needs:
        """Reads the events since the last call and returns the versions that are needed now.

        Args:
            held: Stored versions that may be removed. Work on versions older than all held versions is not read.

        Raises:
            ChainUnavailable: The chain does not answer; the caller must not remove any version.
        """
        at = self._clock.now().timestamp()
        await self._read_terms()
        head = await self._ledger.block()
        first = self._next if self._next is not None else await self._first_block(held)
        if first is None:
            return Needs(at=at, leases=self._longest_lease)
        for event in await self._ledger.history(WorkSubmitted, pool_id=self._pool_id, since=first):
            if event.run == self._run:
                self._open.setdefault(event.key, (event.version, at))
        final = await self._ledger.history(WorkFinal, pool_id=self._pool_id, since=first)
        expired = await self._ledger.history(WorkExpired, pool_id=self._pool_id, since=first)
        for key in [*(event.key for event in final), *(event.key for event in expired)]:
            self._open.pop(key, None)
        self._next = max(first, head - REORG_DEPTH)
        # After its three periods, work can no longer be judged or disputed, even if no account has finalised it.
        # Such work is dropped. So is work that a reorg removed, because no `WorkFinal` or `WorkExpired` follows it.
        since = at - (self._longest_open + self._clocks_differ).total_seconds()
        self._open = {key: (version, read) for key, (version, read) in self._open.items() if read > since}
        return Needs(at=at, leases=self._longest_lease, work=frozenset(version for version, _ in self._open.values()))

    async def _read_terms(self) -> None:
        """Reads the longest duration of leases and of open work under the current, the newest and the previous terms.

        A lease lasts at most the notice period: orchestrators never sign longer leases, and workers refuse longer
        leases. The notice period of a pool never becomes shorter.
        """
        pools = self._ledger.pools
        newest = (await pools.get(self._pool_id)).terms_version
        former = [pools.terms_at(self._pool_id, version) for version in range(max(1, newest - 1), newest + 1)]
        for terms in await asyncio.gather(pools.terms(self._pool_id), *former):
            self._longest_lease = max(self._longest_lease, terms.notice_period + self._clocks_differ)
            self._longest_open = max(
                self._longest_open, terms.judge_period + terms.challenge_period + terms.dispute_period
            )

    async def _first_block(self, held: Collection[int]) -> int | None:
        """Returns the block of the oldest announcement of a held version; None if none is announced yet."""
        for version in sorted(held):
            announced = await self._ledger.checkpoints.get(self._pool_id, self._run, version)
            if announced is not None:
                return announced.block
        return None
