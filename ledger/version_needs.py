"""Finds out on the ledger which versions of a run leases and open work still need."""

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
"""The ledger takes work by the time of its blocks, and versions are dated by this machine's clock."""
READ_AGAIN = 64
"""Blocks that are read again each time: a reorganisation may have changed them."""


class VersionNeeds:
    """Follows the open work of one run.

    Args:
        ledger: Connected.
        pool_id: The pool.
        run: The run's id.
        clock: Dates what was read.
    """

    def __init__(self, ledger: Ledger, *, pool_id: int, run: Digest, clock: Clock) -> None:
        self._ledger = ledger
        self._pool_id = pool_id
        self._run = run
        self._clock = clock
        self._next: int | None = None
        self._open: dict[Digest, tuple[int, float]] = {}
        self._leases = timedelta()
        self._settles = timedelta()

    async def read(self, held: Collection[int]) -> Needs:
        """Reads what happened since the last time.

        Args:
            held: The versions that may be removed; work that names older ones need not be known.

        Raises:
            ChainUnavailable: The chain can't be read; then nothing may be removed.
        """
        at = self._clock.now().timestamp()
        await self._read_terms()
        head = await self._ledger.block()
        first = self._next if self._next is not None else await self._first_block(held)
        if first is None:
            return Needs(at=at, leases=self._leases)
        for event in await self._ledger.history(WorkSubmitted, pool_id=self._pool_id, since=first):
            if event.run == self._run:
                self._open.setdefault(event.key, (event.version, at))
        final = await self._ledger.history(WorkFinal, pool_id=self._pool_id, since=first)
        expired = await self._ledger.history(WorkExpired, pool_id=self._pool_id, since=first)
        for key in [*(event.key for event in final), *(event.key for event in expired)]:
            self._open.pop(key, None)
        self._next = max(first, head - READ_AGAIN)
        # After its last period nobody can judge or dispute work any more, also if nobody made it final. This also frees
        # versions of submissions that a reorganisation took back.
        since = at - (self._settles + CLOCKS_DIFFER).total_seconds()
        self._open = {key: (version, read) for key, (version, read) in self._open.items() if read > since}
        return Needs(at=at, leases=self._leases, work=frozenset(version for version, _ in self._open.values()))

    async def _read_terms(self) -> None:
        """Reads how long leases may last, and work may be open under the terms in force and those before.

        Orchestrators sign no lease that is longer than the notice period, and workers take none. That period
        never becomes shorter.
        """
        pools = self._ledger.pools
        newest = (await pools.get(self._pool_id)).terms_version
        former = [pools.terms_at(self._pool_id, version) for version in range(max(1, newest - 1), newest + 1)]
        for terms in await asyncio.gather(pools.terms(self._pool_id), *former):
            self._leases = max(self._leases, terms.notice_period + CLOCKS_DIFFER)
            self._settles = max(self._settles, terms.judge_period + terms.challenge_period + terms.dispute_period)

    async def _first_block(self, held: Collection[int]) -> int | None:
        """The block from which on work names versions that are held; None if none of them is announced yet."""
        for version in sorted(held):
            announced = await self._ledger.checkpoints.get(self._pool_id, self._run, version)
            if announced is not None:
                return announced.block
        return None
