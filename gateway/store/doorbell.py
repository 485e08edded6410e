"""Wakes long polls and streams when Redis has something for them. Each replica uses one connection for this."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from redis.asyncio import Redis

from protocol.redis.connection import RedisKeys, store_errors
from protocol.runtime.clock import Clock
from protocol.runtime.waiting import wait_first

LOOK_AGAIN = timedelta(seconds=2)
"""Interval at which those who wait look into Redis, because notifications may be lost."""

T = TypeVar("T")


class Doorbell:
    """Forwards notifications of the scripts to waiting coroutines.

    A notification may be lost when Redis restarts. Those who wait therefore look into Redis at intervals, too.

    Args:
        redis: Client of the gateway's Redis.
        keys: Names of the gateway's keys.
        replica: This replica, which hears of the requests of its own clients only.
    """

    def __init__(self, redis: Redis, *, keys: RedisKeys, replica: str) -> None:
        self._redis: Any = redis
        self._channels = (keys.of("doorbell"), keys.of("doorbell", replica))
        self._waiting: dict[str, set[asyncio.Event]] = {}

    @contextmanager
    def waiting(self, name: str) -> Iterator[asyncio.Event]:
        """Yields an event that is set when `name` is rung."""
        event = asyncio.Event()
        self._waiting.setdefault(name, set()).add(event)
        try:
            yield event
        finally:
            events = self._waiting[name]
            events.discard(event)
            if not events:
                del self._waiting[name]

    async def poll(
        self,
        name: str,
        read: Callable[[timedelta], Awaitable[tuple[T, bool]]],
        *,
        wait: timedelta,
        stopping: asyncio.Event,
        clock: Clock,
    ) -> T:
        """Reads when `name` is rung, and at intervals, until there is a result; returns the last result.

        Args:
            name: What is rung.
            read: Reads from Redis, with the remaining wait; returns the result and whether it ends the poll.
            wait: Longest wait.
            stopping: Event that ends the poll: the service stops.
            clock: Clock of the wait.
        """
        until = clock.monotonic() + wait.total_seconds()
        with self.waiting(name) as rung:
            while True:
                rung.clear()
                left = timedelta(seconds=max(0.0, until - clock.monotonic()))
                result, ends = await read(left)
                if ends or not left or stopping.is_set():
                    return result
                await wait_first(rung.wait(), stopping.wait(), clock.sleep(min(left, LOOK_AGAIN)))

    async def listen(self) -> None:
        """Forwards notifications until it is cancelled; a background loop.

        Raises:
            StoreUnavailable: The subscription broke; the loop runner restarts this loop.
        """
        with store_errors():
            async with self._redis.pubsub() as subscription:
                await subscription.subscribe(*self._channels)
                task = asyncio.current_task()
                # redis-py loses a cancellation that arrives while it connects; the task still counts it.
                while task is None or not task.cancelling():
                    message = await subscription.get_message(timeout=1.0)
                    if message is None:
                        continue
                    if message["type"] == "message":
                        self.ring(message["data"].decode())
                    else:  # Redis confirmed a subscription, also one that redis-py renewed
                        for name in list(self._waiting):
                            self.ring(name)

    def ring(self, name: str) -> None:
        """Wakes those who wait for `name` in this replica."""
        for event in self._waiting.get(name, ()):
            event.set()
