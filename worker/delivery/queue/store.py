"""Database of the delivery queue: SQLite in WAL mode, synced to disk at every commit.

A file is first copied into the spool directory and then inserted into the table. After a crash in between, `recover`
removes the orphaned copy. The task has received no confirmation in this case, so the task adds the file again.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.errors import Conflict, NotFound, TooLarge
from protocol.identifiers import Digest, digest
from protocol.runtime.files import check_format, sync_path
from protocol.runtime.logs import get_logger
from protocol.runtime.randomness import token_hex
from worker.delivery.queue.item import DeliveryStage, FinishedItem, QueueItem

FORMAT = 1
"""Version of the database's format, in SQLite's `user_version`; 0 for databases of releases that stored none."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS items (
  id TEXT PRIMARY KEY, stage TEXT NOT NULL, kind TEXT NOT NULL, key TEXT NOT NULL UNIQUE, name TEXT NOT NULL,
  metadata TEXT NOT NULL, data TEXT NOT NULL DEFAULT '{}', size INTEGER NOT NULL DEFAULT 0,
  sha256 TEXT NOT NULL DEFAULT '', attempts INTEGER NOT NULL DEFAULT 0, not_before_ms INTEGER NOT NULL DEFAULT 0,
  created_ms INTEGER NOT NULL, parked TEXT NOT NULL DEFAULT '', error TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS items_due ON items (parked, not_before_ms, created_ms);
CREATE TABLE IF NOT EXISTS finished (
  key TEXT PRIMARY KEY, id TEXT NOT NULL, sha256 TEXT NOT NULL, at_ms INTEGER NOT NULL,
  name TEXT NOT NULL DEFAULT '', metadata TEXT NOT NULL DEFAULT '{}', given_up TEXT NOT NULL DEFAULT ''
);
"""
_LATER_COLUMNS = (("name", "''"), ("metadata", "'{}'"), ("given_up", "''"))
"""Columns of the table `finished` that databases of earlier releases lack, with their default values."""
_KEPT_FINISHED = 10_000
"""Maximum number of finished items that are remembered.

