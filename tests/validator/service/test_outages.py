"""Outages of real systems: Redis is killed and restarted, the chain is disconnected, the store misbehaves.

No item is lost, judged twice, or blamed on the node.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ledger.events.types import VerdictGiven
from protocol.errors import MusterError
from protocol.identifiers import Digest
from protocol.redis.connection import StoreUnavailable
from protocol.verdicts import Outcome
from tests.kit.outages import RestartedRedis, wire_to
from tests.kit.validators import SENDING, Host, PoolWithValidators, ValidatorUnderTest
from tests.kit.world import POOL
from tests.validator.service.reaching import reachable

LEASE = timedelta(seconds=31)


async def given(pool: PoolWithValidators) -> Counter[Digest]:
    """Returns the number of verdicts on each work."""
    return Counter(each.key for each in await (await pool.ledger()).history(VerdictGiven, pool_id=POOL))


async def left(validator: ValidatorUnderTest) -> tuple[int, int]:
    """Returns the number of items in the queue, and the number of parked items."""
    lengths = await validator.dependencies.queue.lengths()
    return lengths.waiting + lengths.ready + lengths.in_hand, lengths.parked


async def rounds(pool: PoolWithValidators, *validators: ValidatorUnderTest, count: int, pause: timedelta) -> None:
    """Runs each validator in turn repeatedly; errors of a system that is down are ignored."""
    for _ in range(count):
        for each in validators:
            with suppress(MusterError):
                await each.judge()
        await pool.turn(pause)


# Redis


@pytest.fixture(params=[True, False], ids=["append-only", "no-persistence"])
def own_redis(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str) -> Iterator[RestartedRedis]:
    """Runs a Redis for the validators alone, with and without its append-only file."""
    server = RestartedRedis(tmp_path, appendonly=request.param)
    server.start()
    yield server
    server.kill()


async def test_killing_and_restarting_redis_loses_no_work_and_causes_no_second_verdict(
    pool: PoolWithValidators, own_redis: RestartedRedis, request: pytest.FixtureRequest
) -> None:
    kept = "append-only" in request.node.name
    pool.url, elsewhere = own_redis.url, pool.url
    first, second = pool.validator(), pool.validator("second")
    pool.url = elsewhere
    keys = [await pool.submit(), await pool.submit()]
    await second.read()
    await first.read()
    await first.loops.judging.round()
    assert first.loops.verdicts.next(most=1), "one verdict is lost on the way, the other waits for a sender"
    keys += [await pool.submit() for _ in range(3)]
    await second.read()
    parked, held = await first.dependencies.queue.take(), await first.dependencies.queue.take()  # and a third one waits
    assert parked is not None
    assert held is not None
    await first.dependencies.queue.park(parked, code="no-limits", why="a person looks", hint="")

    own_redis.kill()
    for each in (first, second):
        for work in (each.loops.intake.round, each.loops.judging.round):
            with pytest.raises(StoreUnavailable):
                await work()
    with pytest.raises(StoreUnavailable):
        await first.loops.verdict_senders[0].round()
    assert sum((await given(pool)).values()) == 1, "transactions already sent were mined"
    keys.append(await pool.submit())
    own_redis.start()

    await rounds(pool, first, second, count=3, pause=LEASE)
    if kept:
        assert (await left(first))[1] == 1, "a person still has to decide"
        assert await first.dependencies.queue.unpark(parked.id)
        await rounds(pool, first, second, count=1, pause=LEASE)
    assert await given(pool) == Counter(keys)
    assert {(await pool.work(key)).outcome for key in keys} == {Outcome.ACCEPTED}
    assert await left(first) == (0, 0)


# The chain


@pytest.mark.parametrize("how", ["between two questions", "when a verdict has come there, and nobody heard"])
async def test_a_minute_without_the_chain_only_delays_verdicts(pool: PoolWithValidators, how: str) -> None:
    async with wire_to(pool.world.url) as wire:
        host = Host(chain_url=f"http://127.0.0.1:{wire.port}", sending=replace(SENDING, deadline=timedelta(seconds=5)))
        cut = pool.validator(attempts=2, host=host)
        keys = [await pool.submit()]
        await cut.read()
        await cut.loops.judging.round()
        keys.append(await pool.submit())
        await cut.read()
        if how == "between two questions":
            wire.cut()
        else:
            wire.cut_after = b"eth_sendRawTransaction"
        await rounds(pool, cut, count=3, pause=timedelta(seconds=20))
        keys.append(await pool.submit())
        assert (await left(cut))[1] == 0, "temporary errors are not parked"
        await wire.join()
        await rounds(pool, cut, count=3, pause=LEASE)
        await cut.dependencies.chain.aclose()
    assert await given(pool) == Counter(keys)
    assert {(await pool.work(key)).outcome for key in keys} == {Outcome.ACCEPTED}
    assert await left(cut) == (0, 0)


# The store


Mood = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: %d\r\n\r\n"
FILE = b"an honest file"


async def _fails(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n")


async def _is_silent(_: bytes, __: asyncio.StreamWriter) -> None:
    """Never answers."""


async def _stops(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD % len(FILE) + FILE[:5])


async def _hangs_up(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD % len(FILE) + FILE[:5])
    await writer.drain()
    writer.transport.abort()


async def _drips(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD % len(FILE))
    for byte in FILE:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.01)


async def _lies(_: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD % len(FILE) + FILE.upper())


@pytest.mark.parametrize(
    ("mood", "judged", "parked"),
    [
        (_fails, False, False),
        (_is_silent, False, False),
        (_stops, False, False),
        (_hangs_up, False, False),
        (_drips, True, False),
        (_lies, False, True),
    ],
    ids=["500", "silent", "stops", "hangs-up", "slow", "other-bytes"],
)
async def test_validators_wait_out_any_failure_of_the_store_and_never_blame_a_node(
    pool: PoolWithValidators, mood: Mood, *, judged: bool, parked: bool
) -> None:
    async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
        asked = request.startswith(b"GET /v1/blobs/")
        if asked:
            await mood(request, writer)
        return asked

    async with reachable(pool) as (url, wire):
        patient = timedelta(seconds=2)  # for the store's next sign of life: a busy machine may use up one of them
        validator = pool.validator(attempts=2, host=Host(orchestrator=url, store_timeout=patient))
        key = await pool.submit(FILE)
        wire.answer = answer
        await rounds(pool, validator, count=3, pause=timedelta(minutes=1))
        assert await given(pool) == (Counter([key]) if judged else Counter())
        assert await left(validator) == (int(not judged and not parked), int(parked))
        wire.answer = None
        if parked:
            [item] = await validator.dependencies.queue.parked()
            assert await validator.dependencies.queue.unpark(item.item.id)
        await rounds(pool, validator, count=4, pause=timedelta(minutes=1))
        await validator.dependencies.remote.aclose()
    assert await given(pool) == Counter([key])
    assert (await pool.work(key)).outcome is Outcome.ACCEPTED
