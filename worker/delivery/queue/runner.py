"""Moves queue items through their stages.

The runner repeats a stage until the stage is recorded as complete, and never after that.

    spooled → hashed → requested → put → submitted → acknowledged → deleted

A `Delivery` implements the stages from `requested` to `acknowledged`. If the worker crashes between executing and
recording a stage, it executes the stage again. Therefore every method of a `Delivery` must be idempotent.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from protocol.errors import MusterError, RateLimited
from protocol.identifiers import Digest, digest
from protocol.runtime.backoff import backoff
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.randomness import jittered
from protocol.runtime.retry import Deadline
from protocol.runtime.threads import run_in_thread
from protocol.runtime.waiting import cancel_all, wait_first
from worker.delivery.queue.item import ORDER, DeliveryStage, QueueItem
from worker.delivery.queue.store import QueueStore

FIRST_WAIT = timedelta(seconds=2)
"""Maximum pause after the first failure of a stage; the pause doubles with each further failure."""
LONGEST_WAIT = timedelta(minutes=10)
"""Maximum pause between two attempts of a stage."""
LONGEST_LOOK = timedelta(seconds=10)
"""Maximum pause between two attempts of a stage that waits for another party (`NotYet`)."""
DEFAULT_ATTEMPTS = 50
"""Number of failures of a stage in a row after which an item is parked.

With the back-off and its jitter, that many failures take five hours on average, and seven at most.
"""

_CONCURRENCY = 4
"""Number of items that are processed at the same time."""
_FINAL_POLL_INTERVAL = timedelta(seconds=1)
"""Pause between two attempts to finish items that were already submitted, at shutdown."""
_IDLE = timedelta(seconds=30)
"""Maximum time until the runner looks for due items again."""
_log = get_logger(__name__)


class StepBack(Exception):
    """Raised when an earlier stage must be repeated.

    This happens, for example, when a presigned URL has expired.

    Args:
        stage: The stage to which the item returns.
        why: The reason, as text.
    """

    def __init__(self, stage: DeliveryStage, why: str) -> None:
        super().__init__(why)
        self.stage = stage


class NotYet(Exception):
    """Raised when a stage waits for another party that still has time to act.

    A wait is no failure: it neither counts in `QueueItem.attempts` nor parks the item.

    Args:
        why: The reason, as text.
    """


class GivenUp(Exception):
    """Raised when an item can never be delivered.

    The reason is recorded and the copy deleted.

    Args:
        why: The reason, as text for the contributor.
    """


class Delivery(Protocol):
    """Implementation of the stages of a delivery.

    Each method is idempotent and returns data for later stages.
    """

    async def request(self, item: QueueItem) -> Mapping[str, str]:
        """Requests an upload URL."""
        ...

    async def put(self, item: QueueItem) -> Mapping[str, str]:
        """Uploads the file."""
        ...

    async def submit(self, item: QueueItem) -> Mapping[str, str]:
        """Submits the file's hash to the ledger if the file is work."""
        ...

    async def acknowledge(self, item: QueueItem) -> Mapping[str, str]:
        """Confirms that the delivery is complete."""
        ...


