"""Examines submitted work, one item at a time per worker, from the queue to a staged verdict.

Each step is repeatable: if a worker dies, another one continues, and no verdict is sent before its evidence is in the
store. An error of this validator returns the item to the queue or parks it for a person; it never becomes a verdict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import structlog

from ledger.client.work import WorkRecord
from protocol.errors import MusterError, RateLimited
from protocol.identifiers import Address, Digest
from protocol.runtime.clock import Clock
from protocol.runtime.waiting import cancel_all
from protocol.wire.listings import RolloutItem
from protocol.wire.runs import CheckpointRef
from validator.assignment.eligibility import Next, standing_of
from validator.chain.checkpoints import Checkpoints
from validator.chain.connection import NotSeated, PoolChain
from validator.domain.items import LOOKS, Item, ItemId, ItemKind, Staged
from validator.domain.submissions import WorkFacts
from validator.examination.interface import Conclusion, Examination, Examiner, NotJudged
from validator.files import WorkFiles
from validator.health import Health
from validator.loops.disputes import LookResults
from validator.loops.juries import Juries
from validator.loops.verdicts import NOT_OURS_STEP, TURN_CODE, Verdicts, until_turn
from validator.metrics import ValidatorMetrics
from validator.queue.error_class import ErrorClass, classify_error
from validator.queue.leases import HeldItems
from validator.queue.retry_policy import STILL_GIVEN_UP, RetryPolicy, Step, after_trouble
from validator.queue.store import Put, WorkQueue
from validator.store.copies import SeenOutputs
from validator.store.near_ties import NearTieBudgets
from validator.verdicts.audit_file import DrawnRows, audit_file, by_hand
from validator.verdicts.row_sampling import RowSampling

SOONEST = timedelta(seconds=1)
"""Shortest pause before the next check of a dispute that is not this validator's turn yet."""

LOOKED_AT_AGAIN = timedelta(seconds=5)
"""Longest such pause, unless a quarter of the time to the turn is longer; a contradiction brings the turn forward."""

CRASHED = "validator-crashed"

_log = structlog.get_logger(__name__)


class CannotJudge(MusterError):
    """The examiner can't judge this work here and now. This never counts against the node."""

    code = "not-judged"
    status = 503


