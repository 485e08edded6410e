"""Loop that sends queued submissions, joins, disputes and leaves to the ledger for nodes.

A row of the queue is postponed before it is sent, so that it becomes due again if this process crashes. Before a row
is sent again, the ledger is asked whether it has the row's work, join or dispute already. The contracts accept the same
work, join or dispute only once, whoever sends it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Generic, TypeVar

from ledger.client.contract import Refusal
from ledger.errors import TransactionReverted
from orchestrator.relayer.strategies import RelayStrategy, Settlement
from orchestrator.store.database import together
from orchestrator.store.relayer import RelayedTransaction, RelayerStore
from protocol.errors import Conflict, Unavailable
from protocol.identity.signing import unix_ms
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.clock import Clock, milliseconds
from protocol.runtime.logs import get_logger
from protocol.runtime.waiting import sleep_or
from protocol.wire.base import WireModel
from protocol.wire.relayed import ReceiptState

R = TypeVar("R", bound=WireModel)

RETRY_PAUSE = timedelta(seconds=20)
"""Delay before a transaction of unknown outcome is checked again; longer than most block times."""

TEMPORARY_ERRORS = frozenset({"EscrowTooLow", "StakeTooLow"})
"""Contract errors that may end by themselves, because the pool or the provider may add money."""

MAX_REFUSALS = 6
"""Number of temporary refusals after which the next refusal of a row is final."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Queued(Generic[R]):
    """A row of the queue with its parsed request."""

    row: RelayedTransaction
    request: R


