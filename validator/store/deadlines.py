"""Store of the earliest time at which each submitted work may be finalised, so that only due work records are read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from redis.asyncio import Redis

from protocol.identifiers import Digest
from protocol.redis.connection import RedisKeys, store_errors

_TOGETHER = 1000
"""Maximum number of entries per Redis command."""


class Deadlines:
    """Keys of the pool's work that is not final, each with the earliest time at which it may be finalised.

    Args:
        redis: Redis client.
        keys: Redis keys of the pool's validators.
    """

    def __init__(self, redis: Redis, *, keys: RedisKeys) -> None:
        self._redis: Any = redis  # its commands are untyped in redis-py
        self._due = keys.prefix + "due"

    async def put(self, due: Mapping[Digest, int]) -> None:
        """Sets the earliest time at which each work may be finalised; replaces earlier values.

        Args:
            due: Time in Unix seconds, by work key.
        """
        items = list(due.items())
        for start in range(0, len(items), _TOGETHER):
            with store_errors():
                await self._redis.zadd(self._due, dict(items[start : start + _TOGETHER]))

    async def forget(self, keys: Iterable[Digest]) -> None:
        """Removes work that is final or no longer on the ledger, by its keys."""
        listed = list(keys)
        for start in range(0, len(listed), _TOGETHER):
            with store_errors():
                await self._redis.zrem(self._due, *listed[start : start + _TOGETHER])

    async def due(self, *, now: datetime, limit: int) -> list[Digest]:
        """Returns at most `limit` keys of work that may be finalised at the time `now`, the earliest first."""
        with store_errors():
            found = await self._redis.zrangebyscore(self._due, "-inf", int(now.timestamp()), start=0, num=limit)
        return [Digest(each.decode()) for each in found]

    async def count(self) -> int:
        """Returns the number of submissions that are not final."""
        with store_errors():
            return int(await self._redis.zcard(self._due))
