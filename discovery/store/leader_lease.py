"""Whose turn it is to do what one instance does for all."""

from __future__ import annotations

import secrets
from datetime import timedelta

from redis.asyncio import Redis

from discovery.store.record_store import KEYS
from discovery.store.scripts import script
from protocol.runtime.redis import store_errors

TURN_LIFE = timedelta(seconds=15)
"""An instance that dies is replaced after this."""


class LeaderLease:
    """A lease in Redis that one instance holds at a time.

    Args:
        redis: Shared by all instances.
        name: Of the work.
    """

    def __init__(self, redis: Redis, *, name: str) -> None:
        self._script = redis.register_script(script("turn"))
        self._key = KEYS.of("turn", name)
        self._me = secrets.token_hex(16)

    async def mine(self) -> bool:
        """Takes the turn or keeps it, if nobody else has it."""
        life = round(TURN_LIFE.total_seconds() * 1000)
        with store_errors():
            return bool(await self._script(keys=(self._key,), args=(self._me, life)))
