"""Where cursors keep their positions: Redis, or memory."""

from __future__ import annotations

from typing import Protocol

from redis.asyncio import Redis


class CursorStore(Protocol):
    """Keeps one value per cursor name."""

    async def load(self, name: str) -> bytes | None:
        """What was saved last; None if nothing was."""
        ...

    async def save(self, name: str, value: bytes) -> None:
        """Replaces what was saved, all or nothing."""
        ...


class MemoryCursorStore:
    """Forgets everything with the process."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    async def load(self, name: str) -> bytes | None:
        """What was saved last."""
        return self._values.get(name)

    async def save(self, name: str, value: bytes) -> None:
        """Replaces what was saved."""
        self._values[name] = value


class RedisCursorStore:
    """One key per cursor in Redis.

    Args:
        redis: Owned by the caller.
        prefix: Before each name.
    """

    def __init__(self, redis: Redis, *, prefix: str = "muster:cursor:") -> None:
        self._redis = redis
        self._prefix = prefix

    async def load(self, name: str) -> bytes | None:
        """What was saved last."""
        value = await self._redis.get(self._prefix + name)
        if value is None:
            return None
        return value if isinstance(value, bytes) else str(value).encode()

    async def save(self, name: str, value: bytes) -> None:
        """Replaces what was saved."""
        await self._redis.set(self._prefix + name, value)
