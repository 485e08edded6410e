"""The nodes of the state tries and the contract codes, by hash, in SQLite with a cache in front.

Every key is the hash of its value, so nothing is ever overwritten and an older state stays readable. What a block adds
is held back until the block itself is stored, in the same transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from eth.db.atomic import AtomicDB
from eth.db.backends.base import BaseDB

_CACHED_NODES = 200_000
"""About 100 MB at the usual size of a node; a full cache is emptied, which costs reads and nothing else."""


class TrieNodes(BaseDB):
    """Hash-addressed values; new ones wait in memory for `take_fresh`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._cache: dict[bytes, bytes] = {}
        self._fresh: dict[bytes, bytes] = {}

    def __getitem__(self, key: bytes) -> bytes:
        value = self._fresh.get(key) or self._cache.get(key)
        if value is not None:
            return value
        row = self._connection.execute("SELECT value FROM nodes WHERE hash = ?", (key,)).fetchone()
        if row is None:
            raise KeyError(key)
        found: bytes = row[0]
        self._remember(key, found)
        return found

    def __setitem__(self, key: bytes, value: bytes) -> None:
        if key not in self._cache:
            self._fresh[key] = value

    def __delitem__(self, key: bytes) -> None:
        """Keeps the value: an older block's state may share the node."""

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._fresh)

    def _exists(self, key: bytes) -> bool:
        try:
            self[key]
        except KeyError:
            return False
        return True

    def fresh(self) -> list[tuple[bytes, bytes]]:
        """What was written since the last `settle`, to be stored with its block."""
        return list(self._fresh.items())

    def settle(self) -> None:
        """Says that everything fresh is stored."""
        for key, value in self._fresh.items():
            self._remember(key, value)
        self._fresh.clear()

    def _remember(self, key: bytes, value: bytes) -> None:
        if len(self._cache) >= _CACHED_NODES:
            self._cache.clear()
        self._cache[key] = value


def trie_database(nodes: TrieNodes) -> AtomicDB:
    """The nodes as the database type that the EVM asks for."""
    return AtomicDB(nodes)
