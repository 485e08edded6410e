"""Store of the fingerprints of examined files, each with the first work that had the same outputs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from redis.asyncio import Redis

from protocol.identifiers import Digest
from protocol.redis.connection import RedisKeys, store_errors

KEPT = timedelta(days=3)
"""Time for which fingerprints are stored; no training step accepts files for so long.

After this time, or after a loss of Redis' data, only the other checks detect a copied file.
"""


class SeenOutputs:
    """Fingerprints of the outputs of rollout files that validators on this Redis have examined.

    Args:
        redis: Redis client.
        keys: Redis keys of the pool's validators.
    """

    def __init__(self, redis: Redis, *, keys: RedisKeys) -> None:
        self._redis: Any = redis  # its commands are untyped in redis-py
        self._keys = keys

    async def is_copy(self, fingerprint: Digest, *, of: Digest) -> bool:
        """Returns True if other work had these outputs first; otherwise records this work as the first one.

        Args:
            fingerprint: Fingerprint of all outputs of a file.
            of: Key of the work that is examined.

        Raises:
            StoreUnavailable: Redis is down.
        """
        name = self._keys.of("outputs", fingerprint)
        with store_errors():
            await self._redis.set(name, of, nx=True, ex=int(KEPT.total_seconds()))
            first = await self._redis.get(name)
        return first is not None and first.decode() != of
