"""Leases items of the work queue for the judging loops, and returns items that could not be judged to the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta

from protocol.errors import MusterError, RateLimited
from protocol.identifiers import Address
from protocol.runtime.logs import get_logger
from validator.chain.connection import NotPoolValidator, PoolChain
from validator.domain.items import LOOKS, Item, ItemId, Staged
from validator.health import Health
from validator.metrics import ValidatorMetrics
from validator.queue.error_class import ErrorClass, classify_error
from validator.queue.leases import HeldItems
from validator.queue.retry_policy import STILL_GIVEN_UP, RetryPolicy, Step, next_step
from validator.queue.store import PutOutcome, WorkQueue

_log = get_logger(__name__)


class LeasedItems:
    """The items that the judging loops of one process have leased.

    Args:
        me: Address of this validator.
        chain: Chain client of the validator's pool.
        queue: The work queue.
        held: Items leased by this process.
        health: Health of this process.
        retry_policy: Limits of retries.
        metrics: Metrics of this process.
    """

    def __init__(
        self,
        me: Address,
        *,
        chain: PoolChain,
        queue: WorkQueue,
        held: HeldItems,
        health: Health,
        retry_policy: RetryPolicy,
        metrics: ValidatorMetrics,
    ) -> None:
        self._me = me
        self._chain = chain
        self._queue = queue
        self._held = held
        self._health = health
        self._retry_policy = retry_policy
        self._metrics = metrics
        self._taking = asyncio.Lock()
        self._suspect: ItemId | None = None

    async def check_role(self) -> None:
        """Checks that the pool lists this validator.

        Raises:
            NotPoolValidator: The pool does not list this validator's key.
            ChainUnavailable: The chain can't be read.
        """
        if not await self._chain.is_pool_validator():
            raise NotPoolValidator(f"{self._me} is not a validator of pool {self._chain.pool_id}")

    async def take(self) -> Item | None:
        """Leases one more item if this process is healthy; returns None if there is no item to take.

        An item is suspect if the process that held it before died. This process holds at most one suspect item, so that
        its own death counts against one suspect item only.

        Raises:
            StoreUnavailable: Redis is down.
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

    def survived(self, item: Item) -> None:
        """Notes that this process survived the item, so that this process may take another suspect item."""
        if self._suspect == item.id:
            self._suspect = None

    def has_staged(self, item: Item) -> bool:
        """Returns True if this validator has already staged a verdict for the item, which only needs to be sent."""
        return item.staged is not None and item.staged.validator == self._me and item.kind not in LOOKS

    def gave_up(self, item: Item) -> bool:
        """Returns True if this process has given the item up, and leaves it to other processes or a person."""
        return item.spent and item.resolution is None and not self.has_staged(item)

    async def stage(self, item: Item, staged: Staged) -> bool:
        """Stores a verdict in the leased item; returns False if the item was judged or taken over meanwhile.

        Raises:
            StoreUnavailable: Redis is down.
        """
        if await self._queue.stage(item, staged):
            return True
        _log.info("dropped", item=item.id, why="the item was judged or taken over meanwhile")
        self._held.remove(item)
        return False

    async def done(self, item: Item) -> None:
        """Removes the item from the queue.

        Raises:
            StoreUnavailable: Redis is down.
        """
        await self._settled(item, self._queue.done(item))

    async def postpone(self, item: Item, step: Step, *, code: str, why: str) -> None:
        """Returns an item to the queue, because this validator may not judge it at all or not yet.

        Args:
            item: The leased item.
            step: Pause before the next attempt, and the processes to which the pause applies.
            code: Error code that the queue stores.
            why: The reason, for the operator.

        Raises:
            StoreUnavailable: Redis is down.
        """
        self._held.remove(item)
        await self._queue.failed(item, step, code=code, why=why)

    def succeeded(self) -> None:
        """Tells the health of this process that an item was judged."""
        self._health.went_well()

    async def failed(self, item: Item, error: MusterError) -> None:
        """Returns an item that could not be judged to the queue, or parks it for a person.

        Args:
            item: The leased item.
            error: The reason.

        Raises:
            StoreUnavailable: Redis is down.
        """
        error_class = classify_error(error.code, retryable=error.retryable)
        gave_up = self.gave_up(item)
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
        if self.gave_up(item):
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