class Judging:
    """Worker loops of one validator.

    Args:
        me: This validator.
        chain: The ledger.
        queue: The work queue.
        held: Items leased by this process.
        health: Health of this process.
        files: Transfers of files.
        versions: Finds the policy version of a submission.
        drawing: Draws the rows to recompute.
        examiner: Runs the checks.
        seen: Fingerprints of earlier outputs.
        near_ties: Budgets over each node's newest files.
        verdicts: Queue of verdicts to send.
        looks: Follow-up of second looks.
        juries: Records the order of validators for disputes.
        retry_policy: Limits of retries.
        measures: Metrics.
        clock: Clock of the workers.
    """

    def __init__(
        self,
        me: Address,
        *,
        chain: PoolChain,
        queue: WorkQueue,
        held: HeldItems,
        health: Health,
        files: WorkFiles,
        versions: Checkpoints,
        drawing: RowSampling,
        examiner: Examiner,
        seen: SeenOutputs,
        near_ties: NearTieBudgets,
        verdicts: Verdicts,
        looks: LookResults,
        juries: Juries,
        retry_policy: RetryPolicy,
        measures: ValidatorMetrics,
        clock: Clock,
    ) -> None:
        self._me = me
        self._chain = chain
        self._queue = queue
        self._held = held
        self._health = health
        self._taking = asyncio.Lock()
        self._suspect: ItemId | None = None
        self._files = files
        self._versions = versions
        self._drawing = drawing
        self._examiner = examiner
        self._seen = seen
        self._near_ties = near_ties
        self._verdicts = verdicts
        self._looks = looks
        self._juries = juries
        self._retry_policy = retry_policy
        self._measures = measures
        self._clock = clock

    async def round(self, beat: Callable[[], None] = lambda: None) -> int:
        """Examines items until the queue has none to take; returns their number.

        Args:
            beat: Called after each item.

        Raises:
            NotSeated: The pool does not accept this key's verdicts (yet).
            ChainUnavailable: The chain can't be read.
            StoreUnavailable: Redis is down; leased items return when their leases expire.
        """
        taken = 0
        if not await self._chain.is_seated():
            raise NotSeated(f"{self._me} is no validator of pool {self._chain.pool_id}")
        while (item := await self._take()) is not None:
            taken += 1
            try:
                await self._one(item)
            except MusterError as error:
                await self._trouble(item, error)
            except Exception as error:  # noqa: BLE001 - a fault of ours costs this item a try, and no other work
                _log.exception("examination-crashed", item=item.id)
                await self._trouble(item, _crash(error))
            finally:
                if self._suspect == item.id:
                    self._suspect = None
            beat()
        return taken

    async def _take(self) -> Item | None:
        """Leases one more item if this process is healthy.

        Items whose holder died are examined one at a time: if one kills this process, no other such item is lost.
        """
        async with self._taking:
            if not self._health.may_take(held=len(self._held)):
                return None
            item = await self._queue.take(suspects=self._suspect is None)
            if item is None:
                return None
            if item.lost:
                self._suspect = item.id
            self._held.add(item)
            self._measures.taken(item)
            return item

    async def _one(self, item: Item) -> None:
        if self._leaves_it(item):
            raise _given_up(item)
        looked_at = self._clock.monotonic()
        listing = asyncio.ensure_future(
            self._listed(item)
        )  # runs during the look-up in `_judge`, because nearly every item is examined
        try:
            await self._judge(item, listing, looked_at)
        finally:
            await cancel_all([listing])

    async def _judge(self, item: Item, listing: Awaitable[RolloutItem | None], looked_at: float) -> None:
        work, now = await asyncio.gather(self._look_up(item), self._chain.now())
        standing = standing_of(work, submitted=item.work, kind=item.kind, me=self._me, now=now)
        if standing.next is Next.DROP:
            _log.info("dropped", item=item.id, why=standing.why)
            await self._settled(item, self._queue.done(item))
        elif standing.next is Next.LEAVE:
            self._held.remove(item)
            await self._queue.failed(item, NOT_OURS_STEP, code="not-ours", why=standing.why)
        elif item.kind is ItemKind.DISPUTE and (wait := await self._until_turn(item, now)):
            self._held.remove(item)
            await self._queue.failed(item, until_turn(wait), code=TURN_CODE, why="others decide the dispute first")
        elif item.staged is not None and self._said(item):
            await self._verdicts.hand(item, item.staged, looked_at=looked_at)
        elif item.resolution is not None:
            await self._conclude(item, by_hand(item.resolution), drawn=None, looked_at=looked_at)
        else:
            conclusion, drawn = await self._examine(item, await listing)
            await self._conclude(item, conclusion, drawn=drawn, looked_at=looked_at)

    async def _until_turn(self, item: Item, now: datetime) -> timedelta:
        """Returns the time for which a dispute is left to earlier validators; zero at this validator's turn.

        On chains that mine on demand the newest block may be old; a transaction is then mined at the present time.
        """
        ledger = await self._chain.ledger()
        opens_at = await ledger.work.turn_of(item.work.key, self._me)
        if opens_at is None:
            self._juries.missed(item.work.key)
            return SOONEST
        left = opens_at - max(now, self._clock.now())
        if left <= timedelta():
            return timedelta()
        return max(SOONEST, min(left, max(LOOKED_AT_AGAIN, left / 4)))

    def _said(self, item: Item) -> bool:
        """Returns whether this validator has already staged a verdict for the item."""
        return item.staged is not None and item.staged.validator == self._me and item.kind not in LOOKS

    def _leaves_it(self, item: Item) -> bool:
        """Returns whether this validator leaves the item to other validators or a person."""
        return item.spent and item.resolution is None and not self._said(item)

    async def _look_up(self, item: Item) -> WorkRecord | None:
        return await (await self._chain.ledger()).work.get(item.work.key)

    async def _listed(self, item: Item) -> RolloutItem | None:
        if self._said(item) or item.resolution is not None:
            return None  # nothing is left to examine
        with self._measures.stage("listed"):
            return await self._files.listed(item.work)

    async def _examine(self, item: Item, listed: RolloutItem | None) -> tuple[Conclusion, DrawnRows]:
        gathering = asyncio.ensure_future(self._gathered(item))  # while its file is on the way
        try:
            async with AsyncExitStack() as stack:
                with self._measures.stage("fetch"):
                    file = await stack.enter_async_context(self._files.fetched(item, listed))
                facts, checkpoint, drawn = await gathering
                drawn = await self._drawing.confirmed(drawn)

                async def is_copy(fingerprint: Digest) -> bool:
                    return await self._seen.is_copy(fingerprint, of=item.work.key)

                examination = Examination(facts=facts, file=file, checkpoint=checkpoint, draw=drawn.draw)
                with self._measures.stage("examine"):
                    found = await self._examiner.examine(examination, is_copy=is_copy)
        finally:
            await cancel_all([gathering])
        if isinstance(found, NotJudged):
            raise CannotJudge(found.why, hint=found.hint, code=found.code, retryable=found.retryable)
        if item.kind is ItemKind.FIRST:
            found = await self._near_ties.applied(item.work, found)
        self._measures.examined(found)
        return found, drawn

    async def _gathered(self, item: Item) -> tuple[WorkFacts, CheckpointRef, DrawnRows]:
        """Returns the ledger facts of the work, its checkpoint, and the rows to recompute."""
        connected = await self._chain.connected()
        with self._measures.stage("facts"):
            return await asyncio.gather(
                connected.facts.facts(item.work), self._versions.of(item.work), self._drawing.draw(item)
            )

    async def _conclude(self, item: Item, conclusion: Conclusion, *, drawn: DrawnRows | None, looked_at: float) -> None:
        """Uploads the evidence, stages the verdict in the queue, then hands it to the sender; in this order only."""
        if item.kind in LOOKS:
            conclusion = await self._looks.compared(item, conclusion)
        audit = audit_file(item, conclusion, drawn=drawn, validator=self._me, at=self._chain.about_now())
        with self._measures.stage("evidence"):
            sha256 = await self._files.store(audit)
        self._health.went_well()
        if item.kind in LOOKS:
            await self._looks.follow_up(item, conclusion, sha256)
            await self._settled(item, self._queue.done(item))
            return
        staged = Staged(
            validator=self._me, outcome=conclusion.outcome, reason=int(conclusion.reason), audit_hash=sha256
        )
        if await self._queue.stage(item, staged):
            await self._verdicts.hand(item, staged, looked_at=looked_at)
        else:
            _log.info("dropped", item=item.id, why="the item was judged or taken over meanwhile")
            self._held.remove(item)

    async def _trouble(self, item: Item, error: MusterError) -> None:
        error_class = classify_error(error.code, retryable=error.retryable)
        leaves_it = self._leaves_it(item)
        if not leaves_it and error_class is not ErrorClass.EVERYBODYS and not await self._health.doubt():
            self._measures.trouble(error.code, parked=False)
            _log.debug("given-back", item=item.id, code=error.code, why=error.detail)
            await self._settled(item, self._queue.give_back(item))
            return
        step = self._step(item, error)
        self._held.remove(item)
        put = await self._queue.failed(item, step, code=error.code, why=error.detail, hint=error.hint)
        self._measures.trouble(error.code, parked=put is Put.PARKED)
        if put is Put.PARKED:
            _log.warning("parked", item=item.id, code=error.code, why=error.detail, hint=error.hint)
        elif put is Put.AGAIN:
            in_s = round(step.pause.total_seconds(), 1)
            _log.info("again", item=item.id, code=error.code, why=error.detail, in_s=in_s)
        if not leaves_it and error_class in {ErrorClass.OUTSIDE, ErrorClass.UNSURE}:
            await self._health.failed(item.id, error, outside=error_class is ErrorClass.OUTSIDE)

    def _step(self, item: Item, error: MusterError) -> Step:
        if self._leaves_it(item):
            return STILL_GIVEN_UP
        return after_trouble(
            error.code,
            retryable=error.retryable,
            tries=item.tries,
            left=datetime.fromtimestamp(item.deadline_s, UTC) - self._chain.about_now(),
            policy=self._retry_policy,
            asked_to_wait=error.retry_after if isinstance(error, RateLimited) else timedelta(),
        )

    async def _settled(self, item: Item, settling: Awaitable[bool]) -> None:
        self._held.remove(item)
        await settling


def _given_up(item: Item) -> MusterError:
    """Returns why an item is not tried again: its last error, or that every attempt died silently."""
    code, why, hint = item.trouble
    if not code:
        code, why = "lost-again-and-again", f"{item.lost} holders in a row did not live to say what became of it"
        hint = "look at the log for what ended the validator; `muster validator retry` tries again"
    return CannotJudge(why, hint=hint, code=code)


def _crash(error: Exception) -> MusterError:
    return CannotJudge(
        f"the validator crashed on it: {type(error).__name__}",
        hint="a fault of ours: the log has the traceback; please report it",
        code=CRASHED,
        retryable=True,
    )
