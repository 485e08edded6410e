"""Stores for cursor positions: Redis, or memory."""

from __future__ import annotations

from typing import Protocol

from redis.asyncio import Redis


class CursorStore(Protocol):
    """Keeps one value per cursor name."""

    async def load(self, name: str) -> bytes | None:
        """Returns the last saved value; None if there is none."""
        ...

    async def save(self, name: str, value: bytes) -> None:
        """Replaces the value atomically."""
        ...


class MemoryCursorStore:
    """Keeps positions in the memory of the process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    async def load(self, name: str) -> bytes | None:
        """Returns the last saved value."""
        return self._values.get(name)

    async def save(self, name: str, value: bytes) -> None:
        """Replaces the value."""
        self._values[name] = value


class RedisCursorStore:
    """Keeps each position under one Redis key.

    Args:
        redis: The client; the caller closes it.
        prefix: Key prefix before the cursor's name.
    """

    def __init__(self, redis: Redis, *, prefix: str = "muster:cursor:") -> None:
        self._redis = redis
        self._prefix = prefix

    async def load(self, name: str) -> bytes | None:
        """Returns the last saved value."""
        value = await self._redis.get(self._prefix + name)
        if value is None:
            return None
        return value if isinstance(value, bytes) else str(value).encode()

    async def save(self, name: str, value: bytes) -> None:
        """Replaces the value."""
        await self._redis.set(self._prefix + name, value)
