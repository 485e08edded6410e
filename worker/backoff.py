"""Waiting that ends early when something happens, and pauses that grow while nothing works."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

from protocol.runtime.clock import Clock


async def sleep_or(clock: Clock, pause: timedelta, *events: asyncio.Event) -> bool:
    """Returns after the pause, or as soon as one of the events is set; whether one was."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    alarm = asyncio.ensure_future(clock.sleep(pause))
    try:
        await asyncio.wait({*waits, alarm}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*waits, alarm):
            task.cancel()
    return any(event.is_set() for event in events)


class GrowingPause:
    """Doubles with every failure up to a limit, with jitter; starts anew after a success. It never gives up.

    Args:
        first: The first pause.
        longest: The limit.
    """

    def __init__(self, *, first: timedelta, longest: timedelta) -> None:
        self._first = first
        self._longest = longest
        self._failures = 0

    def succeeded(self) -> None:
        """The next failure is the first one again."""
        self._failures = 0

    def failed(self) -> timedelta:
        """How long to wait now."""
        doubled: int = 2 ** min(self._failures, 20)
        self._failures += 1
        return min(self._longest, self._first * doubled) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