If a task adds the file of a remembered item again, for example after a crash, the file is not queued again.
"""
_REQUEST_STAGES = frozenset({DeliveryStage.REQUESTED, DeliveryStage.SUBMITTED})
"""Stages that only make a request, so that completing them does not reset the failure count."""
_CHUNK = 1 << 20


_log = get_logger(__name__)

MOST_ITEMS = 10_000
"""Maximum number of waiting files. A limit of the total size alone would allow any number of empty files."""


class QueueFull(TooLarge):
    """The spool directory has no room for another file."""

    code = "queue-full"
    retryable = True


class QueueStore:
    """Stores items and their stages on disk.

    It is thread-safe, and every method commits before it returns.

    Args:
        database: The SQLite file, which is created if it is missing. One of an older release is migrated.
        spool: Directory of the copies.

    Raises:
        NewerFormat: A newer release wrote the database, which is unchanged.
        Conflict: The file is not a database of this queue, or it is damaged.
    """

    def __init__(self, database: Path, spool: Path) -> None:
        self._spool = spool
        spool.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(database, isolation_level=None, check_same_thread=False, timeout=30)
        self._connection.row_factory = sqlite3.Row
        try:
            found = self._query("PRAGMA user_version")[0]["user_version"]
            if check_format(found, known=FORMAT, what=f"the delivery queue {database}") < FORMAT:
                _log.info("delivery-queue-migrated", database=str(database), before=found, now=FORMAT)
            self._prepare()
        except sqlite3.DatabaseError as error:
            self.close()
            if isinstance(error, sqlite3.OperationalError):
                raise  # the machine's trouble, such as a full disk
            raise Conflict(
                f"the delivery queue {database} can't be used: {error}",
                hint="restore it from a copy; or move it away to begin an empty queue without the undelivered files",
            ) from error
        except BaseException:
            self.close()
            raise
        database.chmod(0o600)

    def _prepare(self) -> None:
        """Creates the tables, or migrates them to `FORMAT`."""
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.executescript(_SCHEMA)
        known = {row["name"] for row in self._query("PRAGMA table_info(finished)")}
        for column, default in _LATER_COLUMNS:
            if column not in known:
                self._execute(f"ALTER TABLE finished ADD COLUMN {column} TEXT NOT NULL DEFAULT {default}", ())
        self._execute(f"PRAGMA user_version = {FORMAT}", ())

    def close(self) -> None:
        """Closes the database."""
        with self._lock:
            self._connection.close()

    def recover(self) -> int:
        """Removes copies that belong to no item; returns their number.

        Call it once, before any file is added.
        """
        known = {row["id"] for row in self._query("SELECT id FROM items")}
        orphans = [path for path in self._spool.iterdir() if path.name not in known]
        for path in orphans:
            path.unlink(missing_ok=True)
        return len(orphans)

    def add(
        self,
        source: int,
        *,
        name: str,
        kind: str,
        key: str,
        metadata: Mapping[str, str],
        now_ms: int,
        most_bytes: int,
        most_spooled: int,
    ) -> tuple[str, bool]:
        """Copies an open file into the spool directory and adds it to the queue.

        Args:
            source: File descriptor open for reading, at any position.
            name: Name that the task gives to the file, for display.
            kind: Type of the file.
            key: Idempotency key.
            metadata: Metadata for the delivery.
            now_ms: Current time in Unix milliseconds.
            most_bytes: Maximum size of the file in bytes.
            most_spooled: Maximum total size of all waiting files in bytes.

        Returns:
            The item's id, and whether it is new.

        Raises:
            TooLarge: The file is longer than `most_bytes`.
            QueueFull: The queue has `MOST_ITEMS` files, or its size would exceed `most_spooled`.
        """
        if (known := self._known(key)) is not None:
            return known, False
        if self._query("SELECT COUNT(*) AS n FROM items")[0]["n"] >= MOST_ITEMS:
            raise QueueFull(f"the queue already has {MOST_ITEMS} files", hint="wait until some files are delivered")
        item_id = token_hex(16)
        target = self._spool / item_id
        room = most_spooled - self.spooled_bytes()
        try:
            _copy(source, target, most_bytes=most_bytes, room=room)
            sync_path(self._spool)
            self._execute(
                "INSERT INTO items (id, stage, kind, key, name, metadata, created_ms) VALUES (?, ?, ?, ?, ?, ?, ?)",
                (item_id, DeliveryStage.SPOOLED, kind, key, name, json.dumps(dict(metadata)), now_ms),
            )
        except sqlite3.IntegrityError:  # another request added the same key meanwhile
            target.unlink(missing_ok=True)
            return self._known(key) or item_id, False
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        return item_id, True

    def due(self, *, now_ms: int, latest_ms: int, most: int) -> list[QueueItem]:
        """Returns items that may be processed now, oldest first; at most `most`.

        An item that is postponed beyond `latest_ms` counts as due. No pause lasts until after `latest_ms`, so the clock
        was set back after the item was postponed.
        """
        rows = self._query(
            "SELECT * FROM items WHERE parked = '' AND (not_before_ms <= ? OR not_before_ms > ?) "
            "ORDER BY created_ms, id LIMIT ?",
            (now_ms, latest_ms, most),
        )
        return [self._item(row) for row in rows]

    def items(self, *, most: int = 1000) -> list[QueueItem]:
        """Returns the items in the queue, oldest first; at most `most`."""
        return [self._item(row) for row in self._query("SELECT * FROM items ORDER BY created_ms, id LIMIT ?", (most,))]

    def get(self, item_id: str) -> QueueItem:
        """Returns an item.

        Raises:
            NotFound: The item was never in the queue, or has left it.
        """
        rows = self._query("SELECT * FROM items WHERE id = ?", (item_id,))
        if not rows:
            raise NotFound(f"the queue has no item {item_id[:64]}")
        return self._item(rows[0])

    def advance(
        self,
        item: QueueItem,
        stage: DeliveryStage,
        *,
        data: Mapping[str, str],
        size: int | None = None,
        sha256: Digest | None = None,
    ) -> None:
        """Records that a stage of the item is complete.

        A completed stage resets the failure count, unless the stage only makes a request. With a reset after such
        stages, two sequences could repeat without limit: a URL is requested and expires, or work is submitted and the
        relayer loses it.
        """
        merged = {**item.data, **data}
        self._execute(
            "UPDATE items SET stage = ?, data = ?, size = ?, sha256 = ?, attempts = ?, not_before_ms = 0, error = '' "
            "WHERE id = ?",
            (
                stage,
                json.dumps(merged),
                item.size if size is None else size,
                sha256 or item.sha256 or "",
                item.attempts if stage in _REQUEST_STAGES else 0,
                item.id,
            ),
        )

    def put_off(self, item: QueueItem, *, stage: DeliveryStage, until_ms: int, error: str) -> None:
        """Counts a failure and postpones the item.

        `stage` may be an earlier stage, to which the item returns.
        """
        self._execute(
            "UPDATE items SET stage = ?, attempts = attempts + 1, not_before_ms = ?, error = ? WHERE id = ?",
            (stage, until_ms, error[:2000], item.id),
        )

    def wait(self, item: QueueItem, *, until_ms: int, reason: str) -> None:
        """Postpones an item that waits for another party. The wait does not count as a failure."""
        self._execute("UPDATE items SET not_before_ms = ?, error = ? WHERE id = ?", (until_ms, reason[:2000], item.id))

    def park(self, item: QueueItem, *, why: str) -> None:
        """Parks the item until the contributor retries it."""
        self._execute("UPDATE items SET parked = ?, error = ? WHERE id = ?", (why[:2000], why[:2000], item.id))

    def unpark(self, item_id: str) -> None:
        """Makes a parked item due, with a failure count of 0."""
        self._execute("UPDATE items SET parked = '', attempts = 0, not_before_ms = 0 WHERE id = ?", (item_id,))

    def retry_all(self) -> int:
        """Makes all items due, also parked and postponed ones, with a failure count of 0; returns their number."""
        with self._lock:
            cursor = self._connection.execute(
                "UPDATE items SET parked = '', attempts = 0, not_before_ms = 0, error = ''"
            )
            return cursor.rowcount

    def finish(self, item: QueueItem, *, now_ms: int, given_up: str = "") -> None:
        """Deletes the copy and the item, and records the outcome.

        If the item was given up, the outcome is recorded before the copy is deleted, so that the reason is never lost.
        After a crash in between, `recover` removes the copy.

        Args:
            item: The delivered or given-up item.
            now_ms: Current time in Unix milliseconds.
            given_up: Reason why the item was not delivered; empty if it was delivered.
        """
        if not given_up:
            item.path.unlink(missing_ok=True)
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.execute(
                "INSERT OR REPLACE INTO finished (key, id, sha256, at_ms, name, metadata, given_up) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    item.key,
                    item.id,
                    item.sha256 or "",
                    now_ms,
                    item.name,
                    json.dumps(dict(item.metadata)),
                    given_up[:2000],
                ),
            )
            self._connection.execute("DELETE FROM items WHERE id = ?", (item.id,))
            self._connection.execute(
                "DELETE FROM finished WHERE rowid <= (SELECT MAX(rowid) FROM finished) - ?", (_KEPT_FINISHED,)
            )
            self._connection.execute("COMMIT")
        item.path.unlink(missing_ok=True)

    def finished(self, item_id: str) -> FinishedItem:
        """Returns the outcome of an item that has left the queue.

        Raises:
            NotFound: The item never existed, or its outcome is no longer kept.
        """
        rows = self._query("SELECT * FROM finished WHERE id = ?", (item_id,))
        if not rows:
            raise NotFound(f"the queue has no item {item_id[:64]}")
        return _finished(rows[0])

    def given_up(self, *, most: int = 20) -> list[FinishedItem]:
        """Returns items that were given up, newest first; at most `most`."""
        rows = self._query("SELECT * FROM finished WHERE given_up != '' ORDER BY rowid DESC LIMIT ?", (most,))
        return [_finished(row) for row in rows]

    def spooled_bytes(self) -> int:
        """Returns the total size of all copies in bytes."""
        return sum(entry.stat().st_size for entry in os.scandir(self._spool) if entry.is_file(follow_symlinks=False))

    def counts(self) -> dict[str, int]:
        """Returns the number of items by stage.

        In addition, `parked` is the number of parked items, and `delivered` and `given_up` are the numbers of finished
        items that are still remembered.
        """
        rows = self._query("SELECT stage, COUNT(*) AS n FROM items WHERE parked = '' GROUP BY stage")
        counts = {str(row["stage"]): int(row["n"]) for row in rows}
        counts["parked"] = int(self._query("SELECT COUNT(*) AS n FROM items WHERE parked != ''")[0]["n"])
        ends = self._query("SELECT given_up != '' AS given_up, COUNT(*) AS n FROM finished GROUP BY 1")
        counts |= {"delivered": 0, "given_up": 0}
        counts |= {"given_up" if row["given_up"] else "delivered": int(row["n"]) for row in ends}
        return counts

    def oldest_ms(self) -> int | None:
        """Returns when the oldest file that is not parked was added, in Unix milliseconds; None if none waits."""
        found = self._query("SELECT MIN(created_ms) AS oldest FROM items WHERE parked = ''")[0]["oldest"]
        return None if found is None else int(found)

    def _known(self, key: str) -> str | None:
        rows = self._query(
            "SELECT id FROM items WHERE key = ? UNION ALL SELECT id FROM finished WHERE key = ?", (key, key)
        )
        return str(rows[0]["id"]) if rows else None

    def _item(self, row: sqlite3.Row) -> QueueItem:
        return QueueItem(
            id=row["id"],
            stage=DeliveryStage(row["stage"]),
            kind=row["kind"],
            key=row["key"],
            name=row["name"],
            path=self._spool / row["id"],
            metadata=json.loads(row["metadata"]),
            data=json.loads(row["data"]),
            size=row["size"],
            sha256=_digest(row["sha256"]),
            attempts=row["attempts"],
            not_before_ms=row["not_before_ms"],
            created_ms=row["created_ms"],
            parked=row["parked"],
            error=row["error"],
        )

    def _query(self, sql: str, values: tuple[Any, ...] = ()) -> list[sqlite3.Row]:
        with self._lock:
            return self._connection.execute(sql, values).fetchall()

    def _execute(self, sql: str, values: tuple[Any, ...]) -> None:
        with self._lock:
            self._connection.execute(sql, values)


def _finished(row: sqlite3.Row) -> FinishedItem:
    return FinishedItem(
        id=row["id"],
        name=row["name"],
        sha256=_digest(row["sha256"]),
        metadata=json.loads(row["metadata"]),
        at_ms=row["at_ms"],
        given_up=row["given_up"],
    )


def _digest(text: str) -> Digest | None:
    return digest(text) if text else None


def _copy(source: int, target: Path, *, most_bytes: int, room: int) -> None:
    """Copies the file.

    Later changes by the task then have no effect on the delivery.
    """
    copied = 0
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as copy:
        while chunk := os.pread(source, _CHUNK, copied):
            copied += len(chunk)
            if copied > most_bytes:
                raise TooLarge(f"the file is longer than {most_bytes} bytes", hint="write several smaller files")
            if copied > room:
                raise QueueFull(
                    "the queue has reached the size that the contributor allows", hint="wait until files are delivered"
                )
            copy.write(chunk)
        copy.flush()
        os.fsync(copy.fileno())
