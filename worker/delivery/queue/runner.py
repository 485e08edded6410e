"""Moves items through their stages: each at least once, none twice after it was written down, all of them in the end.

    spooled → hashed → requested → put → submitted → acknowledged → deleted

What the stages in the middle do is given as `Delivery`. A crash between doing a stage and writing it down does it
again: every step of a `Delivery` must take being repeated.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import structlog

from protocol.errors import MusterError, RateLimited
from protocol.runtime.clock import Clock
from protocol.runtime.retry import Deadline
from worker.delivery.queue.item import ORDER, DeliveryStage, QueueItem
from worker.delivery.queue.store import QueueStore

FIRST_WAIT = timedelta(seconds=2)
LONGEST_WAIT = timedelta(minutes=10)
LONGEST_LOOK = timedelta(seconds=10)
"""Between two looks at something that somebody else is about to do."""
DEFAULT_ATTEMPTS = 50
"""Failures of one stage in a row before an item is parked: about seven hours at the longest wait."""

_AT_ONCE = 4
_LAST_LOOKS = timedelta(seconds=1)
_IDLE = timedelta(seconds=30)
_log = structlog.get_logger(__name__)


class StepBack(Exception):
    """A step found that an earlier one must be done again, as when a presigned URL has expired.

    Args:
        stage: The stage to go back to.
        why: In words.
    """

    def __init__(self, stage: DeliveryStage, why: str) -> None:
        super().__init__(why)
        self.stage = stage


class NotYet(Exception):
    """A step waits for somebody else, who is not late yet: no failure.

    Args:
        why: In words.
    """


class GivenUp(Exception):
    """An item can never be delivered: it is recorded, and its copy deleted.

    Args:
        why: In words, for the contributor.
    """


class Delivery(Protocol):
    """What happens to an item on its way. Each returns what later steps need to know; each may be repeated."""

    async def request(self, item: QueueItem) -> Mapping[str, str]:
        """Asks where to put the file."""
        ...

    async def put(self, item: QueueItem) -> Mapping[str, str]:
        """Puts it there."""
        ...

    async def submit(self, item: QueueItem) -> Mapping[str, str]:
        """Submits its hash as work."""
        ...

    async def acknowledge(self, item: QueueItem) -> Mapping[str, str]:
        """Makes sure that whoever needs it has it."""
        ...


class QueueRunner:
    """Works on whatever is due, a few items at a time.

    Args:
        store: Where items are.
        delivery: What the stages do.
        clock: Whose time is waited.
        attempts: Failures of one stage in a row before an item is parked.
    """

    def __init__(
        self, store: QueueStore, delivery: Delivery, *, clock: Clock, attempts: int = DEFAULT_ATTEMPTS
    ) -> None:
        self._store = store
        self._clock = clock
        self._attempts = attempts
        self._woken = asyncio.Event()
        self._steps: dict[DeliveryStage, Callable[[QueueItem], Awaitable[Mapping[str, str]]]] = {
            DeliveryStage.HASHED: delivery.request,
            DeliveryStage.REQUESTED: delivery.put,
            DeliveryStage.PUT: delivery.submit,
            DeliveryStage.SUBMITTED: delivery.acknowledge,
        }

    def wake(self) -> None:
        """Something was added."""
        self._woken.set()

    async def run(self) -> None:
        """Works until cancelled. An item that takes long, as a large file does, keeps one place and stops no other."""
        under_way: dict[str, asyncio.Task[bool]] = {}
        try:
            while True:
                self._woken.clear()
                # Those that are under way are due too, as long as nothing was written down about them.
                for item in await self._due(most=_AT_ONCE + len(under_way)):
                    if item.id not in under_way and len(under_way) < _AT_ONCE:
                        under_way[item.id] = asyncio.create_task(self._deliver(item), name=f"deliver {item.id}")
                await self._wait(under_way)
                for item_id in [item_id for item_id, task in under_way.items() if task.done()]:
                    under_way.pop(item_id).result()
        finally:
            for task in under_way.values():
                task.cancel()
            await asyncio.gather(*under_way.values(), return_exceptions=True)

    async def work(self) -> int:
        """One round over what is due now; returns how many items were moved or finished."""
        moved = await asyncio.gather(*(self._deliver(item) for item in await self._due(most=_AT_ONCE)))
        return sum(moved)

    async def _due(self, *, most: int) -> list[QueueItem]:
        now_ms = self._now_ms()
        latest_ms = now_ms + 2 * int(LONGEST_WAIT.total_seconds() * 1000)
        return await asyncio.to_thread(self._store.due, now_ms=now_ms, latest_ms=latest_ms, most=most)

    async def deliver_now(self, *, linger: timedelta = timedelta()) -> int:
        """Tries everything that waits once, also what was put off; returns how many items are left. For a last time.

        Args:
            linger: How long to look for the end of what was submitted already.
        """
        deadline = Deadline.after(linger, clock=self._clock)
        items = [item for item in await asyncio.to_thread(self._store.items) if not item.parked]
        while items:
            for start in range(0, len(items), _AT_ONCE):
                await asyncio.gather(*(self._deliver(item) for item in items[start : start + _AT_ONCE]))
            if deadline.passed:
                break
            left = await asyncio.to_thread(self._store.items)
            items = [item for item in left if item.stage is DeliveryStage.SUBMITTED and not item.parked]
            if items:
                await self._clock.sleep(_LAST_LOOKS)
        return len(await asyncio.to_thread(self._store.items))

    async def _deliver(self, item: QueueItem) -> bool:
        """Takes an item as far as it goes."""
        moved = False
        while item.stage is not DeliveryStage.ACKNOWLEDGED:
            try:
                await self._step(item)
            except StepBack as order:
                await self._failed(item, order.stage, str(order), wait=None)
                return moved
            except NotYet as reason:
                await self._put_off(item, item.stage, str(reason), pause=self._pause(item, most=LONGEST_LOOK))
                return moved
            except GivenUp as end:
                _log.warning("delivery-given-up", item=item.id, name=item.name, why=str(end))
                await asyncio.to_thread(self._store.finish, item, now_ms=self._now_ms(), given_up=str(end))
                return True
            except MusterError as error:
                wait = error.retry_after if isinstance(error, RateLimited) else None
                if not error.retryable:
                    await self._park(item, f"{error.detail} ({error.hint})" if error.hint else error.detail)
                else:
                    await self._failed(item, item.stage, error.detail, wait=wait)
                return moved
            except Exception as error:  # noqa: BLE001 - one item's trouble must not stop the others
                _log.exception("delivery-crashed", item=item.id, stage=item.stage)
                await self._failed(item, item.stage, f"{type(error).__name__}: {error}", wait=None)
                return moved
            moved = True
            item = await asyncio.to_thread(self._store.get, item.id)
        await asyncio.to_thread(self._store.finish, item, now_ms=self._now_ms())
        return True

    async def _step(self, item: QueueItem) -> None:
        if item.stage is DeliveryStage.SPOOLED:
            size, sha256 = await asyncio.to_thread(_hash, item.path)
            await asyncio.to_thread(self._store.advance, item, DeliveryStage.HASHED, data={}, size=size, sha256=sha256)
            return
        found = await self._steps[item.stage](item)
        following = ORDER[ORDER.index(item.stage) + 1]
        await asyncio.to_thread(self._store.advance, item, following, data=found)

    async def _failed(self, item: QueueItem, stage: DeliveryStage, why: str, *, wait: timedelta | None) -> None:
        if item.attempts + 1 >= self._attempts:
            await self._park(item, f"given up after {item.attempts + 1} attempts: {why}")
            return
        pause = max(self._pause(item, most=LONGEST_WAIT), wait or timedelta())
        _log.warning("delivery-put-off", item=item.id, stage=item.stage, why=why, wait_s=pause.total_seconds())
        await self._put_off(item, stage, why, pause=pause)

    async def _put_off(self, item: QueueItem, stage: DeliveryStage, why: str, *, pause: timedelta) -> None:
        until_ms = self._now_ms() + int(pause.total_seconds() * 1000)
        await asyncio.to_thread(self._store.put_off, item, stage=stage, until_ms=until_ms, error=why)

    def _pause(self, item: QueueItem, *, most: timedelta) -> timedelta:
        """Grows with the attempts of the present stage, and never marches in step with another item's."""
        doubled: int = 2 ** min(item.attempts, 20)
        return min(most, FIRST_WAIT * doubled) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret

    async def _park(self, item: QueueItem, why: str) -> None:
        _log.error("delivery-parked", item=item.id, stage=item.stage, why=why)
        await asyncio.to_thread(self._store.park, item, why=why)

    async def _wait(self, under_way: Mapping[str, asyncio.Task[bool]]) -> None:
        """Until something is added or done, or the next item is due."""
        now_ms = self._now_ms()
        items = await asyncio.to_thread(self._store.items) if len(under_way) < _AT_ONCE else []
        waiting = [item.not_before_ms for item in items if not item.parked and item.id not in under_way]
        pause = min([_IDLE, *(timedelta(milliseconds=max(10, at - now_ms)) for at in waiting)])
        woken = asyncio.ensure_future(self._woken.wait())
        alarm = asyncio.ensure_future(self._clock.sleep(pause))
        try:
            await asyncio.wait({woken, alarm, *under_way.values()}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (woken, alarm):
                task.cancel()

    def _now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)


def _hash(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), "0x" + digest.hexdigest()
