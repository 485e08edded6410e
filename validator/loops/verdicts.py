"""Sends staged verdicts to the ledger: many in one transaction, and few transactions at a time.

Each verdict names its submission, and states whether it decides a dispute. So the contract can refuse an outdated
verdict without refusing the other verdicts in the batch. A refused verdict costs gas. So the loop reads the work record
again before it sends a verdict that has waited for more than two seconds, or a verdict whose earlier transaction has an
unknown outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from ledger.client import Ledger
from ledger.client.contract import Refusal
from ledger.client.work import Verdict, WorkRecord, WorkStatus
from ledger.errors import TransactionReverted
from protocol.runtime.backoff import backoff
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.tracing import Tracer
from validator.chain.connection import PoolChain
from validator.domain.items import Item, ItemKind, Staged
from validator.metrics import ValidatorMetrics
from validator.queue.leases import HeldItems
from validator.queue.retry_policy import GiveUpReason, Step
from validator.queue.store import WorkQueue

NOT_OURS_STEP = Step(pause=timedelta(seconds=3), for_all=False, counted=False, gives_up=GiveUpReason.NOT_ALLOWED)
"""Next step for work that this validator may not judge; another validator on this Redis may take the work
immediately."""

FRESH = timedelta(seconds=2)
"""Maximum age of the last read of a work record; if the read is older, it is repeated before the verdict is sent."""

TURN_PAUSE = timedelta(seconds=2)
"""First pause after the ledger refused a verdict in a dispute because other validators decide first.

