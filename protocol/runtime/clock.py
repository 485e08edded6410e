"""Clocks: the system's, and one that tests and simulations control.

No other module reads the system's time.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

DAY_MS = 86_400_000
"""Length of a day in milliseconds."""


def milliseconds(duration: timedelta) -> int:
    """Returns a duration in whole milliseconds, rounded down."""
    return int(duration.total_seconds() * 1000)


class Clock(Protocol):
    """Source of time and sleeps.

    Wall time is for timestamps, monotonic time for deadlines. Sleeps follow the same clock.
    """

    def now(self) -> datetime:
        """Returns the wall time as a timezone-aware datetime in UTC."""
        ...

    def monotonic(self) -> float:
        """Returns the seconds since an arbitrary fixed moment.

        The result never decreases.
        """
        ...

    async def sleep(self, duration: timedelta) -> None:
        """Returns when `duration` has passed on this clock."""
        ...


class SystemClock:
    """Clock that reads the machine's time."""

    def now(self) -> datetime:
        """Returns the wall time of the machine, in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Returns the machine's monotonic time in seconds."""
        return time.monotonic()

    async def sleep(self, duration: timedelta) -> None:
        """Sleeps in real time."""
        await asyncio.sleep(duration.total_seconds())


class ManualClock:
    """Clock for tests that stands still until `turn` advances it.

    Sleeping tasks wake in the order of their deadlines.

    Args:
        start: Initial wall time.
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._wall_skew = timedelta()
        self._elapsed = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        """Returns the current wall time of this clock."""
        return self._start + timedelta(seconds=self._elapsed) + self._wall_skew

    def monotonic(self) -> float:
        """Returns the seconds by which the clock has moved since its creation."""
        return self._elapsed

    async def sleep(self, duration: timedelta) -> None:
        """Waits until `turn` has advanced the clock by `duration`."""
        if duration <= timedelta():
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed + duration.total_seconds(), next(self._order), woken))
        await woken

    async def turn(self, duration: timedelta) -> None:
        """Advances the clock by `duration`; tasks that sleep wake at their deadlines on the way."""
        target = self._elapsed + duration.total_seconds()
        await _settle()
        while self._sleepers and self._sleepers[0][0] <= target:
            due, _, woken = heapq.heappop(self._sleepers)
            self._elapsed = max(self._elapsed, due)
            if not woken.done():
                woken.set_result(None)
            await _settle()
        self._elapsed = target
        await _settle()

    def jump(self, duration: timedelta) -> None:
        """Changes the wall time only, as an operator or NTP may do.

        Monotonic time stays the same.
        """
        self._wall_skew += duration


async def _settle() -> None:
    """Runs all tasks that are ready.

    Ten rounds are enough for the longest chain of awaits in the loops under test.
    """
    for _ in range(10):
        await asyncio.sleep(0)
