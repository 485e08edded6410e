import asyncio
from datetime import timedelta

import pytest

from protocol.runtime.clock import ManualClock
from protocol.runtime.waiting import finish_with, run_unless, sleep_or, wait_first

SECOND = timedelta(seconds=1)


async def test_wait_first_returns_with_the_first_and_cancels_only_its_own_tasks() -> None:
    clock, event = ManualClock(), asyncio.Event()
    cancelled = False

    async def other() -> None:
        nonlocal cancelled
        try:
            await clock.sleep(SECOND)
        except asyncio.CancelledError:
            cancelled = True
            raise

    task = asyncio.ensure_future(clock.sleep(2 * SECOND))
    waiting = asyncio.ensure_future(wait_first(event.wait(), other(), tasks=[task]))
    await asyncio.sleep(0)
    event.set()
    await waiting
    assert cancelled
    assert not task.done()
    await clock.turn(2 * SECOND)
    await task


async def test_a_sleep_distinguishes_an_event_from_a_timeout() -> None:
    clock, event = ManualClock(), asyncio.Event()
    sleeping = asyncio.ensure_future(sleep_or(clock, SECOND, event))
    await clock.turn(SECOND)
    assert not await sleeping
    sleeping = asyncio.ensure_future(sleep_or(clock, SECOND, event))
    await asyncio.sleep(0)
    event.set()
    assert await sleeping


async def test_work_is_cancelled_when_the_event_comes_first() -> None:
    clock, stop = ManualClock(), asyncio.Event()

    async def work(pause: timedelta) -> str:
        await clock.sleep(pause)
        return "done"

    running = asyncio.ensure_future(run_unless(stop, work(SECOND)))
    await clock.turn(SECOND)
    assert await running == "done"
    running = asyncio.ensure_future(run_unless(stop, work(SECOND)))
    await asyncio.sleep(0)
    stop.set()
    assert await running is None


async def test_errors_of_the_awaited_work_are_raised() -> None:
    async def work() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await run_unless(asyncio.Event(), work())


async def test_a_task_ends_with_its_own_result_or_with_the_error_of_another_task() -> None:
    clock = ManualClock()

    async def work() -> str:
        await clock.sleep(2 * SECOND)
        return "done"

    async def fail() -> None:
        await clock.sleep(SECOND)
        raise ValueError("broken")

    for other, outcome in ((clock.sleep(SECOND), "done"), (fail(), "broken")):
        main, helper = asyncio.ensure_future(work()), asyncio.ensure_future(other)
        ending = asyncio.ensure_future(finish_with(main, [helper]))
        await clock.turn(SECOND)
        await clock.turn(SECOND)
        if outcome == "done":
            assert await ending == "done"
        else:
            with pytest.raises(ValueError, match="broken"):
                await ending
