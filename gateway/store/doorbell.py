"""Wakes long polls and streams when Redis has something for them, with one connection per replica."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis.asyncio import Redis

from protocol.redis.connection import RedisKeys, store_errors


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
