"""State trie nodes and contract code by hash, in SQLite with a cache.

Every key is the hash of its value, so nothing is ever overwritten and older states stay readable. New nodes are kept in
memory until one SQLite transaction stores them together with their block.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from eth.db.atomic import AtomicDB
from eth.db.backends.base import BaseDB

_CACHED_NODES = 200_000
"""Maximum cached nodes, about 100 MB. A full cache is emptied completely, which only costs reads."""


class TrieNodes(BaseDB):
    """Key-value store of py-evm; new values stay in memory until `mark_saved`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._cache: dict[bytes, bytes] = {}
        self._unsaved: dict[bytes, bytes] = {}

    def __getitem__(self, key: bytes) -> bytes:
        value = self._unsaved.get(key) or self._cache.get(key)
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
            self._unsaved[key] = value

    def __delitem__(self, key: bytes) -> None:
        """Does nothing: the state of an older block may share the node."""

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._unsaved)

    def _exists(self, key: bytes) -> bool:
        try:
            self[key]
        except KeyError:
            return False
        return True

    def unsaved(self) -> list[tuple[bytes, bytes]]:
        """Returns the nodes written since the last `mark_saved`, to be stored with their block."""
        return list(self._unsaved.items())

    def mark_saved(self) -> None:
        """Moves the unsaved nodes to the cache, after the caller has stored them."""
        for key, value in self._unsaved.items():
            self._remember(key, value)
        self._unsaved.clear()

    def _remember(self, key: bytes, value: bytes) -> None:
        if len(self._cache) >= _CACHED_NODES:
            self._cache.clear()
        self._cache[key] = value


def trie_database(nodes: TrieNodes) -> AtomicDB:
    """Wraps the nodes as the database type that py-evm needs."""
    return AtomicDB(nodes)
