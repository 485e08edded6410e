"""Earliest times at which work can be finalised, so that work which can't be due is not checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from redis.asyncio import Redis

from protocol.identifiers import Digest
from protocol.redis.connection import RedisKeys, store_errors

_TOGETHER = 1000


class Deadlines:
    """Work keys by the Unix second from which they may be due.

    Args:
        redis: Client.
        keys: Of the pool's validators.
    """

    def __init__(self, redis: Redis, *, keys: RedisKeys) -> None:
        self._redis: Any = redis  # its commands are untyped in redis-py
        self._due = keys.prefix + "due"

    async def put(self, due: Mapping[Digest, int]) -> None:
        """Sets the times of these entries, and replaces earlier ones."""
        items = list(due.items())
        for start in range(0, len(items), _TOGETHER):
            with store_errors():
                await self._redis.zadd(self._due, dict(items[start : start + _TOGETHER]))

    async def forget(self, keys: Iterable[Digest]) -> None:
        """Removes these entries."""
        listed = list(keys)
        for start in range(0, len(listed), _TOGETHER):
            with store_errors():
                await self._redis.zrem(self._due, *listed[start : start + _TOGETHER])

    async def due(self, *, now: datetime, limit: int) -> list[Digest]:
        """Returns work that may be due, oldest first."""
        with store_errors():
            found = await self._redis.zrangebyscore(self._due, "-inf", int(now.timestamp()), start=0, num=limit)
        return [Digest(each.decode()) for each in found]

    async def count(self) -> int:
        """Returns the number of pieces of work that are not final."""
        with store_errors():
            return int(await self._redis.zcard(self._due))
