"""SQLite store of blocks, transactions and events; a block and its contents are written in one transaction.

A killed process therefore loses at most the block that it was building. Starting reads a single row, however long the
chain is.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import rlp
from eth.vm.forks.prague.blocks import PragueBlockHeader

from ledger.devchain.embedded.records import BlockRecord, LogFilter, LogRecord, MinedBlock, TransactionRecord
from ledger.devchain.embedded.trie import TrieNodes
from protocol.errors import Conflict

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS nodes (hash BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS blocks (
    number INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, header BLOB NOT NULL, state_root BLOB NOT NULL,
    size INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS transactions (
    hash BLOB PRIMARY KEY, block INTEGER NOT NULL, position INTEGER NOT NULL, raw BLOB NOT NULL, sender BLOB NOT NULL,
    success INTEGER NOT NULL, gas_used INTEGER NOT NULL, cumulative_gas INTEGER NOT NULL, gas_price TEXT NOT NULL,
    created BLOB) WITHOUT ROWID;
CREATE UNIQUE INDEX IF NOT EXISTS transactions_in_block ON transactions (block, position);
CREATE TABLE IF NOT EXISTS logs (
    block INTEGER NOT NULL, position INTEGER NOT NULL, tx BLOB NOT NULL, tx_position INTEGER NOT NULL,
    address BLOB NOT NULL, topic0 BLOB, topic1 BLOB, topic2 BLOB, topic3 BLOB, data BLOB NOT NULL,
    PRIMARY KEY (block, position)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS logs_of_address ON logs (address, block);
CREATE INDEX IF NOT EXISTS logs_of_transaction ON logs (tx);
"""

_TRANSACTION_COLUMNS = """t.hash, t.block, b.hash, t.position, t.raw, t.sender, t.success, t.gas_used,
    t.cumulative_gas, t.gas_price, t.created FROM transactions t JOIN blocks b ON b.number = t.block"""
_LOG_COLUMNS = """l.block, b.hash, l.position, l.tx, l.tx_position, l.address, l.topic0, l.topic1, l.topic2, l.topic3,
    l.data FROM logs l JOIN blocks b ON b.number = l.block"""


