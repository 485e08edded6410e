"""The schema version of a service's data in Redis: first start, migration, refusal of newer data."""

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta

import pytest
from fastapi import FastAPI
from redis.asyncio import Redis

from protocol.errors import MusterError
from protocol.http.serving.service import create_service, serve
from protocol.redis import schema
from protocol.redis.connection import RedisKeys, StoreUnavailable, connect_redis
from protocol.redis.schema import Migration, NewerSchema, ensure_schema

KEYS = RedisKeys("schema-test")
VERSION = KEYS.of("schema-version")


async def append(redis: Redis, keys: RedisKeys, step: str) -> None:
    await redis.append(keys.of("steps"), step)


def appending(*steps: int) -> dict[int, Migration]:
    def one(step: int) -> Migration:
        async def migrate(redis: Redis, keys: RedisKeys) -> None:
            await append(redis, keys, f"{step},")

        return migrate

    return {step: one(step) for step in steps}


async def ensure(redis: Redis, version: int) -> None:
    await ensure_schema(redis, KEYS, service="a test", version=version, migrations=appending(1, 2, 3))


async def steps(redis: Redis) -> bytes | None:
    found = await redis.get(KEYS.of("steps"))
    assert not isinstance(found, str)
    return found


async def test_a_first_start_stores_the_version_and_a_second_changes_nothing(redis: Redis) -> None:
    for _ in range(2):
        await ensure(redis, 1)
        assert await redis.get(VERSION) == b"1"
    assert await steps(redis) is None


@pytest.mark.parametrize(("stored", "ran"), [(None, b"1,2,3,"), (2, b"2,3,"), (4, None)])
async def test_older_data_is_migrated_step_by_step(redis: Redis, stored: int | None, ran: bytes | None) -> None:
    if stored is not None:
        await redis.set(VERSION, stored)
    await ensure(redis, 4)
    assert (await steps(redis), await redis.get(VERSION)) == (ran, b"4")


async def test_newer_data_is_refused_and_not_touched(redis: Redis) -> None:
    await redis.set(VERSION, 5)
    with pytest.raises(NewerSchema, match="schema version 5, and this release reads only 4") as refused:
        await ensure(redis, 4)
    assert "a copy of Redis from before the upgrade" in refused.value.hint
    assert (await redis.get(VERSION), await steps(redis)) == (b"5", None)


async def test_a_migration_that_failed_is_continued_at_the_next_start(redis: Redis) -> None:
    async def fail(_redis: Redis, _keys: RedisKeys) -> None:
        raise ConnectionError("lost")

    with pytest.raises(StoreUnavailable):
        await ensure_schema(redis, KEYS, service="a test", version=3, migrations=appending(1) | {2: fail})
    assert await redis.get(VERSION) == b"2"
    await ensure(redis, 3)
    assert (await steps(redis), await redis.get(VERSION)) == (b"1,2,", b"3")


async def test_instances_that_start_together_migrate_once(redis: Redis) -> None:
    await asyncio.gather(*(ensure(redis, 4) for _ in range(5)))
    assert await steps(redis) == b"1,2,3,"


async def test_an_instance_waits_a_limited_time_for_another(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "MIGRATION_TIMEOUT", schema.MIGRATION_TIMEOUT / 10_000)
    await redis.set(KEYS.of("schema-lock"), "another")
    with pytest.raises(StoreUnavailable, match="another instance of a test migrates its data"):
        await ensure(redis, 1)


async def test_after_a_kill_the_next_start_continues_within_the_life_of_the_lock(
    redis: Redis, redis_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "LOCK_LIFE", timedelta(seconds=0.9))
    migrating = """
import asyncio, sys
from datetime import timedelta
from protocol.redis import schema
from protocol.redis.connection import RedisKeys, connect_redis
schema.LOCK_LIFE = timedelta(seconds=0.9)
async def endless(redis, keys):
    await redis.append(keys.of("steps"), "begun,")
    await asyncio.sleep(600)
asyncio.run(schema.ensure_schema(
    connect_redis(sys.argv[1]), RedisKeys("schema-test"), service="a test", version=2, migrations={1: endless}
))
"""
    holder = await asyncio.create_subprocess_exec(sys.executable, "-c", migrating, redis_server)
    try:
        while await steps(redis) is None:  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.02)
        waiting = asyncio.create_task(ensure(redis, 4))
        await asyncio.sleep(2)  # longer than the lock lives: its holder renews it
        assert not waiting.done()
    finally:
        holder.kill()
        await holder.wait()
    await asyncio.wait_for(waiting, 30)
    assert (await steps(redis), await redis.get(VERSION)) == (b"begun,1,2,3,", b"4")


async def test_a_migration_that_lost_the_lock_stops(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "LOCK_LIFE", timedelta(seconds=0.3))

    async def robbed(redis: Redis, keys: RedisKeys) -> None:
        await redis.set(keys.of("schema-lock"), "another")
        await asyncio.sleep(60)

    with pytest.raises(StoreUnavailable, match="lost the lock"):
        await ensure_schema(redis, KEYS, service="a test", version=2, migrations={1: robbed})
    assert await redis.get(VERSION) is None
    assert await redis.get(KEYS.of("schema-lock")) == b"another"


async def test_a_redis_that_is_down_is_reported() -> None:
    redis = connect_redis("redis://127.0.0.1:1", retries=0)
    with pytest.raises(StoreUnavailable):
        await ensure(redis, 1)
    await redis.aclose()


async def test_a_service_that_refuses_to_start_says_why() -> None:
    class Refusing:
        async def __aenter__(self) -> None:
            raise NewerSchema("the data is newer", hint="start the newer release")

        async def __aexit__(self, *_: object) -> None: ...

    def refuse(_app: FastAPI) -> Refusing:
        return Refusing()

    with pytest.raises(MusterError, match="the data is newer"):
        await serve(create_service("test", version="1", lifespan=refuse))
