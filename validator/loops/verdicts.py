"""Sends verdicts to the ledger: all staged ones in one transaction, few transactions at a time.

A verdict says which submission it is on and whether it answers a dispute, so that the contract refuses a stale one, and
it alone. One whose fate is unknown, or that has waited, is looked up before it is sent: a refusal costs gas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog

from ledger.client import Ledger
from ledger.client.contract import Refusal
from ledger.client.work import Verdict, WorkRecord, WorkStatus
from ledger.errors import TransactionReverted
from protocol.runtime.clock import Clock
from validator.chain.connection import PoolChain
from validator.domain.items import Item, ItemKind, Staged
from validator.metrics import ValidatorMetrics
from validator.queue.leases import HeldItems
from validator.queue.retry_policy import GivesUp, Step
from validator.queue.store import WorkQueue

NOT_OURS_STEP = Step(pause=timedelta(seconds=3), for_all=False, counted=False, gives_up=GivesUp.BARRED)
"""Retry step for work that this validator may not judge: another one on this Redis may, at once."""

FRESH = timedelta(seconds=2)
"""For so long after its work was looked up on the ledger a verdict is sent without another look."""

TURN_PAUSE = timedelta(seconds=2)
"""Pause after a decisive verdict was refused as out of turn. Each further wait for the same dispute doubles it, at most
five times: a validator whose clock is ahead must not pay for a refusal every two seconds."""

OVER = frozenset({"WrongStatus", "OtherSubmission", "TooLate"})
"""Refusals that say that there is nothing more to do."""

NOT_YOUR_TURN = "NotYourTurn"
"""The refusal that says that others decide a dispute first, or that their order is not drawn yet."""

TURN_CODE = "not-your-turn"

NOT_OURS = frozenset({"ConflictOfInterest", "NotValidator"})
"""Refusals that say that another validator may."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Given:
    """A verdict on its way to the ledger.

    Args:
        item: What it is of.
        staged: What it says.
        looked_at: When the ledger was asked how its work stands, on the clock's monotonic time in seconds.
    """

    item: Item
    staged: Staged
    looked_at: float

    @property
    def verdict(self) -> Verdict:
        """Converts to the ledger's form."""
        work = self.item.work
        return Verdict(
            key=work.key,
            sha256=work.sha256,
            units=work.units,
            outcome=self.staged.outcome,
            reason=self.staged.reason,
            audit_hash=self.staged.audit_hash,
            decisive=self.item.kind is ItemKind.DISPUTE,
        )


Taken = Callable[[Sequence[Given]], Awaitable[None]]
"""Told of verdicts that the ledger took."""


class Verdicts:
    """Queue of verdicts that wait for a transaction.

    Args:
        waiting: Capacity; producers of further verdicts wait.
    """

    def __init__(self, *, waiting: int) -> None:
        self._waiting: asyncio.Queue[Given] = asyncio.Queue(maxsize=waiting)
        self.news = asyncio.Event()
        """Set when there is something to send."""

    async def hand(self, item: Item, staged: Staged, *, looked_at: float) -> None:
        """Takes a staged verdict; its item is ours until it is settled."""
        await self._waiting.put(Given(item, staged, looked_at))
        self.news.set()

    def next(self, *, most: int) -> list[Given]:
        """Returns waiting verdicts, up to a limit."""
        batch: list[Given] = []
        while len(batch) < most and not self._waiting.empty():
            batch.append(self._waiting.get_nowait())
        return batch


