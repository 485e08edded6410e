"""Judging loops: each takes one item at a time from the queue, examines it, and stages a verdict.

Each step can be repeated: if a process dies, another one continues. No verdict is sent before its audit file is in the
object store. An error of this validator returns the item to the queue or parks it for a person; it never becomes a
verdict.
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
from validator.assignment.eligibility import Next, eligibility_of
from validator.chain.checkpoints import CheckpointLookup
from validator.chain.connection import NotPoolValidator, PoolChain
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
from validator.queue.retry_policy import STILL_GIVEN_UP, RetryPolicy, Step, next_step
from validator.queue.store import PutOutcome, WorkQueue
from validator.store.copies import SeenOutputs
from validator.store.near_ties import NearTieBudgets
from validator.verdicts.audit_file import DrawnRows, audit_file, by_hand
from validator.verdicts.row_sampling import RowSampling

SOONEST = timedelta(seconds=1)
"""Shortest pause before the next check of a dispute that other validators decide first."""

LOOKED_AT_AGAIN = timedelta(seconds=5)
"""Longest pause between two checks of a dispute, unless a quarter of the time to this validator's turn is longer.

Another validator's contradiction of the first verdict brings the turn forward, so the check is repeated.
"""

CRASHED = "validator-crashed"
"""Error code of an unexpected exception while an item was processed."""

_log = structlog.get_logger(__name__)


class CannotJudge(MusterError):
    """The examiner could not judge the work on this machine. This never counts against the node."""

    code = "not-judged"
    status = 503


class Judging:
    """The work of the judging loops of one process, which call `round` concurrently.

    Args:
        me: Address of this validator.
        chain: Chain client of the validator's pool.
        queue: The work queue.
        held: Items leased by this process.
        health: Health of this process.
        files: File transfers with the object store.
        versions: Finds the policy version of a submission.
        drawing: Draws the rows to recompute.
        examiner: Runs the checks.
        seen: Fingerprints of the outputs of earlier submissions.
        near_ties: Near-tie budgets over each node's newest files.
        verdicts: Verdicts that wait for a transaction.
        looks: Follow-up of second looks.
        juries: Records the order of validators for disputes on the ledger.
        retry_policy: Limits of retries.
        metrics: Metrics of this process.
        clock: Clock of pauses and durations.
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
        versions: CheckpointLookup,
        drawing: RowSampling,
        examiner: Examiner,
        seen: SeenOutputs,
        near_ties: NearTieBudgets,
        verdicts: Verdicts,
        looks: LookResults,
        juries: Juries,
        retry_policy: RetryPolicy,
        metrics: ValidatorMetrics,
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
        self._metrics = metrics
        self._clock = clock

    async def round(self, beat: Callable[[], None] = lambda: None) -> int:
        """Processes items until the queue has none that this process may take; returns their number.

        Args:
            beat: Called after each item, so that the service sees progress during a long round.

        Raises:
            NotPoolValidator: The pool does not list this validator's key.
            ChainUnavailable: The chain can't be read.
            StoreUnavailable: Redis is down; leased items return when their leases expire.
        """
        taken = 0
        if not await self._chain.is_pool_validator():
            raise NotPoolValidator(f"{self._me} is not a validator of pool {self._chain.pool_id}")
        while (item := await self._take()) is not None:
            taken += 1
            try:
                await self._process(item)
            except MusterError as error:
                await self._judging_failed(item, error)
            except Exception as error:  # noqa: BLE001 - a bug costs this item an attempt, and must not stop the loop
                _log.exception("examination-crashed", item=item.id)
                await self._judging_failed(item, _crash(error))
            finally:
                if self._suspect == item.id:
                    self._suspect = None
            beat()
        return taken

    async def _take(self) -> Item | None:
        """Leases one more item if this process is healthy; returns None if there is no item to take.

        Items whose earlier holder died are suspect, and this process holds at most one of them. So if this process also
        dies, the death counts against one suspect item only.
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
            self._metrics.taken(item)
            return item

    async def _process(self, item: Item) -> None:
        if self._gave_up(item):
            raise _given_up(item)
        looked_at = self._clock.monotonic()
        # This request starts before `_judge` knows if it is needed: nearly every item is examined, and this saves a
        # round trip.
        listing = asyncio.ensure_future(self._listed(item))
        try:
            await self._judge(item, listing, looked_at)
        finally:
            await cancel_all([listing])

    async def _judge(self, item: Item, listing: Awaitable[RolloutItem | None], looked_at: float) -> None:
        work, now = await asyncio.gather(self._look_up(item), self._chain.now())
        eligibility = eligibility_of(work, submitted=item.work, kind=item.kind, me=self._me, now=now)
        if eligibility.next is Next.DROP:
            _log.info("dropped", item=item.id, why=eligibility.why)
            await self._settled(item, self._queue.done(item))
        elif eligibility.next is Next.LEAVE:
            self._held.remove(item)
            await self._queue.failed(item, NOT_OURS_STEP, code="not-ours", why=eligibility.why)
        elif item.kind is ItemKind.DISPUTE and (wait := await self._until_turn(item, now)):
            self._held.remove(item)
            await self._queue.failed(
                item, until_turn(wait), code=TURN_CODE, why="other validators decide the dispute first"
            )
        elif item.staged is not None and self._has_staged(item):
            await self._verdicts.hand(item, item.staged, looked_at=looked_at)
        elif item.resolution is not None:
            await self._conclude(item, by_hand(item.resolution), drawn=None, looked_at=looked_at)
        else:
            conclusion, drawn = await self._examine(item, await listing)
            await self._conclude(item, conclusion, drawn=drawn, looked_at=looked_at)

    async def _until_turn(self, item: Item, now: datetime) -> timedelta:
        """Returns the time until a dispute is checked again; zero at this validator's turn.

        The turn is compared with the later of chain time and local time: on chains that mine on demand the newest block
        may be old, but a transaction is mined at the present time.
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

    def _has_staged(self, item: Item) -> bool:
        """Returns True if this validator has already staged a verdict for the item, which only needs to be sent."""
        return item.staged is not None and item.staged.validator == self._me and item.kind not in LOOKS

    def _gave_up(self, item: Item) -> bool:
        """Returns True if this process has given the item up, and leaves it to other validators or a person."""
        return item.spent and item.resolution is None and not self._has_staged(item)

    async def _look_up(self, item: Item) -> WorkRecord | None:
        return await (await self._chain.ledger()).work.get(item.work.key)

    async def _listed(self, item: Item) -> RolloutItem | None:
        if self._has_staged(item) or item.resolution is not None:
            return None  # the verdict is known, so the file is not needed
        with self._metrics.stage("listed"):
            return await self._files.listed(item.work)

    async def _examine(self, item: Item, listed: RolloutItem | None) -> tuple[Conclusion, DrawnRows]:
        gathering = asyncio.ensure_future(self._gathered(item))  # runs during the download of the file
        try:
            async with AsyncExitStack() as stack:
                with self._metrics.stage("fetch"):
                    file = await stack.enter_async_context(self._files.fetched(item, listed))
                facts, checkpoint, drawn = await gathering
                drawn = await self._drawing.confirmed(drawn)

                async def is_copy(fingerprint: Digest) -> bool:
                    return await self._seen.is_copy(fingerprint, of=item.work.key)

                examination = Examination(facts=facts, file=file, checkpoint=checkpoint, draw=drawn.draw)
                with self._metrics.stage("examine"):
                    found = await self._examiner.examine(examination, is_copy=is_copy)
        finally:
            await cancel_all([gathering])
        if isinstance(found, NotJudged):
            raise CannotJudge(found.why, hint=found.hint, code=found.code, retryable=found.retryable)
        if item.kind is ItemKind.FIRST:
            found = await self._near_ties.applied(item.work, found)
        self._metrics.examined(found)
        return found, drawn

    async def _gathered(self, item: Item) -> tuple[WorkFacts, CheckpointRef, DrawnRows]:
        """Returns the work's facts from the ledger, its policy version, and the rows to recompute."""
        connected = await self._chain.connected()
        with self._metrics.stage("facts"):
            return await asyncio.gather(
                connected.facts.facts(item.work), self._versions.of(item.work), self._drawing.draw(item)
            )

    async def _conclude(self, item: Item, conclusion: Conclusion, *, drawn: DrawnRows | None, looked_at: float) -> None:
        """Uploads the audit file, then stages the verdict in the queue, then hands it to a sender.

        If the process dies in between, another process finds either no verdict or a staged one with its audit file
        stored.
        """
        if item.kind in LOOKS:
            conclusion = await self._looks.compared(item, conclusion)
        audit = audit_file(item, conclusion, drawn=drawn, validator=self._me, at=self._chain.about_now())
        with self._metrics.stage("evidence"):
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

    async def _judging_failed(self, item: Item, error: MusterError) -> None:
        error_class = classify_error(error.code, retryable=error.retryable)
        gave_up = self._gave_up(item)
        if not gave_up and error_class is not ErrorClass.ALL_VALIDATORS and not await self._health.recheck():
            self._metrics.count_error(error.code, parked=False)
            _log.debug("given-back", item=item.id, code=error.code, why=error.detail)
            await self._settled(item, self._queue.give_back(item))
            return
        step = self._step(item, error)
        self._held.remove(item)
        put = await self._queue.failed(item, step, code=error.code, why=error.detail, hint=error.hint)
        self._metrics.count_error(error.code, parked=put is PutOutcome.PARKED)
        if put is PutOutcome.PARKED:
            _log.warning("parked", item=item.id, code=error.code, why=error.detail, hint=error.hint)
        elif put is PutOutcome.AGAIN:
            in_s = round(step.pause.total_seconds(), 1)
            _log.info("again", item=item.id, code=error.code, why=error.detail, in_s=in_s)
        if not gave_up and error_class in {ErrorClass.SERVICE, ErrorClass.UNKNOWN}:
            await self._health.failed(item.id, error, outside=error_class is ErrorClass.SERVICE)

    def _step(self, item: Item, error: MusterError) -> Step:
        if self._gave_up(item):
            return STILL_GIVEN_UP
        return next_step(
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
    """Returns the error for which an item was given up: its last one, or repeated deaths of its holders."""
    code, why, hint = item.last_error
    if not code:
        code, why = "lost-again-and-again", f"{item.lost} processes in a row died while they held the item"
        hint = "look in the log for the reason why the validator died; `muster validator retry` tries again"
    return CannotJudge(why, hint=hint, code=code)


def _crash(error: Exception) -> MusterError:
    return CannotJudge(
        f"an unexpected error stopped the examination: {type(error).__name__}",
        hint="this is a bug in Muster: please report it with the traceback from the log",
        code=CRASHED,
        retryable=True,
    )
