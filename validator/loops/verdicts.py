"""Gives verdicts on the ledger: everything that is there goes out in one transaction, and few are under way at a time.

A verdict whose fate is unknown is looked up before it is sent again; the contract takes one first verdict per work, so
that not even two validators who know nothing of each other can judge anything twice.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import structlog

from ledger.client import Ledger
from ledger.client.work import Refusal, Verdict, Work, WorkStatus
from ledger.errors import TransactionReverted
from validator.chain import Chain
from validator.holding import InHand
from validator.items import Item, Kind, Staged
from validator.measures import Measures
from validator.store.queue import WorkQueue

REST = timedelta(seconds=3)
"""Before work comes again that this validator may not judge, so that another on this Redis has it meanwhile."""

OVER = frozenset({"WrongStatus", "TooLate"})
"""Refusals that say that there is nothing more to do."""

NOT_OURS = frozenset({"ConflictOfInterest", "NotValidator"})
"""Refusals that say that another validator may."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Given:
    """A verdict on its way to the ledger."""

    item: Item
    staged: Staged

    @property
    def verdict(self) -> Verdict:
        """As the ledger takes it."""
        return Verdict(self.item.work.key, self.staged.outcome, self.staged.reason, self.staged.audit_hash)


Taken = Callable[[Sequence[Given]], Awaitable[None]]
"""Told of verdicts that the ledger took."""


class Verdicts:
    """Where verdicts wait for a lane to the ledger.

    Args:
        waiting: Verdicts that may wait here; who brings more waits too.
    """

    def __init__(self, *, waiting: int) -> None:
        self._waiting: asyncio.Queue[Given] = asyncio.Queue(maxsize=waiting)
        self.news = asyncio.Event()
        """Set when there is something to send."""

    async def hand(self, item: Item, staged: Staged) -> None:
        """Takes a staged verdict; its item is ours until it is settled."""
        await self._waiting.put(Given(item, staged))
        self.news.set()

    def next(self, *, most: int) -> list[Given]:
        """What waits, at most so many."""
        batch: list[Given] = []
        while len(batch) < most and not self._waiting.empty():
            batch.append(self._waiting.get_nowait())
        return batch


class Lane:
    """One transaction with verdicts at a time; several lanes let what comes meanwhile into the same block.

    Args:
        verdicts: Where they wait.
        chain: The ledger.
        queue: Where their work is.
        held: What this process holds.
        batch: Verdicts per transaction.
        told: Told what the ledger took.
        measures: What is measured.
    """

    def __init__(
        self,
        verdicts: Verdicts,
        *,
        chain: Chain,
        queue: WorkQueue,
        held: InHand,
        batch: int,
        told: Taken,
        measures: Measures,
    ) -> None:
        self._verdicts = verdicts
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
            batch = await self._not_there() if self._unsure else []
            batch = batch or self._verdicts.next(most=self._batch)
            if not batch:
                return taken
            self._unsure = batch
            taken += await self._send(await self._chain.ledger(), batch)
            self._unsure = []

    async def _not_there(self) -> list[Given]:
        """What was under way when something broke, and is not on the ledger."""
        ledger, batch = await self._chain.ledger(), list(self._unsure)
        works = await asyncio.gather(*(ledger.work.get(given.item.work.key) for given in batch))
        for given, work in zip(batch, works, strict=True):
            if not _awaits(work, given.item.kind):
                if work is not None and work.judge == given.staged.validator:
                    await self._told([given])
                await self._settle(given)
        return list(self._unsure)

    async def _send(self, ledger: Ledger, batch: Sequence[Given]) -> int:
        """One transaction; halves of it when the chain refuses the whole."""
        try:
            with self._measures.stage("ledger"):
                refused = await ledger.work.judge([given.verdict for given in batch])
        except TransactionReverted as error:
            if len(batch) == 1:
                await self._refused(batch[0], Refusal(batch[0].item.work.key, error.detail))
                return 0
            middle = len(batch) // 2
            return await self._send(ledger, batch[:middle]) + await self._send(ledger, batch[middle:])
        refusals = {refusal.key: refusal for refusal in refused}
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
        item, error = given.item, _error_name(refusal.reason)
        self._unsure = [each for each in self._unsure if each is not given]
        _log.warning("verdict-refused", key=item.work.key, reason=refusal.reason)
        self._held.remove(item)
        if error in OVER:
            await self._queue.done(item)
        elif error in NOT_OURS:
            why = f"the ledger does not let this validator judge it: {refusal.reason}"
            await self._queue.retry(item, after=REST, code="not-ours", why=why, counted=False)
        else:
            hint = "the validator's software and the ledger's contracts may be of different releases"
            await self._queue.park(item, code="verdict-refused", why=refusal.reason, hint=hint)

    async def _settle(self, given: Given) -> None:
        self._unsure = [each for each in self._unsure if each is not given]
        self._held.remove(given.item)
        await self._queue.done(given.item)


def _awaits(work: Work | None, kind: Kind) -> bool:
    """Whether a verdict of this kind is still wanted."""
    wanted = WorkStatus.DISPUTED if kind is Kind.DISPUTE else WorkStatus.SUBMITTED
    return work is not None and work.status is wanted


def _error_name(reason: str) -> str:
    """The contract's error in a refusal, as `Name(arguments)` or at the end of plain words as `(Name)`."""
    match = re.match(r"([A-Z]\w+)\b", reason) or re.search(r"\(([A-Z]\w+)\)$", reason)
    return match[1] if match else ""