class SendQueue:
    """One transaction with verdicts at a time; several lanes let what comes meanwhile into the same block.

    Args:
        verdicts: Where they wait.
        chain: The ledger.
        queue: Where their work is.
        held: What this process holds.
        batch: Verdicts per transaction.
        told: Told what the ledger took.
        measures: What is measured.
        clock: Whose time counts.
    """

    def __init__(
        self,
        verdicts: Verdicts,
        *,
        chain: PoolChain,
        queue: WorkQueue,
        held: HeldItems,
        batch: int,
        told: Taken,
        measures: ValidatorMetrics,
        clock: Clock,
    ) -> None:
        self._verdicts = verdicts
        self._clock = clock
        self._chain = chain
        self._queue = queue
        self._held = held
        self._batch = batch
        self._told = told
        self._measures = measures
        self._unsure: list[Given] = []

    async def round(self) -> int:
        """Sends what is there; returns how many verdicts the ledger took.

        Raises:
            MusterError: The chain is down, or the validator can't pay. What was under way is looked up first next time.
        """
        taken = 0
        while True:
            doubtful = bool(self._unsure)
            if not doubtful:
                self._unsure = self._verdicts.next(most=self._batch)
            if not self._unsure:
                return taken
            if doubtful or any(self._has_waited(given) for given in self._unsure):
                await self._drop_unwanted()
            if self._unsure:
                taken += await self._send(await self._chain.ledger(), list(self._unsure))
            self._unsure = []

    def _has_waited(self, given: Given) -> bool:
        return self._clock.monotonic() - given.looked_at > FRESH.total_seconds()

    async def _drop_unwanted(self) -> None:
        """Settles what the ledger has, or does not want any more: the rest of what is under way may be sent."""
        ledger, batch = await self._chain.ledger(), list(self._unsure)
        works = await asyncio.gather(*(ledger.work.get(given.item.work.key) for given in batch))
        for given, work in zip(batch, works, strict=True):
            if not _awaits(work, given):
                if work is not None and given.staged.validator in {work.judge, work.juror}:
                    await self._told([given])
                else:
                    _log.info("dropped", item=given.item.id, why="the ledger does not wait for this verdict any more")
                await self._settle(given)

    async def _send(self, ledger: Ledger, batch: Sequence[Given]) -> int:
        """One transaction; halves of it when the chain refuses the whole."""
        try:
            with self._measures.stage("ledger"):
                refused = await ledger.work.judge([given.verdict for given in batch])
        except TransactionReverted as error:
            if len(batch) == 1:
                await self._refused(batch[0], Refusal(batch[0].item.work.key, error.name, error.detail))
                return 0
            middle = len(batch) // 2
            return await self._send(ledger, batch[:middle]) + await self._send(ledger, batch[middle:])
        refusals = {refusal.subject: refusal for refusal in refused}
        taken = [given for given in batch if given.item.work.key not in refusals]
        await self._told(taken)
        for given in batch:
            refusal = refusals.get(given.item.work.key)
            if refusal is None:
                await self._settle(given)
            else:
                await self._refused(given, refusal)
        return len(taken)

    async def _refused(self, given: Given, refusal: Refusal) -> None:
        item, error = given.item, refusal.error
        self._unsure = [each for each in self._unsure if each is not given]
        _log.warning("verdict-refused", key=item.work.key, reason=refusal.reason)
        self._held.remove(item)
        if error in OVER:
            await self._queue.done(item)
        elif error in NOT_OURS:
            why = f"the ledger does not let this validator judge it: {refusal.reason}"
            await self._queue.failed(item, NOT_OURS_STEP, code="not-ours", why=why)
        elif error == NOT_YOUR_TURN:
            await self._queue.failed(
                item, until_turn(TURN_PAUSE * 2 ** min(item.tries, 5)), code=TURN_CODE, why=refusal.reason
            )
        else:
            hint = "the validator's software and the ledger's contracts may be of different releases"
            await self._queue.park(item, code="verdict-refused", why=refusal.reason, hint=hint)

    async def _settle(self, given: Given) -> None:
        self._unsure = [each for each in self._unsure if each is not given]
        self._held.remove(given.item)
        await self._queue.done(given.item)


def until_turn(pause: timedelta) -> Step:
    """Retry step for a dispute that others may decide first: it waits and is never parked."""
    return Step(pause=pause, for_all=False, counted=False, gives_up=GivesUp.NOT)


def _awaits(work: WorkRecord | None, given: Given) -> bool:
    """Returns whether the ledger still needs this verdict of this validator."""
    item = given.item
    wanted = WorkStatus.DISPUTED if item.kind is ItemKind.DISPUTE else WorkStatus.SUBMITTED
    if work is None or work.status is not wanted or not item.work.is_what(work):
        return False
    return work.juror != given.staged.validator