class ChainStore:
    """Store of one chain, in memory if `path` is None.

    Raises:
        Conflict: Another process has the file open.
    """

    def __init__(self, path: Path | None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path if path is not None else ":memory:", isolation_level=None, timeout=1)
        try:
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            # NORMAL loses nothing on kill -9; a power failure may lose the newest blocks.
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.executescript(_SCHEMA)
        except sqlite3.OperationalError as error:
            self._db.close()
            raise Conflict(
                f"the chain's file {path} can't be used: {error}", hint="stop the other chain that has it open"
            ) from error
        self.nodes = TrieNodes(self._db)

    def close(self) -> None:
        """Closes the file."""
        self._db.close()

    # Settings

    def meta(self, key: str) -> str | None:
        """Returns a setting of the chain."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row[0])

    def set_meta(self, key: str, value: str) -> None:
        """Stores a setting of the chain."""
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    # Writes

    def append(self, mined: MinedBlock) -> None:
        """Stores a block with its transactions, events and state, atomically."""
        block = mined.block
        with _Atomic(self._db):
            self._write_nodes()
            self._db.execute(
                "INSERT INTO blocks VALUES (?, ?, ?, ?, ?)",
                (block.number, block.hash, rlp.encode(block.header), block.state_root, block.size),
            )
            self._db.executemany(
                "INSERT INTO transactions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", map(_row, mined.transactions)
            )
            self._db.executemany("INSERT INTO logs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", map(_log_row, mined.logs))
        self.nodes.mark_saved()

    def replace_state(self, block: int, state_root: bytes) -> None:
        """Replaces the state of the newest block, for the development controls."""
        with _Atomic(self._db):
            self._write_nodes()
            self._db.execute("UPDATE blocks SET state_root = ? WHERE number = ?", (state_root, block))
        self.nodes.mark_saved()

    def truncate(self, last: int, state_root: bytes) -> None:
        """Deletes every block after `last` and restores that block's state."""
        with _Atomic(self._db):
            self._db.execute("DELETE FROM blocks WHERE number > ?", (last,))
            self._db.execute("DELETE FROM transactions WHERE block > ?", (last,))
            self._db.execute("DELETE FROM logs WHERE block > ?", (last,))
            self._db.execute("UPDATE blocks SET state_root = ? WHERE number = ?", (state_root, last))

    def _write_nodes(self) -> None:
        self._db.executemany("INSERT OR IGNORE INTO nodes VALUES (?, ?)", self.nodes.unsaved())

    # Reads

    def head(self) -> BlockRecord | None:
        """Returns the newest block; None in a new store."""
        return self._block("ORDER BY number DESC LIMIT 1")

    def block(self, number: int) -> BlockRecord | None:
        """Returns the block at a height."""
        return self._block("WHERE number = ?", number)

    def block_by_hash(self, block_hash: bytes) -> BlockRecord | None:
        """Returns the block with a hash."""
        return self._block("WHERE hash = ?", block_hash)

    def hashes_before(self, number: int, count: int = 256) -> tuple[bytes, ...]:
        """Returns the hashes of the `count` blocks below a height, newest first, for the BLOCKHASH opcode."""
        rows = self._db.execute(
            "SELECT hash FROM blocks WHERE number < ? ORDER BY number DESC LIMIT ?", (number, count)
        )
        return tuple(row[0] for row in rows)

    def transaction(self, transaction_hash: bytes) -> TransactionRecord | None:
        """Returns a mined transaction by hash."""
        rows = self._db.execute(f"SELECT {_TRANSACTION_COLUMNS} WHERE t.hash = ?", (transaction_hash,))
        return next(map(_transaction, rows), None)

    def transactions_of(self, block: int) -> list[TransactionRecord]:
        """Returns a block's transactions, in order."""
        rows = self._db.execute(f"SELECT {_TRANSACTION_COLUMNS} WHERE t.block = ? ORDER BY t.position", (block,))
        return [_transaction(row) for row in rows]

    def logs_of(self, transaction_hash: bytes) -> list[LogRecord]:
        """Returns a transaction's events, in order."""
        rows = self._db.execute(f"SELECT {_LOG_COLUMNS} WHERE l.tx = ? ORDER BY l.position", (transaction_hash,))
        return [_log(row) for row in rows]

    def logs(self, wanted: LogFilter, *, limit: int) -> list[LogRecord]:
        """Returns at most `limit` matching events, in the chain's order."""
        clauses = ["l.block BETWEEN ? AND ?"]
        values: list[Any] = [wanted.first, wanted.last]
        columns = [("l.address", wanted.addresses)]
        columns += [(f"l.topic{index}", options) for index, options in enumerate(wanted.topics)]
        for column, options in columns:
            if options:
                clauses.append(f"{column} IN ({', '.join('?' * len(options))})")
                values.extend(options)
        sql = f"SELECT {_LOG_COLUMNS} WHERE {' AND '.join(clauses)} ORDER BY l.block, l.position LIMIT ?"
        return [_log(row) for row in self._db.execute(sql, [*values, limit])]

    def _block(self, where: str, *values: int | bytes) -> BlockRecord | None:
        row = self._db.execute(f"SELECT header, state_root, size FROM blocks {where}", values).fetchone()  # noqa: S608 - our own clauses
        if row is None:
            return None
        return BlockRecord(header=rlp.decode(row[0], sedes=PragueBlockHeader), state_root=row[1], size=row[2])


class _Atomic:
    """One SQLite transaction."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, *_: object) -> None:
        self._db.execute("COMMIT" if kind is None else "ROLLBACK")


def _row(record: TransactionRecord) -> tuple[Any, ...]:
    return (
        record.hash, record.block, record.position, record.raw, record.sender, record.success, record.gas_used,
        record.cumulative_gas, str(record.gas_price), record.created,
    )  # fmt: skip


def _transaction(row: tuple[Any, ...]) -> TransactionRecord:
    return TransactionRecord(
        hash=row[0], block=row[1], block_hash=row[2], position=row[3], raw=row[4], sender=row[5], success=bool(row[6]),
        gas_used=row[7], cumulative_gas=row[8], gas_price=int(row[9]), created=row[10],
    )  # fmt: skip


def _log_row(record: LogRecord) -> tuple[Any, ...]:
    topics = (*record.topics, None, None, None, None)[:4]
    return (
        record.block, record.position, record.transaction, record.transaction_position, record.address, *topics,
        record.data,
    )  # fmt: skip


def _log(row: tuple[Any, ...]) -> LogRecord:
    return LogRecord(
        block=row[0], block_hash=row[1], position=row[2], transaction=row[3], transaction_position=row[4],
        address=row[5], topics=tuple(topic for topic in row[6:10] if topic is not None), data=row[10],
    )  # fmt: skip
