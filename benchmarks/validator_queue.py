"""Measures two validators on one Redis with ten thousand queued items: the cost of taking and of waiting.

    python -m benchmarks.validator_queue

The worst case is measured too: one validator may not try the first four thousand items, so each of its queries passes
all of them. Real Redis; CPU seconds are those of Redis itself, which the two share.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from benchmarks.ending import end_in_order
from benchmarks.pool_under_load import redis_server
from protocol.identifiers import ZERO_ADDRESS, Digest, digest
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import SystemClock
from validator.domain.items import ItemKind
from validator.domain.submissions import SubmittedWork
from validator.queue.retry_policy import GiveUpReason, RetryPolicy, Step
from validator.queue.store import NewItem, WorkQueue
from validator.store.keys import keys_of
from validator.store.members import Condition, MemberId, Members, MemberState

WORKS = 10_000
ASIDE = 4_000
POOL = 1
PAST = Step(pause=timedelta(minutes=10), for_all=False, counted=True, gives_up=GiveUpReason.REQUIREMENT)


def main() -> None:
    """Measures and prints."""
    with redis_server() as url:
        asyncio.run(_measure(url))


async def _measure(url: str) -> None:
    redis = connect_redis(url)
    members = [Members(redis, keys=keys_of(POOL), validator=ZERO_ADDRESS, place=place) for place in ("one", "two")]

    async def present() -> None:
        for each in members:
            await each.announce(Condition(state=MemberState.WELL), since=timedelta())

    await present()
    one, two = (_queue(redis, each.me) for each in members)
    empty = await _memory(redis)
    began = await _cpu(redis)
    await one.put([_work(number) for number in range(WORKS)])
    print(f"put {WORKS:,}: {1e6 * (await _cpu(redis) - began) / WORKS:.0f} µs of Redis' CPU each, ", end="")
    print(f"{(await _memory(redis) - empty) / (1 << 20):.1f} MiB in all")

    began = await _cpu(redis)
    for number in range(ASIDE):
        if number % 100 == 0:
            await present()
        item = await one.take()
        if item is not None:
            await one.failed(item, PAST, code="no-calibration", why="no limits for it")
    print(f"take and give up {ASIDE:,}: {1e6 * (await _cpu(redis) - began) / ASIDE:.0f} µs each")

    began, looks = await _cpu(redis), 200
    for _ in range(looks):
        item = await one.take()
        if item is not None:
            await one.give_back(item)
    print(f"take past all {ASIDE:,} of them and give back: {1e6 * (await _cpu(redis) - began) / looks:.0f} µs each")

    began, done = await _cpu(redis), 0
    await present()
    while (item := await two.take()) is not None:
        done += await two.done(item)
    print(f"the other takes and settles all {done:,}: {1e6 * (await _cpu(redis) - began) / done:.0f} µs each")
    print(f"left: {await one.lengths()}")
    await redis.aclose()


def _queue(redis: Any, member: MemberId) -> WorkQueue:  # noqa: ANN401 - untyped in redis-py
    lease = timedelta(minutes=1)
    return WorkQueue(
        redis, keys=keys_of(POOL), clock=SystemClock(), lease=lease, member=member, retry_policy=RetryPolicy()
    )


def _work(number: int) -> NewItem:
    work = SubmittedWork(
        key=_sha(number),
        pool_id=POOL,
        node=ZERO_ADDRESS,
        run=_sha(WORKS),
        step=3,
        index=number,
        version=3,
        checkpoint=_sha(WORKS + 1),
        beacon_block=1,
        salt=_sha(WORKS + 2),
        groups=4,
        max_units=400,
        sha256=_sha(2 * WORKS + number),
        units=100,
        block=number,
    )
    return NewItem(work=work, kind=ItemKind.FIRST, deadline_s=number)


def _sha(number: int) -> Digest:
    return digest(f"0x{number:064x}")


async def _cpu(redis: Any) -> float:  # noqa: ANN401 - untyped in redis-py
    told = await redis.info("cpu")
    return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])


async def _memory(redis: Any) -> int:  # noqa: ANN401 - untyped in redis-py
    return int((await redis.info("memory"))["used_memory"])


if __name__ == "__main__":
    end_in_order()
    main()
