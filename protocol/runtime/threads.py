"""Runs blocking calls of services in threads.

A simulation runs them in the event loop's thread instead (docs/decisions/0077).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Runner = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Function that executes a blocking call and returns an awaitable of its result."""

_runner: Runner = asyncio.to_thread


async def run_in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs a blocking function in a thread and returns its result.

    If the caller is cancelled, the function continues in its thread.
    """
    result: T = await _runner(partial(function, *args, **kwargs))
    return result


async def run_inline(call: Callable[[], T]) -> T:
    """Makes the call in the event loop's thread; a runner for simulations.

    The order of events then does not depend on the scheduling of threads.
    """
    return call()


@contextmanager
def replaced_runner(runner: Runner) -> Iterator[None]:
    """Makes `run_in_thread` use another runner within the block, in the whole process.

    Only simulations and tests use this.
    """
    global _runner  # noqa: PLW0603 - one runner per process
    before, _runner = _runner, runner
    try:
        yield
    finally:
        _runner = before