class QueueRunner:
    """Processes the items that are due, up to four at a time.

    Args:
        store: Store of the items.
        delivery: Implementation of the stages.
        clock: Clock that measures the pauses.
        attempts: Number of failures of a stage in a row after which an item is parked.
    """

    def __init__(
        self, store: QueueStore, delivery: Delivery, *, clock: Clock, attempts: int = DEFAULT_ATTEMPTS
    ) -> None:
        self._store = store
        self._clock = clock
        self._attempts = attempts
        self._wake = asyncio.Event()
        self._running: dict[str, asyncio.Task[bool]] = {}
        """Attempts of `run` that are in progress, by item id."""
        self._waits: dict[str, int] = {}
        """Number of waits (`NotYet`) in a row by item id; they begin again after a restart."""
        self._steps: dict[DeliveryStage, Callable[[QueueItem], Awaitable[Mapping[str, str]]]] = {
            DeliveryStage.HASHED: delivery.request,
            DeliveryStage.REQUESTED: delivery.put,
            DeliveryStage.PUT: delivery.submit,
            DeliveryStage.SUBMITTED: delivery.acknowledge,
        }

    def wake(self) -> None:
        """Wakes the runner after an item was added."""
        self._wake.set()

    async def run(self) -> None:
        """Processes items until the task that runs this method is cancelled.

        A slow item, such as a large file, occupies one of the four places.
        """
        running = self._running
        try:
            while True:
                self._wake.clear()
                # Items in progress stay due until their result is recorded, so more rows are read than places are free.
                for item in await self._due(most=_CONCURRENCY + len(running)):
                    if item.id not in running and len(running) < _CONCURRENCY:
                        running[item.id] = asyncio.create_task(self._deliver(item), name=f"deliver {item.id}")
                await self._wait(running)
                for item_id in [item_id for item_id, task in running.items() if task.done()]:
                    ended = running.pop(item_id)
                    if not ended.cancelled():  # `drain` cancels
                        ended.result()
        finally:
            for task in running.values():
                task.cancel()
            await asyncio.gather(*running.values(), return_exceptions=True)
            running.clear()

    async def drain(self, *, within: timedelta) -> None:
        """Waits until the attempts in progress have ended, and cancels those that take longer than `within`.

        A cancelled attempt changes nothing: the item's stage is repeated. `run` may begin further attempts meanwhile.
        """
        if attempts := list(self._running.values()):
            _, late = await asyncio.wait(attempts, timeout=within.total_seconds())
            await cancel_all(list(late))

    async def work(self) -> int:
        """Processes each item that is due now once; returns how many items advanced or finished."""
        moved = await asyncio.gather(*(self._deliver(item) for item in await self._due(most=_CONCURRENCY)))
        return sum(moved)

    async def _due(self, *, most: int) -> list[QueueItem]:
        now_ms = self._now_ms()
        latest_ms = now_ms + 2 * int(LONGEST_WAIT.total_seconds() * 1000)
        return await run_in_thread(self._store.due, now_ms=now_ms, latest_ms=latest_ms, most=most)

    async def deliver_now(self, *, linger: timedelta = timedelta()) -> int:
        """Tries all items once at shutdown, also postponed ones; returns how many are left.

        Args:
            linger: Maximum time for which items that were already submitted are tried again.
        """
        deadline = Deadline.after(linger, clock=self._clock)
        items = [item for item in await run_in_thread(self._store.items) if not item.parked]
        while items:
            for start in range(0, len(items), _CONCURRENCY):
                await asyncio.gather(*(self._deliver(item) for item in items[start : start + _CONCURRENCY]))
            if deadline.passed:
                break
            left = await run_in_thread(self._store.items)
            items = [item for item in left if item.stage is DeliveryStage.SUBMITTED and not item.parked]
            if items:
                await self._clock.sleep(_FINAL_POLL_INTERVAL)
        return len(await run_in_thread(self._store.items))

    async def _deliver(self, item: QueueItem) -> bool:
        """Runs the stages of an item until it finishes or fails; returns whether it advanced."""
        moved = False
        while item.stage is not DeliveryStage.ACKNOWLEDGED:
            waits = self._waits.pop(item.id, 0)
            try:
                await self._step(item)
            except StepBack as order:
                await self._failed(item, order.stage, str(order), wait=None)
                return moved
            except NotYet as reason:
                self._waits[item.id] = waits + 1
                until_ms = self._after(_pause(waits + 1, most=LONGEST_LOOK))
                await run_in_thread(self._store.wait, item, until_ms=until_ms, reason=str(reason))
                return moved
            except GivenUp as end:
                _log.warning("delivery-given-up", item=item.id, name=item.name, why=str(end))
                await run_in_thread(self._store.finish, item, now_ms=self._now_ms(), given_up=str(end))
                return True
            except MusterError as error:
                wait = error.retry_after if isinstance(error, RateLimited) else None
                if not error.retryable:
                    await self._park(item, f"{error.detail} ({error.hint})" if error.hint else error.detail)
                else:
                    await self._failed(item, item.stage, error.detail, wait=wait)
                return moved
            except Exception as error:  # noqa: BLE001 - one item's failure must not stop the others
                _log.exception("delivery-crashed", item=item.id, stage=item.stage)
                await self._failed(item, item.stage, f"{type(error).__name__}: {error}", wait=None)
                return moved
            moved = True
            item = await run_in_thread(self._store.get, item.id)
        await run_in_thread(self._store.finish, item, now_ms=self._now_ms())
        return True

    async def _step(self, item: QueueItem) -> None:
        if item.stage is DeliveryStage.SPOOLED:
            size, sha256 = await run_in_thread(_hash, item.path)
            await run_in_thread(self._store.advance, item, DeliveryStage.HASHED, data={}, size=size, sha256=sha256)
            return
        found = await self._steps[item.stage](item)
        following = ORDER[ORDER.index(item.stage) + 1]
        await run_in_thread(self._store.advance, item, following, data=found)

    async def _failed(self, item: QueueItem, stage: DeliveryStage, why: str, *, wait: timedelta | None) -> None:
        if item.attempts + 1 >= self._attempts:
            await self._park(item, f"parked after {item.attempts + 1} attempts: {why}")
            return
        # A longer pause than `LONGEST_WAIT` would look like a clock that was set back, and make the item due at once.
        pause = max(_pause(item.attempts + 1, most=LONGEST_WAIT), min(wait or timedelta(), LONGEST_WAIT))
        _log.warning("delivery-put-off", item=item.id, stage=item.stage, why=why, wait_s=pause.total_seconds())
        await run_in_thread(self._store.put_off, item, stage=stage, until_ms=self._after(pause), error=why)

    async def _park(self, item: QueueItem, why: str) -> None:
        _log.error("delivery-parked", item=item.id, stage=item.stage, why=why)
        await run_in_thread(self._store.park, item, why=why)

    async def _wait(self, running: Mapping[str, asyncio.Task[bool]]) -> None:
        """Waits until an item is added, finished or due."""
        now_ms = self._now_ms()
        items = await run_in_thread(self._store.items) if len(running) < _CONCURRENCY else []
        waiting = [item.not_before_ms for item in items if not item.parked and item.id not in running]
        pause = min([_IDLE, *(timedelta(milliseconds=max(10, at - now_ms)) for at in waiting)])
        await wait_first(self._wake.wait(), self._clock.sleep(pause), tasks=running.values())

    def _now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)

    def _after(self, pause: timedelta) -> int:
        """Returns the end of a pause that begins now, in Unix milliseconds."""
        return self._now_ms() + int(pause.total_seconds() * 1000)


def _pause(attempts: int, *, most: timedelta) -> timedelta:
    """Returns the back-off after this many failures or waits in a row.

    It has jitter, so that the retries of several items do not coincide.
    """
    return jittered(backoff(FIRST_WAIT, most, attempts))


def _hash(path: Path) -> tuple[int, Digest]:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256")
        return file.tell(), digest(found.digest())
