"""Migrations of the orchestrator's data in Redis from older schema versions (docs/compatibility.md)."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

from redis.asyncio import Redis

from protocol.redis.connection import RedisKeys
from protocol.redis.schema import Migration

_NODES_AT_ONCE = 500


async def index_assignments(redis: Redis, keys: RedisKeys) -> None:
    """Lists the nodes' present assignments in the indexes of the pool, of their task and of their node.

    Releases with schema version 1 wrote no indexes. Assignments that had ended before stay out of the listings.
    """
    last = b""
    while True:
        low = "-" if not last else b"(" + last
        nodes = await _answer(redis.zrangebylex(keys.of("nodes"), low, "+", start=0, num=_NODES_AT_ONCE))
        for node in nodes:
            held = await _answer(redis.hget(keys.of("node", node.decode()), "aid"))
            if held:
                await _index(redis, keys, node=node.decode(), assignment=held.decode())
        if len(nodes) < _NODES_AT_ONCE:
            return
        last = nodes[-1]


async def _index(redis: Redis, keys: RedisKeys, *, node: str, assignment: str) -> None:
    task, assigned = await _answer(redis.hmget(keys.of("assignment", assignment), ["task", "assigned"]))
    if not task or not assigned:
        return
    entry = f"{int(assigned):014d}-{assignment}"  # the form of `assignment_entry` in prelude.lua
    for owner in ((), ("task", task.decode()), ("node", node)):
        await _answer(redis.zadd(keys.of("assignments", *owner), {entry: 0}))


async def _answer(call: object) -> Any:  # noqa: ANN401 - redis-py types answers as those of its synchronous client, too
    return await cast("Awaitable[Any]", call)


MIGRATIONS: dict[int, Migration] = {1: index_assignments}
"""Migration from each older schema version to the next."""