The pause doubles with each attempt, because the ledger may repeatedly refuse a validator whose clock is ahead, and each
refusal costs gas.
"""

LONGEST_TURN_PAUSE = timedelta(seconds=64)
"""Longest pause after such refusals."""

OVER = frozenset({"WrongStatus", "OtherSubmission", "TooLate"})
"""Contract errors after which the ledger needs no verdict on the item any more."""

NOT_YOUR_TURN = "NotYourTurn"
"""Contract error if other validators decide a dispute first, or if their order is not recorded yet."""

TURN_CODE = "not-your-turn"
"""Error code that the queue stores for a dispute that other validators decide first."""

NOT_OURS = frozenset({"ConflictOfInterest", "NotValidator"})
"""Contract errors if this validator may not judge the work, but another validator may."""

_log = get_logger(__name__)
_tracer = Tracer(__name__)


@dataclass(frozen=True, slots=True)
class PendingVerdict:
    """A staged verdict that waits to be sent.

    Args:
        item: The leased item.
        staged: The verdict.
        looked_at: Time of the last read of the work's record, on the monotonic clock in seconds.
    """

    item: Item
    staged: Staged
    looked_at: float

    @property
    def verdict(self) -> Verdict:
        """The verdict as an argument of the ledger client."""
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


OnRecorded = Callable[[Sequence[PendingVerdict]], Awaitable[None]]
"""Callback for verdicts that the ledger accepted."""


class PendingVerdicts:
    """Verdicts of this process that wait for a transaction.

    Args:
        waiting: Maximum number of waiting verdicts; at the limit, `add` waits for room.
    """

    def __init__(self, *, waiting: int) -> None:
        self._waiting: asyncio.Queue[PendingVerdict] = asyncio.Queue(maxsize=waiting)
        self.news = asyncio.Event()
        """Set when a verdict was added."""

    async def add(self, item: Item, staged: Staged, *, looked_at: float) -> None:
        """Adds a staged verdict; from then on, a `VerdictSender` is responsible for the verdict's item.

        Args:
            item: The leased item.
            staged: The verdict.
            looked_at: Time of the last read of the work's record, on the monotonic clock in seconds.
        """
        await self._waiting.put(PendingVerdict(item, staged, looked_at))
        self.news.set()

    def next(self, *, most: int) -> list[PendingVerdict]:
        """Removes and returns waiting verdicts, oldest first, at most `most`."""
        batch: list[PendingVerdict] = []
        while len(batch) < most and not self._waiting.empty():
            batch.append(self._waiting.get_nowait())
        return batch


class VerdictSender:
    """Loop that sends batches of verdicts, one transaction at a time.

    A process may have several of these loops, so that one can send while another waits for its transaction's block.

    Args:
        verdicts: Waiting verdicts, which all loops of the process share.
        chain: Chain client of the validator's pool.
        queue: The work queue.
        held: Items leased by this process.
        batch: Maximum number of verdicts per transaction.
        on_recorded: Called with the verdicts that the ledger accepted.
        metrics: Metrics of this process.
        clock: Clock of ages and pauses.
    """

    def __init__(
        self,
        verdicts: PendingVerdicts,
        *,
        chain: PoolChain,
        queue: WorkQueue,
        held: HeldItems,
        batch: int,
        on_recorded: OnRecorded,
        metrics: ValidatorMetrics,
        clock: Clock,
    ) -> None:
        self._verdicts = verdicts
        self._clock = clock
        self._chain = chain
        self._queue = queue
        self._held = held
        self._batch = batch
        self._on_recorded = on_recorded
        self._metrics = metrics
        self._unsure: list[PendingVerdict] = []
        """Unsettled verdicts of the present batch; after an error, the ledger may have recorded some of them."""

    async def round(self) -> int:
        """Sends all waiting verdicts; returns the number of verdicts that the ledger accepted.

        Raises:
            MusterError: The chain is down, or the validator can't pay gas. The next round first reads from the ledger
                which of the verdicts were recorded, and then sends the other ones again.
        """
        taken = 0
        while True:
            doubtful = bool(self._unsure)
            if not doubtful:
                self._unsure = self._verdicts.next(most=self._batch)
            if not self._unsure:
                return taken
            if doubtful or any(self._has_waited(pending) for pending in self._unsure):
                await self._drop_unwanted()
            if self._unsure:
                taken += await self._send(await self._chain.ledger(), list(self._unsure))
            self._unsure = []

    def _has_waited(self, pending: PendingVerdict) -> bool:
        return self._clock.monotonic() - pending.looked_at > FRESH.total_seconds()

    async def _drop_unwanted(self) -> None:
        """Removes those verdicts of the batch that the ledger has already recorded or no longer needs."""
        ledger, batch = await self._chain.ledger(), list(self._unsure)
        works = await asyncio.gather(*(ledger.work.get(pending.item.work.key) for pending in batch))
        for pending, work in zip(batch, works, strict=True):
            if not _awaits(work, pending):
                if work is not None and pending.staged.validator in {work.judge, work.juror}:
                    await self._on_recorded([pending])
                else:
                    _log.info("dropped", item=pending.item.id, why="the ledger no longer needs this verdict")
                await self._settle(pending)

    async def _send(self, ledger: Ledger, batch: Sequence[PendingVerdict]) -> int:
        """Sends a batch in one transaction, or in halves if the chain refuses the whole transaction.

        Returns:
            The number of accepted verdicts.
        """
        keys = [pending.item.work.key for pending in batch]
        try:
            with self._metrics.stage("ledger"), _tracer.span("verdict", *keys) as span:
                refused = await ledger.work.judge([pending.verdict for pending in batch])
                for each in refused:
                    span.fail(each.error, each.subject)
        except TransactionReverted as error:
            if len(batch) == 1:
                await self._refused(batch[0], Refusal(batch[0].item.work.key, error.name, error.detail))
                return 0
            middle = len(batch) // 2
            return await self._send(ledger, batch[:middle]) + await self._send(ledger, batch[middle:])
        refusals = {refusal.subject: refusal for refusal in refused}
        taken = [pending for pending in batch if pending.item.work.key not in refusals]
        await self._on_recorded(taken)
        for pending in batch:
            refusal = refusals.get(pending.item.work.key)
            if refusal is None:
                await self._settle(pending)
            else:
                await self._refused(pending, refusal)
        return len(taken)

    async def _refused(self, pending: PendingVerdict, refusal: Refusal) -> None:
        item, error = pending.item, refusal.error
        self._unsure = [each for each in self._unsure if each is not pending]
        _log.warning("verdict-refused", key=item.work.key, reason=refusal.reason)
        self._held.remove(item)
        if error in OVER:
            await self._queue.done(item)
        elif error in NOT_OURS:
            why = f"the ledger does not let this validator judge the work: {refusal.reason}"
            await self._queue.failed(item, NOT_OURS_STEP, code="not-ours", why=why)
        elif error == NOT_YOUR_TURN:
            pause = backoff(TURN_PAUSE, LONGEST_TURN_PAUSE, item.tries + 1)
            await self._queue.failed(item, until_turn(pause), code=TURN_CODE, why=refusal.reason)
        else:
            hint = "check that the validator and the ledger's contracts are of the same release"
            await self._queue.park(item, code="verdict-refused", why=refusal.reason, hint=hint)

    async def _settle(self, pending: PendingVerdict) -> None:
        self._unsure = [each for each in self._unsure if each is not pending]
        self._held.remove(pending.item)
        await self._queue.done(pending.item)


def until_turn(pause: timedelta) -> Step:
    """Returns the next step for a dispute that other validators decide first: another check after a pause.

    The pause does not count as a failure, so the queue never parks the item because of it.
    """
    return Step(pause=pause, for_all=False, counted=False, gives_up=GiveUpReason.NONE)


def _awaits(work: WorkRecord | None, pending: PendingVerdict) -> bool:
    """Returns True if the ledger still needs this verdict of this validator."""
    item = pending.item
    wanted = WorkStatus.DISPUTED if item.kind is ItemKind.DISPUTE else WorkStatus.SUBMITTED
    if work is None or work.status is not wanted or not item.work.matches(work):
        return False
    return work.juror != pending.staged.validator
