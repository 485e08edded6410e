"""Leases of loops: of several processes on one Redis, one does each piece of background work at a time."""

from __future__ import annotations

import secrets
from datetime import timedelta

from redis.asyncio import Redis

from protocol.runtime.redis import RedisKeys, store_errors
from validator.store.scripts import script


class LeaderLease:
    """The lease of one loop. What the loop writes may be written twice, so that a late holder does no harm.

    Args:
        redis: Where it lies.
        keys: Its names.
        loop: Which loop.
        lifetime: How long it lasts unless renewed.
    """

    def __init__(self, redis: Redis, *, keys: RedisKeys, loop: str, lifetime: timedelta) -> None:
        self._prefix = keys.prefix
        self._loop = loop
        self._lifetime_ms = int(lifetime.total_seconds() * 1000)
        self._holder = secrets.token_hex(8)
        self._script = redis.register_script(script("lease"))
        self.value = ""
        """Changes with every change of hands; empty while somebody else has the lease."""

    async def hold(self) -> bool:
        """Takes or renews the lease; whether we have it.

        Raises:
            StoreUnavailable: Redis can't say, so we don't.
        """
        before, self.value = self.value, ""
        self.value = await self._call(before, self._lifetime_ms)
        return bool(self.value)

    async def give_up(self) -> None:
        """Lets another process have it at once."""
        if self.value:
            await self._call(self.value, 0)
            self.value = ""

    async def _call(self, held: str, lifetime_ms: int) -> str:
        with store_errors():
            answer = await self._script(keys=[self._prefix], args=[self._loop, self._holder, held, lifetime_ms])
        return bytes(answer).decode()
