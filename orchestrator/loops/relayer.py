"""Relays submissions, joins and disputes to the ledger, so that nodes need no gas.

A row is postponed before its transaction is sent, so that it is due again if this process crashes. A row that is due
again is looked up on the ledger before it is sent again. The ledger accepts each work item once, from any sender.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import structlog

from orchestrator.chain.run_interface import LedgerRefusal, RunLedger, error_name
from orchestrator.relayer.kinds import (
    CARRIED,
    TEMPORARY_ERRORS,
    RelayItem,
    Settlement,
    TransactionKind,
    transaction_kinds,
)
from orchestrator.store.database import together
from orchestrator.store.relayer import RelayerStore
from protocol.errors import Conflict, Unavailable
from protocol.identifiers import ZERO_DIGEST
from protocol.identity.signing import unix_ms
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.clock import Clock
from protocol.runtime.waiting import sleep_or
from protocol.wire.relayed import ReceiptState

RETRY_AFTER = timedelta(seconds=20)
"""Delay before a transaction of unknown outcome is checked again; longer than most block times."""

ALREADY_ON_LEDGER = frozenset({"WorkExists", "MemberAlready", "WrongStatus"})
"""Contract errors that say that another transaction had this effect before."""

MAX_REFUSALS = 6
"""Refusals for a temporary reason after which a transaction is given up."""

_log = structlog.get_logger(__name__)

Item = RelayItem[Any]


@dataclass(slots=True)
class _Queue:
    """The queue of one kind of transaction, and the part of it that rounds of this process are sending."""

    kind: TransactionKind[Any]
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a round takes rows: all rounds wake at the same event, and only one may take a row."""
    in_flight: set[str] = field(default_factory=set)
    """Names of the rows that a round has taken; the other rounds skip them."""


