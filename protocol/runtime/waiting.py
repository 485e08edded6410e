"""Waits for the first of several events or tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from datetime import timedelta
from typing import Any, TypeVar

from protocol.runtime.clock import Clock

T = TypeVar("T")


async def wait_first(*waits: Coroutine[Any, Any, Any], tasks: Iterable[asyncio.Future[Any]] = ()) -> None:
    """Returns as soon as one of the coroutines or tasks is done.

    Args:
        waits: Coroutines such as `event.wait()` or `clock.sleep(pause)`. Their results are ignored. Those that are not
            done are cancelled on return.
        tasks: Running tasks, which continue after this function returns. The caller reads their results.
    """
    started = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait({*started, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_all(started)


async def sleep_or(clock: Clock, pause: timedelta, *events: asyncio.Event) -> bool:
    """Sleeps for `pause`, or until one of the events is set; returns whether one is set."""
    await wait_first(clock.sleep(pause), *(event.wait() for event in events))
    return any(event.is_set() for event in events)


async def run_unless(event: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Returns the result of `work`; cancels `work` and returns None if `event` is set first.

    `work` must tolerate cancellation at each of its awaits.
    """
    running = asyncio.ensure_future(work)
    try:
        await wait_first(event.wait(), tasks=[running])
        return running.result() if running.done() else None
    finally:
        await cancel_all([running])


async def finish_with(main: asyncio.Future[T], others: Iterable[asyncio.Future[Any]]) -> T:
    """Returns the result of `main`; raises the error of each of the other tasks that fails before `main` is done.

    The caller cancels the tasks that still run after that.
    """
    pending: set[asyncio.Future[Any]] = {main, *others}
    while not main.done():
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    return main.result()


async def cancel_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels tasks and waits until they have ended; ignores their exceptions."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
