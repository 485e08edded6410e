"""Counters of verdicts by kind, for display; may be off by one after a crash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis.asyncio import Redis

from protocol.redis.connection import RedisKeys, store_errors
from protocol.verdicts import Outcome


class VerdictCounts:
    """Number of verdicts by (outcome, reason).

    Args:
        redis: Client.
        keys: Of the pool's validators.
    """

    def __init__(self, redis: Redis, *, keys: RedisKeys) -> None:
        self._redis: Any = redis  # its commands are untyped in redis-py
        self._counts = keys.prefix + "counts"

    async def add(self, verdicts: Mapping[tuple[Outcome, int], int]) -> None:
        """Counts verdicts that the ledger accepted."""
        with store_errors():
            for (outcome, reason), count in verdicts.items():
                await self._redis.hincrby(self._counts, f"{int(outcome)}.{reason}", count)

    async def all(self) -> dict[tuple[Outcome, int], int]:
        """Returns the number of verdicts of each kind that occurred."""
        with store_errors():
            found: dict[bytes, bytes] = await self._redis.hgetall(self._counts)
        table = {}
        for name, count in found.items():
            outcome, _, reason = name.decode().partition(".")
            table[Outcome(int(outcome)), int(reason)] = int(count)
        return table
