"""Leader lease: one instance does work for all."""

from __future__ import annotations

import secrets
from datetime import timedelta

from redis.asyncio import Redis

from discovery.store.record_store import KEYS
from discovery.store.scripts import script
from protocol.runtime.redis import store_errors

LEASE_LIFE = timedelta(seconds=15)
"""A crashed holder is replaced after this time."""


class LeaderLease:
    """A lease in Redis that at most one instance holds.

    Args:
        redis: Shared by all instances.
        name: Of the work that the lease protects.
    """

    def __init__(self, redis: Redis, *, name: str) -> None:
        self._script = redis.register_script(script("turn"))
        self._key = KEYS.of("turn", name)
        self._holder = secrets.token_hex(16)

    async def acquire(self) -> bool:
        """Acquires or renews the lease; returns False if another instance holds it."""
        life = round(LEASE_LIFE.total_seconds() * 1000)
        with store_errors():
            return bool(await self._script(keys=(self._key,), args=(self._holder, life)))
