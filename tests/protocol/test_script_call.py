"""Typed script calls and leader leases against a real Redis."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from redis.asyncio import Redis

from protocol.redis.connection import RedisKeys
from protocol.redis.leader_lease import LeaderLease
from protocol.redis.script_call import ScriptCall, ScriptRunner, script_of
from tests.protocol.scripts import EchoNames, EchoTypes, EmptyReply, Misplaced, TakenName, Types

LARGE = 1_763_900_000_123_456
"""A current time in microseconds, which Lua would format with an exponent."""


@pytest.fixture
def scripts(redis: Redis) -> ScriptRunner:
    return ScriptRunner(redis, keys=RedisKeys("7"))


async def test_arguments_and_replies_keep_their_types(scripts: ScriptRunner, redis: Redis) -> None:
    fields = {"a": "1", "b": ""}
    call = EchoTypes(
        number=LARGE,
        absent=None,
        fraction=0.5,
        flag=False,
        text="n",
        missing_text=None,
        raw=b"\xff\x00",
        fields=fields,
    )
    expected = Types(number=LARGE, text=f"n{LARGE + 1}", flag=True, raw=b"\xff\x00", names=("a", "b"), pairs=fields)
    assert await scripts.run(call) == expected
    assert await redis.get("muster:{7}:number") == str(LARGE).encode()


async def test_omitted_fields_of_a_reply_are_empty(scripts: ScriptRunner) -> None:
    assert await scripts.run(EmptyReply()) == Types(number=0, text="", flag=False, raw=b"", names=(), pairs={})


@pytest.mark.parametrize("names", [(), ("one",), ("name",) * 20_000])
async def test_a_tuple_may_have_any_length(scripts: ScriptRunner, names: tuple[str, ...]) -> None:
    assert await scripts.run(EchoNames(names=names)) == tuple(map(len, names))


async def test_a_redis_without_the_scripts_gets_them_again(scripts: ScriptRunner, redis: Redis) -> None:
    for _ in range(2):
        assert await scripts.run(EchoNames(names=("a",))) == (1,)
        await redis.script_flush()
    calls = [EchoNames(names=("a",) * length) for length in range(3)]
    assert await scripts.run_many(calls) == [(), (1,), (1, 1)]


@pytest.mark.parametrize(("kind", "error"), [(Misplaced, TypeError), (TakenName, ValueError)])
def test_a_call_class_that_lua_would_misinterpret_is_refused(
    kind: type[ScriptCall[int]], error: type[Exception]
) -> None:
    with pytest.raises(error):
        script_of(kind)


async def test_a_leader_lease_has_one_holder_and_a_new_value_with_each_change(scripts: ScriptRunner) -> None:
    first, second = (LeaderLease(scripts, "sweep", lifetime=timedelta(seconds=10)) for _ in range(2))
    assert await first.hold()
    value = first.value
    assert not await second.hold()
    assert await first.hold()
    assert first.value == value, "a renewal changes nothing"
    await first.give_up()
    assert not first.value
    assert await second.hold()
    assert second.value.endswith("#2")
    assert not await first.hold()


async def test_a_holder_that_lost_the_answer_gets_a_new_value(scripts: ScriptRunner) -> None:
    lease = LeaderLease(scripts, "sweep", lifetime=timedelta(seconds=10))
    assert await lease.hold()
    lost, lease.value = lease.value, ""
    assert await lease.hold()
    assert lease.value != lost


async def test_overlapping_rounds_share_the_leader_lease(scripts: ScriptRunner) -> None:
    lease = LeaderLease(scripts, "sweep", lifetime=timedelta(seconds=10))
    assert await asyncio.gather(*(lease.hold() for _ in range(5))) == [True] * 5
    assert lease.value.endswith("#1")
