"""Retries end, jitter stays below its ceiling and deadlines hold, on a manual clock."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from protocol.errors import Forbidden, RateLimited, Unavailable
from protocol.runtime.clock import ManualClock
from protocol.runtime.retry import Backoff, Deadline, DeadlinePassed, retry

SECOND = timedelta(seconds=1)


class Flaky:
    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


async def turned_until_done(clock: ManualClock, task: asyncio.Task[str]) -> float:
    began = clock.monotonic()
    for _ in range(10_000):
        if task.done():
            break
        await clock.turn(timedelta(milliseconds=100))
    return clock.monotonic() - began


async def test_retryable_errors_are_retried(clock: ManualClock) -> None:
    call = Flaky(Unavailable("a"), Unavailable("b"))
    task = asyncio.create_task(retry(call, clock=clock))
    await turned_until_done(clock, task)
    assert (await task, call.calls) == ("done", 3)


async def test_other_errors_are_not_retried(clock: ManualClock) -> None:
    call = Flaky(Forbidden("no"), Unavailable("never seen"))
    with pytest.raises(Forbidden):
        await retry(call, clock=clock)
    assert call.calls == 1


async def test_attempts_are_bounded_and_the_last_error_is_raised(clock: ManualClock) -> None:
    call = Flaky(*(Unavailable(str(number)) for number in range(9)))
    task = asyncio.create_task(retry(call, clock=clock, backoff=Backoff(attempts=4)))
    await turned_until_done(clock, task)
    with pytest.raises(Unavailable, match="3"):
        await task
    assert call.calls == 4


async def test_delays_are_jittered_below_a_growing_ceiling(clock: ManualClock) -> None:
    waits: list[timedelta] = []
    for _ in range(20):
        call = Flaky(*(Unavailable("x") for _ in range(5)))
        backoff = Backoff(attempts=6, first=SECOND, most=4 * SECOND)
        task = asyncio.create_task(
            retry(call, clock=clock, backoff=backoff, on_retry=lambda _, wait: waits.append(wait))
        )
        await turned_until_done(clock, task)
        await task
    ceilings = [1, 2, 4, 4, 4] * 20
    assert all(0 <= wait.total_seconds() <= ceiling for wait, ceiling in zip(waits, ceilings, strict=True))
    assert len(set(waits)) > 90


async def test_retry_after_of_the_peer_is_waited_for(clock: ManualClock) -> None:
    call = Flaky(RateLimited("slow down", retry_after=30 * SECOND))
    task = asyncio.create_task(retry(call, clock=clock))
    assert await turned_until_done(clock, task) >= 30
    assert await task == "done"


async def test_a_retry_after_beyond_the_deadline_ends_the_attempts(clock: ManualClock) -> None:
    call = Flaky(RateLimited("go away", retry_after=timedelta(days=400)))
    with pytest.raises(RateLimited):
        await retry(call, clock=clock)


async def test_no_delay_exceeds_the_deadline(clock: ManualClock) -> None:
    call = Flaky(*(RateLimited("busy", retry_after=4 * SECOND) for _ in range(9)))
    deadline = Deadline.after(10 * SECOND, clock=clock)
    task = asyncio.create_task(retry(call, clock=clock, deadline=deadline, backoff=Backoff(attempts=99)))
    assert await turned_until_done(clock, task) <= 10
    with pytest.raises(RateLimited):
        await task
    assert 2 <= call.calls <= 3


async def test_work_that_exceeds_its_deadline_is_cancelled(clock: ManualClock) -> None:
    cancelled = asyncio.Event()

    async def forever() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return "never"

    task = asyncio.create_task(Deadline.after(SECOND, clock=clock).bound(forever(), what="waiting"))
    await clock.turn(SECOND)
    with pytest.raises(DeadlinePassed, match="waiting"):
        await task
    assert cancelled.is_set()


async def test_cancelling_the_waiter_cancels_the_work(clock: ManualClock) -> None:
    work = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(Deadline.after(SECOND, clock=clock).bound(work, what="waiting"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.cancelled()


async def test_work_within_its_deadline_returns_its_result_or_error(clock: ManualClock) -> None:
    deadline = Deadline.after(SECOND, clock=clock)
    assert await deadline.bound(Flaky()(), what="x") == "done"
    with pytest.raises(Forbidden):
        await deadline.bound(Flaky(Forbidden("no"))(), what="x")
    assert deadline.remaining == SECOND
    await clock.turn(2 * SECOND)
    assert (deadline.passed, deadline.remaining) == (True, timedelta())
