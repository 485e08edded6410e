"""The single thread in which the learner runs.

Allocators such as glibc's keep one heap per thread and return little of it to the system. With a pool of threads each
heap would grow to the size of a step's gradients and copies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class LearnerThread:
    """Runs calls one after the other in one thread, until the end of an `async with` block."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="learner")

    async def __call__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a call in the thread and returns its result, like `asyncio.to_thread`."""
        bound = partial(copy_context().run, call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._executor, bound)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for the running call and drops queued ones."""
        await asyncio.to_thread(self._executor.shutdown, cancel_futures=True)
