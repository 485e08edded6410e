"""Main loop of the generation task (INTELLECT-2, 2.1).

Each turn requests the step, loads its version, leases a slot and requests its answers. While the engine generates, a
thread scores finished answers, and the task fetches a newer version as soon as the step names one. As soon as fewer
answers are missing than the engine's batch holds, the next turn leases another slot of the same version, whose answers
join the batch. So the batch stays full until the version changes. Weights change only after all slots under way are
finished, so each file is of one version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from protocol.errors import InvalidInput, MusterError
from protocol.runtime.logs import get_logger
from protocol.runtime.waiting import cancel_all, wait_first
from protocol.wire.runs import StepAnswer
from protocol.wire.slots import SlotGrant, SlotWish
from rollouts.engines.errors import GenerationStopped
from rollouts.engines.shared import SharedEngine
from rollouts.recipe import read_recipe
from rollouts.task.arithmetic import paid_arithmetic
from rollouts.task.base import CLOSE_TIMEOUT, TaskLoop
from rollouts.task.generator import Produced, SlotGenerator, SlotInProgress
from rollouts.task.policies import HeldPolicy

MOST_SLOTS = 3
"""Slots under way at the same time: later ones fill the batch while the longest answers of earlier ones end
(docs/decisions/0090-engine-sessions.md)."""

_LOOK_AHEAD = timedelta(seconds=2)
_ROOM_POLL = timedelta(milliseconds=50)
"""Interval at which the task checks whether the engine has room for another slot."""

_T = TypeVar("_T")
_log = get_logger(__name__)


class RolloutTask(TaskLoop[SlotGenerator]):
    """Generates rollouts until stopped.

    Args:
        most_slots: Slots under way at the same time.
        options: See `TaskLoop`.
    """

    def __init__(self, *, most_slots: int = MOST_SLOTS, **options: Any) -> None:  # noqa: ANN401 - of `TaskLoop`
        super().__init__(**options)
        self._most_slots = most_slots
        self._engine_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._shared_engine = SharedEngine(self._engine, thread=self._engine_thread)
        self._slot_threads = ThreadPoolExecutor(max_workers=most_slots, thread_name_prefix="slot")
        self._looking: asyncio.Task[None] | None = None
        self._closing: Future[None] | None = None
        self._scorer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="score")

    async def _turn(self) -> timedelta:
        """Starts the next slot as soon as the engine has room; returns the pause before the next turn.

        Raises:
            Exception: A slot under way failed with this error.
        """
        if not await self._wait_for_room():
            return timedelta()
        answer = await self._bridge.step()
        await self._hand_over_left()
        if answer.checkpoint is None or answer.need == 0:
            _log.info("nothing-to-do", why=answer.reason, step=answer.step)
            return timedelta(milliseconds=max(answer.retry_after_ms, 100))
        generator = await self._ready(answer.run_id, answer.checkpoint)
        groups = min(self._groups, answer.need, answer.groups_per_slot)
        grant = await self._bridge.slot(SlotWish(step=answer.step, groups=groups))
        async with self._released_on(grant, GenerationStopped, MusterError, OSError, asyncio.CancelledError):
            generator = await self._loaded_for_lease(generator, grant)
            ends = self._lease_end(grant)
            producing = await self._begin(generator, grant, ends=ends)
        self._slots.add(asyncio.create_task(self._finish(generator, grant, answer, producing, ends=ends)))
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_ahead(generator))
        return timedelta()

    async def _wait_for_room(self) -> bool:
        """Waits until another slot may begin; returns False if the task stops.

        Raises:
            Exception: A slot under way failed with this error.
        """
        while not self._stop.is_set():
            self._collect()
            if len(self._slots) < self._most_slots and self._shared_engine.has_room:
                return True
            await wait_first(self._clock.sleep(_ROOM_POLL), self._stop.wait(), tasks=self._slots)
        return False

    def _collect(self) -> None:
        """Forgets ended slots, and stops looking ahead after the last one."""
        try:
            super()._collect()
        finally:
            if not self._slots and self._looking is not None:
                self._looking.cancel()

    async def _end_slots(self) -> None:
        """Ends the slots under way, and stops looking ahead."""
        self.stop()
        if self._looking is not None:
            await cancel_all([self._looking])
        await super()._end_slots()

    async def _finish(
        self,
        generator: SlotGenerator,
        grant: SlotGrant,
        answer: StepAnswer,
        producing: asyncio.Future[Produced],
        *,
        ends: float,
    ) -> None:
        """Waits for a slot's file, and hands it over."""
        async with self._released_on(grant, GenerationStopped, MusterError, OSError, asyncio.CancelledError):
            try:
                produced = await producing
            except InvalidInput as error:
                raise self._give_up_on(generator.version, error) from error
        await self._deliver(grant, answer, produced, ends=ends)

    async def _load_version(self, policy: HeldPolicy) -> SlotGenerator:
        """Loads a version on the engine's thread."""
        return await self._with_engine(self._load, policy)

    def _load(self, policy: HeldPolicy) -> SlotGenerator:
        paid_arithmetic(read_recipe(policy.folder).taken, self._engine)
        self._shared_engine.load(policy.folder, version=policy.digest)
        generator = SlotGenerator(self._shared_engine, policy, scorer=self._scorer, clock=self._clock)
        policy.check_unchanged()
        return generator

    async def _with_engine(self, function: Callable[..., _T], *args: object) -> _T:
        """Runs a function on the engine's only thread; cancelling the wait does not stop the function."""
        return await asyncio.get_running_loop().run_in_executor(self._engine_thread, function, *args)

    async def _begin(self, generator: SlotGenerator, grant: SlotGrant, *, ends: float) -> asyncio.Future[Produced]:
        """Plans a slot and requests its answers; the future's result is the file.

        Args:
            generator: Generator of the slot's version.
            grant: The slot.
            ends: End of the lease, on the monotonic clock; generation then stops.
        """
        loop = asyncio.get_running_loop()
        try:
            slot = await loop.run_in_executor(self._slot_threads, self._begin_slot, generator, grant, ends)
        except InvalidInput as error:
            raise self._give_up_on(generator.version, error) from error
        return loop.run_in_executor(self._slot_threads, slot.finish)

    def _begin_slot(self, generator: SlotGenerator, grant: SlotGrant, ends: float) -> SlotInProgress:
        return generator.begin(grant, generator.plan(grant), should_stop=partial(self._should_stop, ends))

    def _should_stop(self, ends: float) -> bool:
        return self._halt.is_set() or self._clock.monotonic() >= ends

    async def _look_ahead(self, generator: SlotGenerator) -> None:
        """Fetches the next version while slots are under way.

        The method logs errors and never raises them, because the file in progress must not be lost. If an error
        persists, it occurs again when the task needs the version.
        """
        while True:
            await self._clock.sleep(_LOOK_AHEAD)
            try:
                answer = await self._bridge.step()
                newest = answer.checkpoint
                if newest is not None and newest.digest != generator.version and newest.version > self._newest:
                    self._check_arithmetic(newest)
                    (await self._policies.hold(answer.run_id, newest)).release()
                    return
            except InvalidInput as error:  # a second fetch would give the same invalid version
                _log.warning("look-ahead-failed", why=error.detail)
                return
            except (MusterError, OSError) as error:
                _log.info("look-ahead-failed", why=str(error))

    async def aclose(self) -> None:
        """Releases the policy, engine and scorer; waits only briefly for work in progress."""
        self._scorer.shutdown(wait=False, cancel_futures=True)
        self._slot_threads.shutdown(wait=False)
        if self._closing is None:
            self._closing = self._engine_thread.submit(self._engine.close)
            self._engine_thread.shutdown(wait=False)
        await asyncio.wait({asyncio.wrap_future(self._closing)}, timeout=CLOSE_TIMEOUT.total_seconds())
        if self._policy is not None:
            self._policy.release()
