"""Script calls that share round trips: failed scripts, lost connections, cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from orchestrator.store.database import Database
from orchestrator.store.scripts import DeleteTask, WriteFacts
from protocol.errors import Unavailable
from protocol.identifiers import address
from protocol.redis.connection import RedisKeys, StoreUnavailable, connect_redis
from tests.kit.redis_proxy import Cut, CutLine, cut_line

NODE = address("0x" + "1" * 40)


@pytest.fixture
async def line(redis_url: str, tmp_path: Path) -> AsyncIterator[CutLine]:
    async with cut_line(redis_url, tmp_path) as made:
        yield made


@pytest.fixture
async def database(line: CutLine) -> AsyncIterator[Database]:
    """Returns a database with one batch in flight, so that concurrent calls form one batch."""
    redis = connect_redis(line.url, retries=0)
    yield Database(redis, keys=RedisKeys("pool-7"), connections=1)
    await redis.aclose()


async def delete_task(database: Database, task: str) -> bool:
    """Runs a script; returns whether it deleted the task."""
    return await database.run(DeleteTask(task=task, revision=None, now_ms=1, actor="boss")) == "deleted"


async def add_tasks(redis: Redis, *tasks: str) -> None:
    for task in tasks:
        await redis.hset(f"muster:{{pool-7}}:task:{task}", "name", "x")


def scripts_seen(line: CutLine) -> int:
    return sum(command[0] == b"EVALSHA" for command in line.seen)


async def test_each_pipelined_call_gets_its_own_answer(database: Database, redis: Redis) -> None:
    await add_tasks(redis, "b", "d")
    answers = await asyncio.gather(*(delete_task(database, task) for task in "abcd"))
    assert answers == [0, 1, 0, 1]


async def test_a_failing_script_fails_only_its_own_call(database: Database, redis: Redis) -> None:
    await add_tasks(redis, "a", "b")
    await redis.set(f"muster:{{pool-7}}:node:{NODE}", "not a hash")
    broken = database.run(WriteFacts(address=NODE, facts={"ip": "192.0.2.1"}))
    answers = await asyncio.gather(
        delete_task(database, "a"), broken, delete_task(database, "b"), return_exceptions=True
    )
    assert answers[0] == answers[2] == 1
    assert isinstance(answers[1], StoreUnavailable)


async def test_a_redis_without_the_scripts_gets_them_again_and_each_call_runs_once(
    database: Database, redis: Redis, line: CutLine
) -> None:
    await add_tasks(redis, "a", "b")
    for _ in range(2):
        await redis.script_flush()
        await add_tasks(redis, "a", "b")
        assert await asyncio.gather(*(delete_task(database, task) for task in "ab")) == [1, 1]
    assert scripts_seen(line) == 8


@pytest.mark.parametrize("cut", Cut)
async def test_a_broken_connection_fails_unanswered_calls_and_the_next_call_succeeds(
    database: Database, redis: Redis, line: CutLine, cut: Cut
) -> None:
    await delete_task(database, "warm-up")
    await add_tasks(redis, "a", "b", "c")
    line.break_at(1, cut)
    answers = await asyncio.gather(*(delete_task(database, task) for task in "abc"), return_exceptions=True)
    assert all(isinstance(answer, Unavailable) and answer.retryable for answer in answers)
    # The batch is one write: Redis ran the scripts before the cut. No caller gets the answer of another.
    again = await asyncio.gather(*(delete_task(database, task) for task in "abc"))
    assert again == [0, 1 if cut is Cut.BEFORE else 0, 1]


async def test_a_cancelled_call_does_not_affect_others(database: Database, redis: Redis) -> None:
    await add_tasks(redis, "a", "b")
    calls = [asyncio.create_task(delete_task(database, task)) for task in "ab"]
    await asyncio.sleep(0)
    calls[0].cancel()
    assert await calls[1] == 1
    assert await delete_task(database, "a") == 0


async def test_concurrent_calls_share_round_trips(database: Database, line: CutLine) -> None:
    await delete_task(database, "warm-up")
    before = line.reads
    assert await asyncio.gather(*(delete_task(database, f"{number}") for number in range(300))) == [0] * 300
    assert line.reads - before < 30
