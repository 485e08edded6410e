"""The one thread that a student works in.

Allocators such as glibc's keep a heap for each thread and return little of it. If each step's gradients and copies came
from another thread of a pool, every heap would grow to the size of them all.
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


class PolicyTrainerThread:
    """Runs calls one after the other in a thread of its own, until the end of an `async with` block."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="student")

    async def __call__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns what the call gives, as `asyncio.to_thread` does."""
        bound = partial(copy_context().run, call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._executor, bound)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for a call that is under way; others are dropped."""
        await asyncio.to_thread(self._executor.shutdown, cancel_futures=True)
