"""Fingerprints of outputs, each assigned to the first work that had it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from redis.asyncio import Redis

from protocol.identifiers import Digest
from protocol.redis.connection import RedisKeys, store_errors

KEPT = timedelta(days=3)
"""Longer than any step is open. After this time, or a loss of Redis, only the other checks detect a copy."""


class SeenOutputs:
    """Fingerprints of the outputs of whole files.

    Args:
        redis: Client.
        keys: Of the pool's validators.
    """

    def __init__(self, redis: Redis, *, keys: RedisKeys) -> None:
        self._redis: Any = redis  # its commands are untyped in redis-py
        self._keys = keys

    async def is_copy(self, fingerprint: Digest, *, of: Digest) -> bool:
        """Returns whether other work has these outputs; otherwise assigns them to this work.

        Args:
            fingerprint: Hash of all outputs of a file.
            of: The work key.
        """
        name = self._keys.of("outputs", fingerprint)
        with store_errors():
            await self._redis.set(name, of, nx=True, ex=int(KEPT.total_seconds()))
            first = await self._redis.get(name)
        return first is not None and first.decode() != of
