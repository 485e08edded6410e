"""Background loops survive errors, report their state, and end on request."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta

import pytest

from discovery.loops import patient
from protocol.redis.connection import connect_redis, place_of, store_errors
from protocol.runtime.clock import ManualClock
from protocol.runtime.logs import configure_logs
from protocol.runtime.loops import BackgroundLoops, LoopStalled

SECOND = timedelta(seconds=1)


async def test_a_crashed_loop_restarts_and_other_loops_continue(clock: ManualClock) -> None:
    counts = {"bad": 0, "good": 0}

    async def bad() -> None:
        counts["bad"] += 1
        if counts["bad"] < 3:
            raise RuntimeError("broken")

    async def good() -> None:
        counts["good"] += 1

    loops = BackgroundLoops(clock=clock)
    loops.add("bad", bad, every=SECOND)
    loops.add("good", good, every=SECOND)
    async with loops:
        for _ in range(88):
            await clock.turn(SECOND / 8)
        await loops.check()
        assert counts["bad"] > 5
        assert counts["good"] == 12
        state = loops.states()[0]
        assert (state.crashes, state.crashes_in_a_row, state.last_error) == (2, 0, "RuntimeError")


async def test_pauses_after_crashes_grow_to_a_bound(clock: ManualClock) -> None:
    moments: list[float] = []

    async def bad() -> None:
        moments.append(clock.monotonic())
        raise RuntimeError

    loops = BackgroundLoops(clock=clock)
    loops.add("bad", bad)
    async with loops:
        for _ in range(3000):
            await clock.turn(SECOND / 10)
        with pytest.raises(LoopStalled, match="in a row"):
            await loops.check()
    pauses = [after - before for before, after in itertools.pairwise(moments)]
    assert pauses[0] <= 0.6
    assert max(pauses) <= 30.1
    assert min(pauses[8:]) >= 14.9


async def test_a_hanging_loop_is_reported(clock: ManualClock) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    loops = BackgroundLoops(clock=clock)
    loops.add("hanging", hang, every=SECOND, stalled_after=5 * SECOND)
    async with loops:
        await clock.turn(5 * SECOND)
        await loops.check()
        await clock.turn(SECOND)
        with pytest.raises(LoopStalled, match="hanging"):
            await loops.check()
        loops.beat("hanging")
        await loops.check()


async def test_a_wake_up_ends_a_loops_pause_but_not_the_one_after_a_crash(clock: ManualClock) -> None:
    rounds, news, broken = 0, asyncio.Event(), False

    async def work() -> None:
        nonlocal rounds
        rounds += 1
        if broken:
            raise RuntimeError

    loops = BackgroundLoops(clock=clock)
    loops.add("eager", work, every=60 * SECOND, woken=news)
    async with loops:
        await clock.turn(SECOND)
        assert rounds == 1
        news.set()
        await clock.turn(SECOND / 10)
        assert rounds == 2
        await clock.turn(59 * SECOND)
        assert rounds == 2
        await clock.turn(2 * SECOND)
        assert rounds == 3
        broken = True
        news.set()
        await clock.turn(SECOND / 10)
        news.set()
        await clock.turn(SECOND / 10)
        assert rounds == 4
        await clock.turn(SECOND)
        assert rounds >= 5


async def test_leaving_the_context_cancels_loops_and_lets_them_clean_up(clock: ManualClock) -> None:
    cleaned = False

    async def work() -> None:
        nonlocal cleaned
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned = True

    loops = BackgroundLoops(clock=clock)
    loops.add("tidy", work)
    async with loops:
        await clock.turn(SECOND)
    assert cleaned


def test_two_loops_with_the_same_name_are_refused(clock: ManualClock) -> None:
    async def work() -> None: ...

    loops = BackgroundLoops(clock=clock)
    loops.add("same", work)
    with pytest.raises(ValueError, match="same"):
        loops.add("same", work)


@pytest.mark.parametrize("instead", [None, TimeoutError("a library's own")])
async def test_a_loop_whose_work_suppresses_its_cancellation_ends_too(
    instead: Exception | None, clock: ManualClock
) -> None:
    async def swallow() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if instead is not None:
                raise instead from None

    loops = BackgroundLoops(clock=clock, drain=timedelta(seconds=60))
    loops.add("deaf", swallow)
    async with loops:
        await clock.turn(SECOND)
        (task,) = loops._tasks
    assert task.done()


async def test_an_unreachable_redis_is_reported_without_its_password(capsys: pytest.CaptureFixture[str]) -> None:
    redis = connect_redis("redis://:hunter2@127.0.0.1:1/0", retries=0)

    async def work() -> None:
        with store_errors():
            await redis.ping()

    configure_logs(level="INFO")
    attempt = patient(work, redis_place=place_of(redis))
    await attempt()
    await redis.aclose()
    said = capsys.readouterr()
    assert "redis-unavailable" in said.out + said.err
    assert "127.0.0.1:1" in said.out + said.err
    assert "ledger-unavailable" not in said.out + said.err
    assert "hunter2" not in said.out + said.err
