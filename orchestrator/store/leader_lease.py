"""Leases of loops: of several orchestrators on one Redis, one does each piece of background work at a time.

A lease's value carries a fencing token that grows with every change of hands. What a loop writes, it writes through
scripts that compare the value first, so that a loop which was paused and lost its lease can't write any more.
"""

from __future__ import annotations

import asyncio
import secrets
from datetime import timedelta

from orchestrator.store.database import Database


class LeaderLease:
    """The lease of one loop.

    Args:
        database: The pool's.
        loop: Which loop.
        lifetime: How long it lasts unless renewed; another orchestrator takes over after it.
    """

    def __init__(self, database: Database, loop: str, *, lifetime: timedelta) -> None:
        self._database = database
        self._loop = loop
        self.lifetime = lifetime
        self._lifetime_ms = int(lifetime.total_seconds() * 1000)
        self._holder = secrets.token_hex(8)
        self._asking = asyncio.Lock()
        self.value = ""
        """Fencing token for scripts; empty while another instance holds the lease."""

    async def hold(self) -> bool:
        """Takes or renews the lease; whether we have it.

        Raises:
            StoreUnavailable: Redis can't say, so we don't.
        """
        async with self._asking:  # rounds of one loop may overlap, and one must not undo what another one got
            try:
                answer = await self._database.call("lease", self._loop, self._holder, self.value, self._lifetime_ms)
            except BaseException:
                self.value = ""
                raise
            self.value = answer.decode()
            return bool(self.value)

    async def give_up(self) -> None:
        """Lets another orchestrator have it at once."""
        if self.value:
            await self._database.call("lease", self._loop, self._holder, self.value, 1)
            self.value = ""
