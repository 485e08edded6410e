"""Reads the ledger's events into the work queue: adds submitted work, and removes judged and final work.

Events are delivered at least once; after Redis lost its data, all events are delivered again. So all writes are
idempotent. Work that was judged long ago is then added again, and removed when the event of its verdict is read.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import structlog

from ledger.client import Ledger
from ledger.client.event_follower import EventFollower
from ledger.events.cursor import EventBatch
from ledger.events.types import WorkSubmitted
from protocol.errors import MusterError, NotFound
from protocol.identifiers import Address
from protocol.redis.connection import StoreUnavailable
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.clock import Clock
from validator.assignment.liveness import awake_of, rank_here
from validator.assignment.turns import delay_of
from validator.chain.connection import PoolChain
from validator.domain.items import ItemKind
from validator.domain.progress import LoopProgress
from validator.domain.submissions import SubmittedWork
from validator.queue.queue_plan import Periods, QueueChanges, plan_of
from validator.queue.store import NewItem, WorkQueue
from validator.store.deadlines import Deadlines
from validator.store.members import Members
from validator.store.validators import KnownValidators

LOST_VERDICT_DELAY = timedelta(seconds=5)
"""Delay before work is examined again after a reorg removed its verdict; usually the verdict is mined again."""

_log = structlog.get_logger(__name__)


class LedgerIntake:
    """Loop that reads batches of ledger events into the work queue.

    Args:
        me: Address of this validator.
        chain: Chain client of the validator's pool.
        following: Event follower, whose position all processes on this Redis share.
        queue: The work queue.
        deadlines: Store of the times from which work may be finalised.
        known: Store of the validators' last activity on the ledger.
        members: Validator processes on this Redis.
        lease: Leader lease of this loop among the processes on this Redis.
        takeover: Time that a validator leaves to each validator before it in the order for a piece of work.
        awake_within: Time for which a validator counts as live after its last activity on the ledger.
        notify: Wakes the judging loops.
        progress: Gets the position in the ledger's events.
        clock: Clock of pauses.
    """

    def __init__(
        self,
        me: Address,
        *,
        chain: PoolChain,
        following: EventFollower,
        queue: WorkQueue,
        deadlines: Deadlines,
        known: KnownValidators,
        members: Members,
        lease: LeaderLease,
        takeover: timedelta,
        awake_within: timedelta,
        notify: Callable[[], None],
        progress: LoopProgress,
        clock: Clock,
    ) -> None:
        self._me = me
        self._chain = chain
        self._following = following
        self._queue = queue
        self._deadlines = deadlines
        self._known = known
        self._members = members
        self._lease = lease
        self._takeover = takeover
        self._awake_within = awake_within
        self._notify = notify
        self._clock = clock
        self._progress = progress

    async def round(self) -> int:
        """Reads new events up to the newest block; returns their number. Does nothing without the leader lease.

        Raises:
            ChainUnavailable: The chain is down; the next round reads the same events.
            CursorTooOld: The chain was reset; the next round reads from the start.
            StoreUnavailable: Redis is down; the next round reads the same events.
        """
        try:
            return await self._read()
        except StoreUnavailable:
            raise
        except MusterError:
            await self._lease.give_up()  # the chain does not answer this process, but may answer another
            raise

    async def aclose(self) -> None:
        """Releases the leader lease, so that another process takes over immediately.

        Raises:
            StoreUnavailable: Redis is down; then the lease expires by itself.
        """
        await self._lease.give_up()

    async def _read(self) -> int:
        read = 0
        while True:
            before = self._lease.value
            held = await self._lease.hold()
            # Without the lease, or since an earlier lease, another process may have moved the shared position.
            if not held or self._lease.value != before:
                self._following.forget_position()
            if not held:
                return read
            ledger = await self._chain.ledger()
            batch = await self._following.poll(ledger)
            if batch.events:
                await self._apply(ledger, batch)
            await self._following.commit(batch)
            read += len(batch.events)
            self._progress.read_to = (batch.position.next_block, batch.head)
            if self._following.at_head(batch):
                return read

    async def _apply(self, ledger: Ledger, batch: EventBatch) -> None:
        events = self._following.decode(batch)
        at = await self._since(ledger, batch)
        terms = await self._chain.terms()
        periods = Periods(judge=terms.judge_period, challenge=terms.challenge_period, dispute=terms.dispute_period)
        plan = plan_of(events, pool_id=self._chain.pool_id, at=at, periods=periods)
        now = datetime.fromtimestamp(batch.head_time, UTC)
        await self._write(ledger, plan, at=at, now=now, judge_period=terms.judge_period)

    async def _write(
        self, ledger: Ledger, plan: QueueChanges, *, at: int, now: datetime, judge_period: timedelta
    ) -> None:
        await self._known.heard_of(plan.heard)
        await self._queue.drop(plan.drop)
        await self._deadlines.forget(plan.settled)
        await self._deadlines.put(plan.due)
        deadline = at + int(judge_period.total_seconds())
        new = await self._in_turn(list(plan.put.values()), deadline_s=deadline, left=judge_period, now=now)
        for key, node in plan.lost.items():
            history = await ledger.history(WorkSubmitted, pool_id=self._chain.pool_id, second=node)
            new += [
                NewItem(
                    work=SubmittedWork.of(event), kind=ItemKind.FIRST, deadline_s=deadline, delay=LOST_VERDICT_DELAY
                )
                for event in history
                if event.key == key
            ]
            _log.warning("verdict-lost", key=key, node=node)
        if new and await self._queue.put(new):
            self._notify()

    async def _in_turn(
        self, works: list[SubmittedWork], *, deadline_s: int, left: timedelta, now: datetime
    ) -> list[NewItem]:
        """Returns new queue items, each delayed until the turn of the validators on this Redis."""
        if not works:
            return []
        here: frozenset[Address] = await self._members.here()
        awake: frozenset[Address] = frozenset()
        if self._takeover > timedelta():
            heard, validators = await self._known.last_heard(), await self._chain.validators()
            awake = awake_of(validators, heard, now=now, within=self._awake_within)
        return [
            NewItem(
                work=work,
                kind=ItemKind.FIRST,
                deadline_s=deadline_s,
                delay=delay_of(rank_here(work.key, here=here, awake=awake), takeover=self._takeover, left=left),
            )
            for work in works
        ]

    async def _since(self, ledger: Ledger, batch: EventBatch) -> int:
        """Returns the Unix time of the first block with an event of the batch.

        It is a lower bound for all events, so that no deadline is estimated too late.
        """
        if batch.since is not None:
            return batch.since
        first = min(each.log.block_number for each in batch.events)
        try:
            return await ledger.block_time(first)
        except NotFound:  # a reorg removed the block; 0 is a lower bound, too
            return 0
