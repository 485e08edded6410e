"""Queue of the relayer in Redis: submissions and disputes by work key, joins, leaves and consents by node."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from orchestrator.store.database import Database, together
from orchestrator.store.nodes import text_of
from orchestrator.store.scripts import QueueTransaction, RequeueTransaction, SettleTransaction, WriteResult
from protocol.identifiers import Address
from protocol.runtime.clock import DAY_MS, milliseconds
from protocol.wire.relayed import ReceiptState

KEPT = timedelta(days=2)
"""Time for which the rows of relayed or refused transactions are kept."""

UNJOINED_KEPT = timedelta(days=30)
"""Time for which a registered node that does not join the pool counts against its provider."""

AGED = 256
"""Maximum number of waiting rows whose age is read at a time."""


class RelayedKind(StrEnum):
    """Kind of a relayed transaction."""

    WORK = "work"
    JOIN = "join"
    DISPUTE = "dispute"
    LEAVE = "leave"
    CONSENT = "consent"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedTransaction:
    """Row of a transaction in the relayer's queue."""

    name: str
    """Name of the row, unique within its kind: the work key, or `NODE-NONCE` for a join, a leave or consents."""
    state: ReceiptState
    body: str
    """Signed request of the node, as JSON."""
    at_ms: int
    """Time at which the node sent the request first, in Unix milliseconds."""
    tries: int
    """Number of times that the row was postponed. A row is postponed each time before its transaction is sent."""
    refusals: int
    """Number of temporary refusals by the ledger."""
    reason: str
    """Reason of the last refusal; empty if there was none."""


class RelayerStore:
    """Reads and writes the relayer's queue.

    Args:
        database: Database of the pool.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put(self, kind: RelayedKind, name: str, body: str, *, now_ms: int) -> tuple[RelayedTransaction, bool]:
        """Queues a transaction unless its name was queued before.

        Returns:
            The row in the queue, and whether its body equals `body`.
        """
        body_hash = hashlib.sha256(body.encode()).hexdigest()
        queued = await self._database.run(
            QueueTransaction(kind=kind.value, name=name, body_hash=body_hash, body=body, now_ms=now_ms)
        )
        return _row(name, queued.fields), queued.same

    async def requeue(self, kind: RelayedKind, name: str, *, now_ms: int) -> bool:
        """Queues a transaction again after a reorg; returns False if it was not relayed before."""
        return await self._database.run(RequeueTransaction(kind=kind.value, name=name, now_ms=now_ms))

    async def get(self, kind: RelayedKind, name: str) -> RelayedTransaction | None:
        """Returns a row; None if it was never queued, or was settled more than `KEPT` ago."""
        found = await self._database.ask("HGETALL", self._key(kind, name))
        return _row(name, text_of(found)) if found else None

    async def count_today(self, kind: RelayedKind, who: str, *, now_ms: int) -> int:
        """Counts a request of `who` that may cost gas; returns the number of such requests today (UTC)."""
        key = self._database.key("relay-count", kind.value, who, str(now_ms // DAY_MS))
        count, _ = await self._database.ask_many([("INCR", key), ("PEXPIRE", key, DAY_MS)])
        return int(count)

    async def unjoined(self, provider: Address) -> list[Address]:
        """Returns a provider's nodes of `expect_join` that were not dropped since, oldest first."""
        return [each.decode() for each in await self._database.ask("ZRANGE", self._unjoined_key(provider), 0, -1)]

    async def expect_join(self, provider: Address, node: Address, *, joined: Sequence[Address], now_ms: int) -> None:
        """Records that the pool registers a node for a provider, and drops nodes that have joined since.

        A node that never joins is dropped after `UNJOINED_KEPT`.
        """
        key, kept_ms = self._unjoined_key(provider), milliseconds(UNJOINED_KEPT)
        commands: list[tuple[str | int, ...]] = [("ZREMRANGEBYSCORE", key, "-inf", now_ms - kept_ms)]
        commands += [("ZREM", key, each) for each in joined]
        await self._database.ask_many([*commands, ("ZADD", key, now_ms, node), ("PEXPIRE", key, kept_ms)])

    def _unjoined_key(self, provider: Address) -> str:
        return self._database.key("relay-unjoined", provider)

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
        """Returns the number of rows that wait to be relayed."""
        return int(await self._database.ask("ZCARD", self._database.key("relay", kind.value)))

    async def oldest_ms(self, kind: RelayedKind) -> int | None:
        """Returns when the oldest waiting request was sent first, in Unix milliseconds; None if none waits.

        It looks at the `AGED` rows that are due first, because the queue is not ordered by age.
        """
        names = await self._database.ask("ZRANGE", self._database.key("relay", kind.value), 0, AGED - 1)
        times = await self._database.ask_many([("HGET", self._key(kind, name.decode()), "at") for name in names])
        return min((int(at) for at in times if at is not None), default=None)

    async def postpone(
        self, kind: RelayedKind, rows: Sequence[RelayedTransaction], *, until_ms: int, lease: str
    ) -> bool:
        """Postpones rows that are about to be sent; returns False if the leader lease was lost."""
        written = await together(
            self._write(kind, row.name, lease=lease, state=ReceiptState.QUEUED, reason=row.reason, due=until_ms)
            for row in rows
        )
        return all(written)

    async def record_temporary_refusal(
        self, kind: RelayedKind, name: str, *, reason: str, until_ms: int, lease: str
    ) -> None:
        """Counts a temporary refusal by the ledger and postpones the row."""
        await self._write(kind, name, lease=lease, state=ReceiptState.QUEUED, reason=reason, due=until_ms, refused=True)

    async def settle(
        self, kind: RelayedKind, name: str, state: ReceiptState, *, lease: str, reason: str = "", passing: bool = False
    ) -> None:
        """Records that a row was relayed or refused; `passing` allows a new submission."""
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
        due: int | None = None,
        refused: bool = False,
    ) -> bool:
        written = await self._database.run(
            SettleTransaction(
                lease=lease,
                kind=kind.value,
                name=name,
                state=state.value,
                reason=reason[:200],
                passing=passing,
                due_ms=due,
                refused=refused,
                kept_ms=milliseconds(KEPT),
            )
        )
        return written is not WriteResult.LEASE_LOST

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
