"""Waiting of idle connections: news wakes all, new work wakes as many as needed."""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import timedelta
from typing import Any

from protocol.runtime.clock import Clock


class Wakeups:
    """Those that rest.

    Args:
        clock: Of the longest rests.
    """

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._changed = asyncio.Event()
        self._resting: deque[asyncio.Future[None]] = deque()

    async def change(self) -> None:
        """Returns at the next `wake`."""
        await self._changed.wait()

    async def pause(self, most: timedelta) -> None:
        """Returns at the next `wake`, or when so much time has passed."""
        await self._until(asyncio.ensure_future(self._changed.wait()), most)

    async def rest(self, most: timedelta) -> None:
        """Returns when it is this one's turn, or when so much time has passed."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resting.append(turn)
        try:
            await self._until(turn, most)
        finally:
            if turn in self._resting:
                self._resting.remove(turn)

    def wake(self) -> None:
        """Wakes all waiting connections."""
        self._changed.set()
        self._changed = asyncio.Event()
        while self._resting:
            self.wake_one()

    def wake_one(self) -> None:
        """Wakes the connection that has waited longest."""
        if self._resting:
            turn = self._resting.popleft()
            if not turn.done():
                turn.set_result(None)

    async def _until(self, change: asyncio.Future[Any], most: timedelta) -> None:
        alarm = asyncio.ensure_future(self._clock.sleep(most))
        try:
            await asyncio.wait({alarm, change}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            alarm.cancel()
            change.cancel()
