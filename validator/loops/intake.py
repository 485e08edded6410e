"""Reads the ledger's events into the work queue: adds submitted work, and removes judged and final work.

The follower delivers each event at least once; after a loss of Redis' data, it delivers all events again. So all
writes are idempotent. After such a loss, the loop adds work again that was judged long ago, and removes this work when
it reads the event of the verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from ledger.client import Ledger
from ledger.client.event_follower import EventFollower
from ledger.events.cursor import EventBatch
from ledger.events.types import WorkSubmitted
from protocol.errors import MusterError, NotFound
from protocol.redis.connection import StoreUnavailable
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.logs import get_logger
from validator.chain.connection import PoolChain
from validator.domain.items import ItemKind
from validator.domain.progress import LoopProgress
from validator.domain.submissions import SubmittedWork
from validator.loops.work_order import WorkOrder
from validator.queue.queue_plan import Periods, QueueChanges, plan_of
from validator.queue.store import NewItem, WorkQueue
from validator.store.deadlines import Deadlines

LOST_VERDICT_DELAY = timedelta(seconds=5)
"""Delay before work is examined again after a reorg removed its verdict; usually the verdict is mined again."""

_log = get_logger(__name__)


class LedgerIntake:
    """Loop that reads batches of ledger events into the work queue.

    Args:
        chain: Chain client of the validator's pool.
        following: Event follower, whose position all processes on this Redis share.
        queue: The work queue.
        deadlines: Store of the times from which work may be finalised.
        order: Order of validators, which delays new work.
        lease: Leader lease of this loop among the processes on this Redis.
        notify: Wakes the judging loops.
        progress: Object into which the loop writes its position in the ledger's events.
    """

    def __init__(
        self,
        chain: PoolChain,
        *,
        following: EventFollower,
        queue: WorkQueue,
        deadlines: Deadlines,
        order: WorkOrder,
        lease: LeaderLease,
        notify: Callable[[], None],
        progress: LoopProgress,
    ) -> None:
        self._chain = chain
        self._following = following
        self._queue = queue
        self._deadlines = deadlines
        self._order = order
        self._lease = lease
        self._notify = notify
        self._progress = progress

    async def round(self) -> int:
        """Reads all new events if this process has the leader lease; returns the number of read events.

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
            StoreUnavailable: Redis is down, so the lease is not released; it expires by itself.
        """
        await self._lease.give_up()

    async def _read(self) -> int:
        read = 0
        while True:
            before = self._lease.value
            held = await self._lease.hold()
            # While this process did not hold the lease, another process may have moved the shared position.
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
        await self._order.heard_of(plan.heard)
        await self._queue.drop(plan.drop)
        await self._deadlines.forget(plan.settled)
        await self._deadlines.put(plan.due)
        deadline = at + int(judge_period.total_seconds())
        new = await self._order.queued(list(plan.put.values()), deadline_s=deadline, left=judge_period, now=now)
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

    async def _since(self, ledger: Ledger, batch: EventBatch) -> int:
        """Returns the Unix time of the first block with an event of the batch.

        No event of the batch is earlier than this time, so no deadline computed from it is too late.
        """
        if batch.since is not None:
            return batch.since
        first = min(each.log.block_number for each in batch.events)
        try:
            return await ledger.block_time(first)
        except NotFound:  # a reorg removed the block; time 0 is also before all events
            return 0
