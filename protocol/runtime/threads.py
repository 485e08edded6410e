"""Runs blocking calls of services in threads; a simulation runs them inline (docs/decisions/0077)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Runner = Callable[[Callable[[], Any]], Awaitable[Any]]

_runner: Runner = asyncio.to_thread


async def run_in_thread(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs a blocking function in a thread and returns its result. A cancelled wait does not stop the function."""
    result: T = await _runner(partial(function, *args, **kwargs))
    return result


async def run_inline(call: Callable[[], T]) -> T:
    """Runner that makes the call in the event loop's thread, so that the order of events does not depend on threads."""
    return call()


@contextmanager
def replaced_runner(runner: Runner) -> Iterator[None]:
    """Makes `run_in_thread` use another runner within the block, process-wide: for simulations and tests only."""
    global _runner  # noqa: PLW0603 - one runner per process
    before, _runner = _runner, runner
    try:
        yield
    finally:
        _runner = before
