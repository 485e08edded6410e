"""Helpers for tests that advance a manual clock while threads run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

_HOPS = 40
"""Rounds of the loop that an exchange inside the process takes at most between two threads; half of them are spare."""


@pytest.fixture
async def one_thread() -> AsyncIterator[None]:
    """Whatever the loop hands to a thread is done one by one, so that `at_rest` can wait behind it."""
    with ThreadPoolExecutor(1) as threads:
        asyncio.get_running_loop().set_default_executor(threads)
        yield


async def at_rest() -> None:
    """Returns when all tasks wait for the clock; requires the fixture `one_thread` and no open sockets."""
    for _ in range(5):
        for _ in range(_HOPS):
            await asyncio.sleep(0)
        await asyncio.to_thread(int)
