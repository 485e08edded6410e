"""Names of an orchestrator's keys in Redis, and the version of the data."""

from __future__ import annotations

from protocol.redis.connection import RedisKeys

SCHEMA = 2
"""Version of the data in Redis (docs/compatibility.md)."""


def pool_keys(pool_id: int) -> RedisKeys:
    """Returns the Redis keys that all orchestrators of a pool share, with the prefix `muster:{pool-POOL}:`."""
    return RedisKeys(f"pool-{pool_id}")
