"""Transactions to relay, in Redis: submissions and disputes by work key, joins by node."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from orchestrator.store.database import Database, together
from orchestrator.store.nodes import text_of
from protocol.wire.relayed import ReceiptState

KEPT = timedelta(days=2)
"""How long outcomes are kept."""


class RelayedKind(StrEnum):
    """Kind of a relayed transaction."""

    WORK = "work"
    JOIN = "join"
    DISPUTE = "dispute"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedTransaction:
    """One thing on its way."""

    name: str
    state: ReceiptState
    body: str
    at_ms: int
    tries: int
    """Number of transactions begun with it."""
    refusals: int
    """Number of temporary refusals by the ledger."""
    reason: str


class RelayerStore:
    """Reads and writes the relayer's queue.

    Args:
        database: The pool's.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, kind: RelayedKind, name: str, body: str, *, now_ms: int) -> tuple[RelayedTransaction, bool]:
        """Queues something, unless it was; returns how it stands, and whether what was queued is the same."""
        what = hashlib.sha256(body.encode()).hexdigest()
        same, fields = await self._database.call("relay_put", kind.value, name, what, body, now_ms)
        pairs = dict(zip(fields[::2], fields[1::2], strict=True))
        return _row(name, text_of(pairs)), bool(same)

    async def again(self, kind: RelayedKind, name: str, *, now_ms: int) -> bool:
        """Queues once more what was carried, because the chain took it back; whether it was carried."""
        return bool(await self._database.call("relay_again", kind.value, name, now_ms))

    async def get(self, kind: RelayedKind, name: str) -> RelayedTransaction | None:
        """One thing; None if it was never queued, or that is long ago."""
        found = await self._database.ask("HGETALL", self._key(kind, name))
        return _row(name, text_of(found)) if found else None

    async def due(self, kind: RelayedKind, *, now_ms: int, limit: int) -> list[RelayedTransaction]:
        """Returns due rows, longest waiting first."""
        queue = self._database.key("relay", kind.value)
        names = [
            name.decode()
            for name in await self._database.ask("ZRANGEBYSCORE", queue, "-inf", now_ms, "LIMIT", 0, limit)
        ]
        hashes = await self._database.ask_many([("HGETALL", self._key(kind, name)) for name in names])
        return [_row(name, text_of(found)) for name, found in zip(names, hashes, strict=True) if found]

    async def waiting(self, kind: RelayedKind) -> int:
        """Returns the number of waiting rows."""
        return int(await self._database.ask("ZCARD", self._database.key("relay", kind.value)))

    async def put_off(
        self, kind: RelayedKind, rows: Sequence[RelayedTransaction], *, until_ms: int, lease: str
    ) -> bool:
        """Writes down that these are about to be tried; False if the loop's lease was lost meanwhile."""
        written = await together(
            self._write(kind, row.name, lease=lease, state=ReceiptState.QUEUED, reason=row.reason, due=until_ms)
            for row in rows
        )
        return all(written)

    async def refused_for_now(self, kind: RelayedKind, name: str, *, reason: str, until_ms: int, lease: str) -> None:
        """The ledger refused it for a reason that may pass."""
        await self._write(kind, name, lease=lease, state=ReceiptState.QUEUED, reason=reason, due=until_ms, refused=True)

    async def settle(
        self, kind: RelayedKind, name: str, state: ReceiptState, *, lease: str, reason: str = "", passing: bool = False
    ) -> None:
        """It was carried, or refused; `passing` lets its node hand it in again."""
        await self._write(kind, name, lease=lease, state=state, reason=reason, passing=passing)

    async def _write(
        self,
        kind: RelayedKind,
        name: str,
        *,
        lease: str,
        state: ReceiptState,
        reason: str,
        passing: bool = False,
        due: int | str = "",
        refused: bool = False,
    ) -> bool:
        answer: Any = await self._database.call(
            "relay_settle",
            lease,
            kind.value,
            name,
            state.value,
            reason[:200],
            int(passing),
            due,
            int(refused),
            int(KEPT.total_seconds() * 1000),
        )
        return bool(answer >= 0)

    def _key(self, kind: RelayedKind, name: str) -> str:
        return self._database.key("relay", kind.value, name)


def _row(name: str, fields: dict[str, str]) -> RelayedTransaction:
    return RelayedTransaction(
        name=name,
        state=ReceiptState(fields["state"]),
        body=fields["body"],
        at_ms=int(fields["at"]),
        tries=int(fields["tries"]),
        refusals=int(fields["refusals"]),
        reason=fields["reason"],
    )
