"""Counters of verdicts by outcome and reason, for `muster validator status`; after a crash, some may be uncounted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis.asyncio import Redis

from protocol.redis.connection import RedisKeys, store_errors
from protocol.verdicts import Outcome


class VerdictCounts:
    """Numbers of verdicts by outcome and reason code, of all validators on this Redis.

    Args:
        redis: Redis client.
        keys: Redis keys of the pool's validators.
    """

    def __init__(self, redis: Redis, *, keys: RedisKeys) -> None:
        self._redis: Any = redis  # its commands are untyped in redis-py
        self._counts = keys.prefix + "counts"

    async def add(self, verdicts: Mapping[tuple[Outcome, int], int]) -> None:
        """Adds numbers of verdicts that the ledger accepted, by (outcome, reason code)."""
        with store_errors():
            for (outcome, reason), count in verdicts.items():
                await self._redis.hincrby(self._counts, f"{int(outcome)}.{reason}", count)

    async def all(self) -> dict[tuple[Outcome, int], int]:
        """Returns the number of verdicts by (outcome, reason code); pairs without verdicts are absent."""
        with store_errors():
            found: dict[bytes, bytes] = await self._redis.hgetall(self._counts)
        table = {}
        for name, count in found.items():
            outcome, _, reason = name.decode().partition(".")
            table[Outcome(int(outcome)), int(reason)] = int(count)
        return table