class Relayer:
    """Sends one batch of each kind of transaction per round.

    Several rounds may run concurrently. A round skips the rows that another round has taken.

    Args:
        store: The queue.
        strategies: One strategy per kind of transaction, in the order in which each round serves them.
        lease: Leader lease of this loop.
        clock: Clock for retries.
    """

    def __init__(
        self, store: RelayerStore, *, strategies: Sequence[RelayStrategy[Any]], lease: LeaderLease, clock: Clock
    ) -> None:
        self._store = store
        self._strategies = strategies
        self._lease = lease
        self._clock = clock
        self._take_locks = {each.kind: asyncio.Lock() for each in strategies}
        self._in_flight: dict[str, set[str]] = {each.kind: set() for each in strategies}

    async def round(self) -> int:
        """Sends the due rows of the queue; returns the number of rows that the ledger accepted.

        Raises:
            MusterError: The chain is down, or the relayer's account can't pay. All rows stay queued.
        """
        taken = 0
        for strategy in self._strategies:
            if not await self._lease.hold():
                return taken
            taken += await self._batch(strategy)
        return taken

    async def _batch(self, strategy: RelayStrategy[R]) -> int:
        in_flight = self._in_flight[strategy.kind]
        async with self._take_locks[strategy.kind]:  # concurrent rounds wake up together; only one may take a row
            items = await self._take(strategy)
            names = {item.row.name for item in items}
            in_flight |= names
        try:
            items = await self._drop_refused(strategy, items)
            return await self._relay(strategy, items) if items else 0
        finally:
            in_flight -= names

    async def _take(self, strategy: RelayStrategy[R]) -> list[_Queued[R]]:
        """Takes due rows and postpones them, so that no other process takes them.

        The method takes no rows if the leader lease was lost. If a concurrent round has sent a row, and the
        transaction is not mined after `RETRY_PAUSE`, the row is only postponed again: that round settles the row.
        """
        now = unix_ms(self._clock.now())
        due = [
            _Queued(row, strategy.parse(row))
            for row in await self._store.due(strategy.kind, now_ms=now, limit=strategy.batch)
        ]
        settled = await together(self._settle_if_over(strategy, item) for item in due)
        items = [item for item, is_settled in zip(due, settled, strict=True) if not is_settled]
        until = now + milliseconds(RETRY_PAUSE)
        rows = [item.row for item in items]
        if not await self._store.postpone(strategy.kind, rows, until_ms=until, lease=self._lease.value):
            return []
        return [item for item in items if item.row.name not in self._in_flight[strategy.kind]]

    async def _settle_if_over(self, strategy: RelayStrategy[R], item: _Queued[R]) -> bool:
        """Settles a row that needs no transaction any more; returns whether the row was settled."""
        settlement = await strategy.settlement(item.row, item.request)
        if settlement is None:
            return False
        if settlement.state is ReceiptState.REFUSED and item.row.reason:
            settlement = replace(settlement, reason=item.row.reason)  # the ledger's reason is more useful to the node
        await self._settle(strategy, item.row, settlement)
        return True

    async def _drop_refused(self, strategy: RelayStrategy[R], items: Sequence[_Queued[R]]) -> list[_Queued[R]]:
        """Drops rows that would revert again, using a dry run.

        So a row that the ledger refuses wastes gas at most once.
        """
        doubtful = [item for item in items if item.row.refusals]
        if not doubtful:
            return list(items)
        refused = _by_subject(await strategy.dry_run([item.request for item in doubtful]))
        dropped = {item.row.name: item for item in doubtful if strategy.subject(item.row) in refused}
        await together(
            self._refuse(strategy, item.row, refused[strategy.subject(item.row)]) for item in dropped.values()
        )
        return [item for item in items if item.row.name not in dropped]

    async def _relay(self, strategy: RelayStrategy[R], items: Sequence[_Queued[R]]) -> int:
        """Sends all items in one transaction; if it reverts, sends each half in its own transaction."""
        try:
            refusals = await self._send_under_lease(strategy, [item.request for item in items])
        except TransactionReverted as error:
            if len(items) == 1:
                subject = strategy.subject(items[0].row)
                await self._refuse(strategy, items[0].row, Refusal(subject, error.name, error.detail))
                return 0
            middle = len(items) // 2
            return await self._relay(strategy, items[:middle]) + await self._relay(strategy, items[middle:])
        except Conflict as error:
            # The fault is the relayer's (its account has no gas) or the RPC endpoint's (it declined the request), and
            # not the rows': they stay queued.
            _log.error("relayer-can-not-send", code=error.code, detail=error.detail, hint=error.hint)
            raise Unavailable(error.detail, hint=error.hint, code=error.code) from error
        if not await self._lease.hold():
            return 0  # the orchestrator that took over the lease looks these rows up on the ledger
        refused = _by_subject(refusals)
        await together(self._finish(strategy, item.row, refused.get(strategy.subject(item.row))) for item in items)
        return len(items) - len(refusals)

    async def _send_under_lease(self, strategy: RelayStrategy[R], requests: Sequence[R]) -> list[Refusal]:
        """Sends requests, and renews the leader lease until the transaction is mined.

        Otherwise the lease could expire meanwhile, and another orchestrator would send and pay the same requests.
        """
        done = asyncio.Event()
        renewing = asyncio.create_task(self._renew_lease_until(done), name="relayer-lease")
        try:
            return await strategy.send(requests)
        finally:
            done.set()
            await renewing

    async def _renew_lease_until(self, done: asyncio.Event) -> None:
        while not await sleep_or(self._clock, self._lease.lifetime / 3, done):
            with contextlib.suppress(Unavailable):  # if the lease expires, the store refuses this loop's later writes
                await self._lease.hold()

    async def _finish(self, strategy: RelayStrategy[R], row: RelayedTransaction, refusal: Refusal | None) -> None:
        if refusal is None:
            await self._settle(strategy, row, Settlement(ReceiptState.CARRIED))
        else:
            await self._refuse(strategy, row, refusal)

    async def _refuse(self, strategy: RelayStrategy[R], row: RelayedTransaction, refusal: Refusal) -> None:
        """Records the ledger's refusal of a row.

        The row is then looked up on the ledger, retried later, or finally refused.
        """
        now = unix_ms(self._clock.now())
        temporary = refusal.error in TEMPORARY_ERRORS
        if refusal.error == strategy.done_error:
            # Another sender, or this relayer before a crash, may have sent the same row. The next round looks it up.
            await self._store.record_temporary_refusal(
                strategy.kind, row.name, reason="", until_ms=now, lease=self._lease.value
            )
        elif temporary and row.refusals < MAX_REFUSALS:
            until = now + milliseconds(RETRY_PAUSE * (row.refusals + 1))
            await self._store.record_temporary_refusal(
                strategy.kind, row.name, reason=refusal.reason, until_ms=until, lease=self._lease.value
            )
        else:
            resubmittable = temporary or strategy.resubmittable
            await self._settle(strategy, row, Settlement(ReceiptState.REFUSED, refusal.reason, resubmittable))

    async def _settle(self, strategy: RelayStrategy[R], row: RelayedTransaction, settlement: Settlement) -> None:
        if settlement.state is ReceiptState.REFUSED:
            _log.info("not-carried", kind=strategy.kind.value, name=row.name, reason=settlement.reason)
        await self._store.settle(
            strategy.kind,
            row.name,
            settlement.state,
            reason=settlement.reason,
            passing=settlement.resubmittable,
            lease=self._lease.value,
        )


def _by_subject(refusals: Sequence[Refusal]) -> dict[str, Refusal]:
    return {refusal.subject: refusal for refusal in refusals}