class Relayer:
    """Sends one batch of each kind per round. Several rounds may run at the same time.

    Args:
        store: The queue.
        ledger: The run on the ledger; its key pays the gas.
        lease: The leader lease of this loop.
        clock: Tells which rows are due.
    """

    def __init__(self, store: RelayerStore, *, ledger: RunLedger, lease: LeaderLease, clock: Clock) -> None:
        self._store = store
        self._lease = lease
        self._clock = clock
        self._queues = [_Queue(kind) for kind in transaction_kinds(ledger, clock=clock)]

    async def round(self) -> int:
        """Sends the transactions that are due; returns how many the ledger accepted.

        Raises:
            MusterError: The chain is down, or the relayer can't pay. Everything stays queued, and no node is told of
                a refusal.
        """
        carried = 0
        for queue in self._queues:
            if not await self._lease.hold():
                return carried
            carried += await self._send_batch(queue)
        return carried

    async def _send_batch(self, queue: _Queue) -> int:
        async with queue.taking:
            items = await self._take(queue)
            names = {item.row.name for item in items}
            queue.in_flight |= names
        try:
            items = await self._without_hopeless(queue.kind, items)
            return await self._send(queue.kind, items) if items else 0
        finally:
            queue.in_flight -= names

    async def _take(self, queue: _Queue) -> list[Item]:
        """Takes due rows and postpones them for other instances; empty if the leader lease was lost.

        A row whose transaction takes longer than the postponement is postponed again, and left to the round that sends
        it.
        """
        kind, now = queue.kind, unix_ms(self._clock.now())
        due = [kind.item(row) for row in await self._store.due(kind.kind, now_ms=now, limit=kind.batch)]
        settled = await together(self._settle_if_over(kind, item) for item in due)
        items = [item for item, is_settled in zip(due, settled, strict=True) if not is_settled]
        until = now + int(RETRY_AFTER.total_seconds() * 1000)
        held = await self._store.put_off(
            kind.kind, [item.row for item in items], until_ms=until, lease=self._lease.value
        )
        return [item for item in items if item.row.name not in queue.in_flight] if held else []

    async def _settle_if_over(self, kind: TransactionKind[Any], item: Item) -> bool:
        """Settles an item that is on the ledger or has expired; returns whether it did."""
        settlement = await kind.settlement(item)
        if settlement is None:
            return False
        if settlement.state is ReceiptState.REFUSED:
            # What the ledger said before tells the node more than that the time is over.
            settlement = replace(settlement, reason=item.row.reason or settlement.reason)
        await self._settle(kind, item, settlement)
        return True

    async def _without_hopeless(self, kind: TransactionKind[Any], items: Sequence[Item]) -> list[Item]:
        """Drops items that the ledger would refuse again, by a dry run, so that each wastes gas at most once."""
        doubtful = [item for item in items if item.row.refusals]
        if not doubtful:
            return list(items)
        refusals = _by_name(await kind.dry_run([item.request for item in doubtful]))
        hopeless = [item for item in doubtful if kind.ledger_name(item.request) in refusals]
        await together(self._refuse(kind, item, refusals[kind.ledger_name(item.request)]) for item in hopeless)
        return [item for item in items if not item.row.refusals or kind.ledger_name(item.request) not in refusals]

    async def _send(self, kind: TransactionKind[Any], items: Sequence[Item]) -> int:
        """Sends items in one transaction; if the chain refuses it as a whole, sends each half of them."""
        try:
            refused = await self._send_under_lease(kind, items)
        except Unavailable:
            raise
        except Conflict as error:
            if error.code != "transaction-reverted":
                # A fault of the relayer (no funds for gas, a chain node that refuses it), not of the items' nodes: the
                # items stay queued.
                _log.error("relayer-can-not-send", code=error.code, detail=error.detail, hint=error.hint)
                raise Unavailable(error.detail, hint=error.hint, code=error.code) from error
            if len(items) == 1:
                await self._refuse(kind, items[0], LedgerRefusal(ZERO_DIGEST, error_name(error.detail), error.detail))
                return 0
            middle = len(items) // 2
            return await self._send(kind, items[:middle]) + await self._send(kind, items[middle:])
        if not await self._lease.hold():
            return 0  # the instance that has the lease now looks the items up on the ledger
        refusals = _by_name(refused)
        await together(self._record(kind, item, refusals.get(kind.ledger_name(item.request))) for item in items)
        return len(items) - len(refused)

    async def _record(self, kind: TransactionKind[Any], item: Item, refusal: LedgerRefusal | None) -> None:
        if refusal is None:
            await self._settle(kind, item, CARRIED)
        else:
            await self._refuse(kind, item, refusal)

    async def _send_under_lease(self, kind: TransactionKind[Any], items: Sequence[Item]) -> list[LedgerRefusal]:
        """Sends items and renews the leader lease meanwhile.

        A transaction may take longer than the lease lasts, and another orchestrator would then pay for it again.
        """
        done = asyncio.Event()
        renewing = asyncio.create_task(self._renew_lease_until(done), name="relayer-lease")
        try:
            return await kind.send([item.request for item in items])
        finally:
            done.set()
            await renewing

    async def _renew_lease_until(self, done: asyncio.Event) -> None:
        while not await sleep_or(self._clock, self._lease.lifetime / 3, done):
            with contextlib.suppress(Unavailable):  # if the lease is lost, the scripts refuse later writes
                await self._lease.hold()

    async def _refuse(self, kind: TransactionKind[Any], item: Item, refusal: LedgerRefusal) -> None:
        """Records a refusal by the ledger: the item is retried later if that may help, else settled."""
        if refusal.error in ALREADY_ON_LEDGER:
            # Another account sent it, or this process before a crash: the next round looks at which item is there.
            await self._retry(kind, item, after=timedelta(), reason="")
        elif refusal.error in TEMPORARY_ERRORS and item.row.refusals < MAX_REFUSALS:
            await self._retry(kind, item, after=RETRY_AFTER * (item.row.refusals + 1), reason=refusal.detail)
        else:
            await self._settle(kind, item, kind.refused(refusal))

    async def _retry(self, kind: TransactionKind[Any], item: Item, *, after: timedelta, reason: str) -> None:
        until = unix_ms(self._clock.now()) + int(after.total_seconds() * 1000)
        await self._store.refused_for_now(
            kind.kind, item.row.name, reason=reason, until_ms=until, lease=self._lease.value
        )

    async def _settle(self, kind: TransactionKind[Any], item: Item, settlement: Settlement) -> None:
        name = item.row.name
        if settlement.state is ReceiptState.REFUSED:
            _log.info("not-carried", kind=kind.kind.value, name=name, reason=settlement.reason)
        await self._store.settle(
            kind.kind,
            name,
            settlement.state,
            reason=settlement.reason,
            passing=settlement.repeatable,
            lease=self._lease.value,
        )


def _by_name(refusals: Iterable[LedgerRefusal]) -> dict[str, LedgerRefusal]:
    return {str(refusal.name): refusal for refusal in refusals}
