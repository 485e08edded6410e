"""Relays submissions, joins and disputes to the ledger, so that nodes need no gas.

What is about to be carried is put off first, so that it comes again whatever happens to us; and what comes again is
looked up on the ledger before it is carried again. The ledger takes each piece of work once, whoever carries it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import timedelta

import structlog

from orchestrator.chain.run_interface import NotTaken, RunLedger, error_name, holds_until
from orchestrator.domain.slots import SlotState
from orchestrator.store.database import together
from orchestrator.store.relayer import RelayedKind, RelayedTransaction, RelayerStore
from protocol.errors import Conflict, Unavailable
from protocol.identifiers import ZERO_DIGEST
from protocol.identity.signing import unix_ms
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.clock import Clock
from protocol.wire.relayed import JoinRequest, ReceiptState, SignedDispute, SubmissionRequest

BATCH = 64
"""Per transaction: some 10 million gas at the most; the contracts take up to 256."""

DISPUTES = 8
"""At a time, for each is a transaction of its own; submissions wait for them meanwhile."""

AGAIN = timedelta(seconds=20)
"""Delay before a transaction of unknown outcome is checked again; longer than most block times."""

PASSING = frozenset({"EscrowTooLow", "StakeTooLow"})
"""Errors that may pass: money can come."""

DONE = frozenset({"WorkExists", "MemberAlready", "WrongStatus"})
"""Errors that say that it is there already."""

MOST_REFUSALS = 6

OVER = "its time was over before it could be carried to the ledger"
DECIDED = "its verdict can't be disputed any more"
OTHER_WORK = "other work stands on the ledger under this lease"

_log = structlog.get_logger(__name__)


class Relayer:
    """One batch of each kind. Several rounds may be under way: what one has taken, the others leave.

    Args:
        store: The queue.
        ledger: The run on the ledger; its key pays.
        lease: Of this loop.
        clock: Whose time counts.
    """

    def __init__(self, store: RelayerStore, *, ledger: RunLedger, lease: LeaderLease, clock: Clock) -> None:
        self._store = store
        self._ledger = ledger
        self._lease = lease
        self._clock = clock
        self._taking = {kind: asyncio.Lock() for kind in RelayedKind}
        self._under_way: dict[RelayedKind, set[str]] = {kind: set() for kind in RelayedKind}

    async def round(self) -> int:
        """Carries what is due; returns how much it was.

        Raises:
            MusterError: The chain is down, or the relayer can't pay; everything stays queued, and nobody is blamed.
        """
        carried = 0
        for kind in RelayedKind:
            if not await self._lease.hold():
                return carried
            carried += await self._batch(kind)
        return carried

    async def _batch(self, kind: RelayedKind) -> int:
        async with self._taking[kind]:  # all lanes wake at the same news, and only one may take what it is about
            rows = await self._take(kind)
            names = {row.name for row in rows}
            self._under_way[kind] |= names
        try:
            rows = await self._worth_gas(kind, rows)
            return await self._carry(kind, rows) if rows else 0
        finally:
            self._under_way[kind] -= names

    async def _take(self, kind: RelayedKind) -> list[RelayedTransaction]:
        """Takes due rows and postpones them for other instances; empty if the leader lease was lost.

        A row whose transaction waits longer than that is postponed again and left to the send queue that has it.
        """
        now = unix_ms(self._clock.now())
        limit = DISPUTES if kind is RelayedKind.DISPUTE else BATCH
        due = await self._store.due(kind, now_ms=now, limit=limit)
        settled = await together(self._settled(kind, row) for row in due)
        rows = [row for row, is_settled in zip(due, settled, strict=True) if not is_settled]
        until = now + int(AGAIN.total_seconds() * 1000)
        held = await self._store.put_off(kind, rows, until_ms=until, lease=self._lease.value)
        return [row for row in rows if row.name not in self._under_way[kind]] if held else []

    async def _worth_gas(self, kind: RelayedKind, rows: Sequence[RelayedTransaction]) -> list[RelayedTransaction]:
        """Drops rows that would revert again, by a dry run, so that gas is wasted at most once."""
        doubtful = [row for row in rows if row.refusals]
        refused = {str(each.name): each for each in await self._refusals(kind, doubtful)} if doubtful else {}
        hopeless = [row for row in doubtful if _ledger_name(kind, row) in refused]
        await together(self._refuse(kind, row, refused[_ledger_name(kind, row)]) for row in hopeless)
        return [row for row in rows if not row.refusals or _ledger_name(kind, row) not in refused]

    async def _settled(self, kind: RelayedKind, row: RelayedTransaction) -> bool:
        """Returns whether a row is obsolete: the ledger has it, or it has expired."""
        match kind:
            case RelayedKind.WORK:
                there, obstacle = await self._work(row)
            case RelayedKind.JOIN:
                there, obstacle = await self._join(row)
            case RelayedKind.DISPUTE:
                there, obstacle = await self._dispute(row)
        if there:
            await self._settle(kind, row, ReceiptState.CARRIED)
        elif obstacle:
            again = kind is RelayedKind.DISPUTE and obstacle == OVER  # its word was too short, and another may hold
            await self._settle(kind, row, ReceiptState.REFUSED, row.reason or obstacle, passing=again)
        return there or bool(obstacle)

    async def _join(self, row: RelayedTransaction) -> tuple[bool, str]:
        joining = JoinRequest.model_validate_json(row.body)
        there = row.tries > 0 and await self._ledger.seat(joining.invite.node) is not None
        return there, OVER if joining.invite.invite.expired(self._clock.now()) else ""

    async def _work(self, row: RelayedTransaction) -> tuple[bool, str]:
        work = SubmissionRequest.model_validate_json(row.body).work
        over = work.lease.lease.expired(self._clock.now())
        if not over and row.tries == 0:
            return False, ""
        found = await self._ledger.work(work.lease.lease.key.hash)
        if found is None:
            return False, OVER if over else ""
        same = (found.sha256, found.units) == (work.sha256, work.units)
        return same, "" if same else OTHER_WORK

    async def _dispute(self, row: RelayedTransaction) -> tuple[bool, str]:
        dispute = SignedDispute.model_validate_json(row.body)
        found = await self._ledger.work(dispute.key)
        if found is None or found.state is SlotState.DISPUTED:
            return found is not None, DECIDED
        over = self._clock.now() > holds_until(dispute)
        return False, DECIDED if found.state is not SlotState.PROVISIONAL else OVER if over else ""

    async def _carry(self, kind: RelayedKind, rows: Sequence[RelayedTransaction]) -> int:
        """One transaction; halves of it when the chain refuses the whole."""
        try:
            refused = await self._send_and_hold(kind, rows)
        except Unavailable:
            raise
        except Conflict as error:
            if error.code != "transaction-reverted":
                # The relayer's own trouble (no gas, a node that declines): it stays queued, and nobody is blamed.
                _log.error("relayer-can-not-send", code=error.code, detail=error.detail, hint=error.hint)
                raise Unavailable(error.detail, hint=error.hint, code=error.code) from error
            if len(rows) == 1:
                await self._refuse(kind, rows[0], NotTaken(ZERO_DIGEST, error_name(error.detail), error.detail))
                return 0
            middle = len(rows) // 2
            return await self._carry(kind, rows[:middle]) + await self._carry(kind, rows[middle:])
        if not await self._lease.hold():
            return 0  # whoever has it now looks it up on the ledger
        by_name = {str(each.name): each for each in refused}
        await together(self._end(kind, row, by_name.get(_ledger_name(kind, row))) for row in rows)
        return len(rows) - len(refused)

    async def _end(self, kind: RelayedKind, row: RelayedTransaction, refusal: NotTaken | None) -> None:
        if refusal is None:
            await self._settle(kind, row, ReceiptState.CARRIED)
        else:
            await self._refuse(kind, row, refusal)

    async def _send_and_hold(self, kind: RelayedKind, rows: Sequence[RelayedTransaction]) -> list[NotTaken]:
        """A transaction may take longer than the loop's lease lasts; another orchestrator would pay for it again."""
        done = asyncio.Event()
        holding = asyncio.create_task(self._hold_until(done), name="relayer-lease")
        try:
            return await self._send(kind, rows)
        finally:
            done.set()
            await holding

    async def _hold_until(self, done: asyncio.Event) -> None:
        while not done.is_set():
            pause = asyncio.ensure_future(self._clock.sleep(self._lease.lifetime / 3))
            ended = asyncio.ensure_future(done.wait())
            await asyncio.wait({pause, ended}, return_when=asyncio.FIRST_COMPLETED)
            for waiting in (pause, ended):
                waiting.cancel()
            if not done.is_set():
                with contextlib.suppress(Unavailable):  # if it is lost, what is written afterwards is refused
                    await self._lease.hold()

    async def _send(self, kind: RelayedKind, rows: Sequence[RelayedTransaction]) -> list[NotTaken]:
        if kind is RelayedKind.JOIN:
            return await self._ledger.carry_joins([JoinRequest.model_validate_json(row.body) for row in rows])
        if kind is RelayedKind.DISPUTE:
            return await self._ledger.carry_disputes([SignedDispute.model_validate_json(row.body) for row in rows])
        return await self._ledger.carry([SubmissionRequest.model_validate_json(row.body).work for row in rows])

    async def _refusals(self, kind: RelayedKind, rows: Sequence[RelayedTransaction]) -> list[NotTaken]:
        if kind is RelayedKind.JOIN:
            return await self._ledger.join_refusals([JoinRequest.model_validate_json(row.body) for row in rows])
        if kind is RelayedKind.DISPUTE:
            return []  # it is asked of the ledger whenever one is carried
        return await self._ledger.refusals([SubmissionRequest.model_validate_json(row.body).work for row in rows])

    async def _refuse(self, kind: RelayedKind, row: RelayedTransaction, refusal: NotTaken) -> None:
        now = unix_ms(self._clock.now())
        if refusal.error in DONE:
            # Somebody else carried it, perhaps we ourselves before a crash: the next round asks whose it is.
            await self._store.refused_for_now(kind, row.name, reason="", until_ms=now, lease=self._lease.value)
        elif refusal.error in PASSING and row.refusals < MOST_REFUSALS:
            pause = AGAIN * (row.refusals + 1)
            until = now + int(pause.total_seconds() * 1000)
            await self._store.refused_for_now(
                kind, row.name, reason=refusal.words, until_ms=until, lease=self._lease.value
            )
        else:
            passing = refusal.error in PASSING or kind is RelayedKind.DISPUTE  # under a new deadline, say
            await self._settle(kind, row, ReceiptState.REFUSED, refusal.words, passing=passing)

    async def _settle(
        self,
        kind: RelayedKind,
        row: RelayedTransaction,
        state: ReceiptState,
        reason: str = "",
        *,
        passing: bool = False,
    ) -> None:
        if state is ReceiptState.REFUSED:
            _log.info("not-carried", kind=kind.value, name=row.name, reason=reason)
        await self._store.settle(kind, row.name, state, reason=reason, passing=passing, lease=self._lease.value)


def _ledger_name(kind: RelayedKind, row: RelayedTransaction) -> str:
    """By what the ledger names it when it refuses: a work key, or a node."""
    return row.name.partition("-")[0] if kind is RelayedKind.JOIN else row.name
