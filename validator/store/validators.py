"""Store of the time of each validator's last activity on the ledger, in chain time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from redis.asyncio import Redis

from protocol.identifiers import Address, address
from protocol.redis.connection import RedisKeys, store_errors


class KnownValidators:
    """Stores the chain time at which each validator was last active on the ledger.

    Args:
        redis: Redis client.
        keys: Redis keys of the pool's validators.
    """

    def __init__(self, redis: Redis, *, keys: RedisKeys) -> None:
        self._redis: Any = redis  # its commands are untyped in redis-py
        self._others = keys.prefix + "others"

    async def heard_of(self, seen: Mapping[Address, int]) -> None:
        """Records when each validator gave a verdict or committed to an audit secret.

        Args:
            seen: Block time in Unix seconds, by validator.
        """
        if seen:
            with store_errors():
                await self._redis.zadd(self._others, {**seen}, gt=True)

    async def last_heard(self) -> dict[Address, datetime]:
        """Returns the chain time of each validator's last activity, by address."""
        with store_errors():
            found: list[tuple[bytes, float]] = await self._redis.zrange(self._others, 0, -1, withscores=True)
        return {address(each.decode()): datetime.fromtimestamp(at, UTC) for each, at in found}
