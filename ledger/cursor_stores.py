"""Where cursors keep their positions: a file, Redis, or memory."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
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


class SqliteCursorStore:
    """A SQLite file; several processes may share it. Call `close` at the end.

    Args:
        path: The file; made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("CREATE TABLE IF NOT EXISTS cursors (name TEXT PRIMARY KEY, value BLOB NOT NULL)")
        self._lock = asyncio.Lock()

    async def load(self, name: str) -> bytes | None:
        """What was saved last."""
        async with self._lock:
            row = await asyncio.to_thread(self._load, name)
        return None if row is None else bytes(row[0])

    async def save(self, name: str, value: bytes) -> None:
        """Replaces what was saved."""
        async with self._lock:
            await asyncio.to_thread(self._save, name, value)

    def close(self) -> None:
        """Closes the file."""
        self._db.close()

    def _load(self, name: str) -> tuple[bytes] | None:
        row: tuple[bytes] | None = self._db.execute("SELECT value FROM cursors WHERE name = ?", (name,)).fetchone()
        return row

    def _save(self, name: str, value: bytes) -> None:
        self._db.execute("INSERT OR REPLACE INTO cursors VALUES (?, ?)", (name, value))


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
