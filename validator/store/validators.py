"""Who judges: the validators that share this Redis, and when each of the pool's was last heard of on the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from redis.asyncio import Redis

from protocol.clock import Clock
from protocol.identifiers import Address, address
from protocol.redis import RedisKeys, store_errors

MEMBER_FOR = timedelta(minutes=1)
"""How long a process that shares this Redis counts after its last sign."""


class KnownValidators:
    """Two small tables.

    Args:
        redis: Where they lie.
        keys: Their names.
        clock: Whose time counts.
    """

    def __init__(self, redis: Redis, *, keys: RedisKeys, clock: Clock) -> None:
        self._redis: Any = redis  # its commands are untyped in redis-py
        self._members = keys.prefix + "members"
        self._others = keys.prefix + "others"
        self._clock = clock

    async def here(self, me: Address) -> frozenset[Address]:
        """Those that share this Redis, us among them; says that we do."""
        now = self._clock.now().timestamp()
        with store_errors():
            await self._redis.zadd(self._members, {me: now})
            found = await self._redis.zrangebyscore(self._members, now - MEMBER_FOR.total_seconds(), "+inf")
        return frozenset(address(each.decode()) for each in found) | {me}

    async def heard_of(self, seen: Mapping[Address, int]) -> None:
        """Remembers when validators gave verdicts or committed to secrets, in Unix seconds of the chain."""
        if seen:
            with store_errors():
                await self._redis.zadd(self._others, {**seen}, gt=True)

    async def last_heard(self) -> dict[Address, datetime]:
        """When each was last heard of."""
        with store_errors():
            found: list[tuple[bytes, float]] = await self._redis.zrange(self._others, 0, -1, withscores=True)
        zone = self._clock.now().tzinfo
        return {address(each.decode()): datetime.fromtimestamp(at, zone) for each, at in found}
