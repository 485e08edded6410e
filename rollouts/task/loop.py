"""Main loop of the generation task (INTELLECT-2, 2.1).

Each turn requests the step, loads its version, leases a slot, generates answers with proofs, scores the answers, and
hands the file over. Three activities overlap: while the engine generates a slot, a thread scores finished answers, and
the task fetches a newer version as soon as the step names one. Weights change only between slots, so each file is of
one version.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Self, TypeVar

from protocol.errors import Conflict, InvalidInput, MusterError, RateLimited, Unavailable
from protocol.identifiers import Digest
from protocol.runtime.backoff import backoff
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.waiting import sleep_or, wait_first
from protocol.wire.bridge import HandOver
from protocol.wire.runs import CheckpointRef, StepAnswer
from protocol.wire.slots import SlotGrant, SlotName, SlotWish
from rollouts.engines.errors import GenerationStopped
from rollouts.engines.interface import Engine
from rollouts.errors import EngineFailed
from rollouts.recipe import read_recipe
from rollouts.task.arithmetic import paid_arithmetic
from rollouts.task.bridge import Bridge
from rollouts.task.generator import Produced, SlotGenerator
from rollouts.task.outbox import Outbox, figures
from rollouts.task.policies import HeldPolicy, PolicyStore

MOST_ENGINE_FAILURES = 3
"""Consecutive failures after which the task exits with the reason; the worker restarts the task after a pause."""

_PAUSE = timedelta(seconds=2)
_SHORT_PAUSE = timedelta(milliseconds=200)
"""Pause after losing a slot to another node or a new version; the next slot may be available already."""
_OF_THE_MOMENT = frozenset({"no-slot", "slot-overtaken"})
_LONGEST_PAUSE = timedelta(seconds=60)
_LOOK_AHEAD = timedelta(seconds=2)
_LAST_TIMEOUT = timedelta(milliseconds=700)
_CLOSE_TIMEOUT = timedelta(milliseconds=200)
"""These time-outs together keep the shutdown below the second within which a task must stop."""

_T = TypeVar("_T")
_log = get_logger(__name__)


class VersionWentBack(Conflict):
    """The run names an older version than before."""

    code = "version-went-back"
    default_hint = "version numbers only grow; ask the pool owner for the reason"


class Overtaken(Conflict):
    """A newer version replaced the slot's version before the task could fetch it."""

    code = "slot-overtaken"
    default_hint = "no action is needed: the task releases the slot and leases a slot of the newest version"


class DiskError(Unavailable):
    """A volume can't be read or written now."""

    code = "disk-trouble"
    default_hint = "make room on the volumes of the task, and check the disk's health"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTotals:
    """Totals since the task's start, reported through the bridge."""

    slots: int = 0
    samples: int = 0
    tokens: int = 0
    abandoned: int = 0
    """Slots that ended unfinished, because the lease expired or the task was stopped."""


class RolloutTask:
    """Generates rollouts until stopped.

    Args:
        bridge: Client of the worker.
        engine: The engine.
        policies: Versions on the shared volume.
        outbox: Finished files that wait for the worker.
        groups: Groups to request per lease.
        clock: Clock for waiting.
    """

    def __init__(
        self, *, bridge: Bridge, engine: Engine, policies: PolicyStore, outbox: Outbox, groups: int, clock: Clock
    ) -> None:
        self._bridge = bridge
        self._engine = engine
        self._policies = policies
        self._outbox = outbox
        self._groups = groups
        self._clock = clock
        self._stop = asyncio.Event()
        self._halt = threading.Event()
        self._engine_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._closing: Future[None] | None = None
        self._scorer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="score")
        self._policy: HeldPolicy | None = None
        self._generator: SlotGenerator | None = None
        self._newest = -1
        self._unusable: dict[Digest, InvalidInput] = {}
        self._failures = 0
        self._put_offs = 0
        self.totals = TaskTotals()

    def stop(self) -> None:
        """Stops the loop within a second; abandons the slot in progress."""
        self._halt.set()
        self._stop.set()

    async def run(self) -> None:
        """Works until `stop` is called.

        Raises:
            EngineFailed: The engine failed too often in a row.
        """
        while not self._stop.is_set():
            try:
                pause = await self._until_stopped(self._turn())
            except asyncio.CancelledError:
                if not self._stop.is_set():
                    raise
                return
            except GenerationStopped:
                self.totals = replace(self.totals, abandoned=self.totals.abandoned + 1)
                _log.info("slot-abandoned", why="stopped" if self._stop.is_set() else "its lease ended")
                pause = timedelta()
            except EngineFailed as error:
                pause = self._failed(error)
            except MusterError as error:
                pause = self._put_off(error)
            except OSError as error:
                pause = self._put_off(DiskError(f"{error.filename or 'a volume'}: {error.strerror or error}"))
            else:
                self._put_offs = 0
            await self._wait(pause)

    async def _until_stopped(self, turn: Coroutine[None, None, timedelta]) -> timedelta:
        """Waits for the turn; after `stop`, waits at most `_LAST_TIMEOUT`, then cancels the turn."""
        running = asyncio.ensure_future(turn)
        try:
            await wait_first(self._stop.wait(), tasks=[running])
            if not running.done():
                await asyncio.wait({running}, timeout=_LAST_TIMEOUT.total_seconds())
        finally:
            running.cancel()
        return await running

    async def _turn(self) -> timedelta:
        """Processes one slot, if any; returns the pause before the next turn."""
        answer = await self._bridge.step()
        if left := await self._outbox.hand_over_left():
            _log.info("left-files-handed-over", files=left)
        if answer.checkpoint is None or answer.need == 0:
            _log.info("nothing-to-do", why=answer.reason, step=answer.step)
            return timedelta(milliseconds=max(answer.retry_after_ms, 100))
        generator = await self._ready(answer.run_id, answer.checkpoint)
        groups = min(self._groups, answer.need, answer.groups_per_slot)
        grant = await self._bridge.slot(SlotWish(step=answer.step, groups=groups))
        async with self._released_on(grant, GenerationStopped, MusterError, OSError, asyncio.CancelledError):
            generator = await self._generator_for_lease(generator, grant)
            ends = self._clock.monotonic() + grant.lease.expiry - self._clock.now().timestamp()
            produced = await self._generate(generator, grant, ends=ends)
        self._failures = 0
        async with self._released_on(grant, MusterError, OSError):  # if cancelled, the thread still writes the file
            handed = await self._write(produced, ends=ends)
        await self._outbox.hand_over(handed)
        await self._done(answer, produced)
        return timedelta()

    @asynccontextmanager
    async def _released_on(self, grant: SlotGrant, *ends: type[BaseException]) -> AsyncIterator[None]:
        """Releases the slot if the block raises one of `ends`, so that no other node waits for the lease's end.

        If the task is stopped while a file is written, the file is kept, and the next start hands it over.
        """
        try:
            yield
        except ends:
            with suppress(MusterError, TimeoutError):
                async with asyncio.timeout(_LAST_TIMEOUT.total_seconds()):
                    await self._bridge.release(SlotName(step=grant.lease.step, index=grant.lease.index))
            raise

    async def _generator_for_lease(self, generator: SlotGenerator, grant: SlotGrant) -> SlotGenerator:
        """Returns the generator of the leased version; loads the version if `generator` has another one.

        The run may announce a version between the request for the step and the request for the slot.

        Raises:
            Overtaken: The version changed again.
        """
        if grant.lease.digest == generator.version:
            return generator
        newer = await self._bridge.step()
        if newer.checkpoint is None or newer.checkpoint.digest != grant.lease.digest:
            raise Overtaken(f"the slot is of version {grant.lease.version}, but the run now names another version")
        return await self._ready(newer.run_id, newer.checkpoint)

    async def _ready(self, run: Digest, checkpoint: CheckpointRef) -> SlotGenerator:
        """Returns the generator of this version; loads the version if needed."""
        if checkpoint.version < self._newest:
            raise VersionWentBack(f"the run went back from version {self._newest} to {checkpoint.version}")
        if checkpoint.digest in self._unusable:
            raise self._unusable[checkpoint.digest]
        if self._generator is not None and self._generator.version == checkpoint.digest:
            self._generator.choose_arithmetic(checkpoint.unverifiable)
            return self._generator
        self._check_arithmetic(checkpoint)  # a failure does not mark the version unusable: the pool owner may fix it
        try:
            policy = await self._policies.hold(run, checkpoint)
        except InvalidInput as error:
            raise self._give_up_on(checkpoint.digest, error) from error
        try:
            generator = await self._with_engine(self._load, policy)
        except BaseException as error:
            policy.release()
            self._generator = None
            if isinstance(error, InvalidInput):
                raise self._give_up_on(checkpoint.digest, error) from error
            raise
        if self._policy is not None:
            self._policy.release()
        self._policy, self._generator, self._newest = policy, generator, checkpoint.version
        await self._policies.tidy()
        _log.info("version-loaded", version=checkpoint.version, digest=checkpoint.digest)
        generator.choose_arithmetic(checkpoint.unverifiable)  # last, so that a failure does not cause another load
        return generator

    def _check_arithmetic(self, checkpoint: CheckpointRef) -> None:
        paid_arithmetic(checkpoint.arithmetic, self._engine, unverifiable=checkpoint.unverifiable)

    def _load(self, policy: HeldPolicy) -> SlotGenerator:
        paid_arithmetic(read_recipe(policy.folder).taken, self._engine)
        self._engine.load(policy.folder, version=policy.digest)
        generator = SlotGenerator(self._engine, policy, scorer=self._scorer, clock=self._clock)
        policy.check_unchanged()
        return generator

    async def _with_engine(self, function: Callable[..., _T], *args: object) -> _T:
        """Runs a function on the engine's only thread; cancelling the wait does not stop the function."""
        return await asyncio.get_running_loop().run_in_executor(self._engine_thread, function, *args)

    async def _generate(self, generator: SlotGenerator, grant: SlotGrant, *, ends: float) -> Produced:
        """Produces the slot's file, unless the lease ends first: at `ends` of the monotonic clock."""

        def should_stop() -> bool:
            return self._halt.is_set() or self._clock.monotonic() >= ends

        looking = asyncio.create_task(self._look_ahead(generator))
        try:
            return await self._with_engine(partial(generator.produce, grant, should_stop=should_stop))
        except InvalidInput as error:
            raise self._give_up_on(generator.version, error) from error
        finally:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking

    async def _write(self, produced: Produced, *, ends: float) -> HandOver:
        """Writes a finished file; retries until the lease ends if the volume can't be written.

        Raises:
            OSError: The last attempt failed.
        """
        while True:
            try:
                return await asyncio.to_thread(self._outbox.put, produced.file, took=produced.took)
            except OSError as error:
                if self._clock.monotonic() >= ends:
                    raise
                _log.warning("file-not-written", why=str(error), hint=DiskError.default_hint)
                await self._clock.sleep(_PAUSE)

    def _give_up_on(self, digest: Digest, error: InvalidInput) -> InvalidInput:
        """Marks a version as unusable, so that the task leases no slot of it."""
        self._unusable[digest] = error
        return error

    async def _look_ahead(self, generator: SlotGenerator) -> None:
        """Fetches the next version during generation.

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

    async def _done(self, answer: StepAnswer, produced: Produced) -> None:
        samples, units = produced.file.samples, produced.file.units
        self.totals = replace(
            self.totals,
            slots=self.totals.slots + 1,
            samples=self.totals.samples + len(samples),
            tokens=self.totals.tokens + units,
        )
        seconds = max(produced.took.total_seconds(), 1e-9)
        shown = {**figures(samples), "tokens-per-second": units / seconds}
        _log.info(
            "slot-done", step=answer.step, seconds=round(seconds, 2), **{k: round(v, 3) for k, v in shown.items()}
        )
        with suppress(MusterError):  # a lost report does no harm: the next slot reports again
            await self._bridge.report(
                {
                    **shown,
                    "step": answer.step,
                    "version": self._newest,
                    "slots": self.totals.slots,
                    "samples-total": self.totals.samples,
                    "tokens-total": self.totals.tokens,
                    "abandoned": self.totals.abandoned,
                }
            )

    def _failed(self, error: EngineFailed) -> timedelta:
        self._failures += 1
        self._generator = None  # the engine's weights may be incomplete, so the next turn loads them again
        if self._failures >= MOST_ENGINE_FAILURES:
            raise error
        _log.error("engine-failed", why=error.detail, hint=error.hint, failures=self._failures)
        return _PAUSE

    def _put_off(self, error: MusterError) -> timedelta:
        """Logs an error and returns the pause before the next attempt, which grows with each error."""
        _log.warning("put-off", why=error.detail, hint=error.hint, code=error.code)
        first = _SHORT_PAUSE if error.code in _OF_THE_MOMENT else _PAUSE
        self._put_offs += 1
        pause = backoff(first, _LONGEST_PAUSE, self._put_offs)
        return max(pause, error.retry_after) if isinstance(error, RateLimited) else pause

    async def _wait(self, pause: timedelta) -> None:
        if pause > timedelta() and not self._stop.is_set():
            await sleep_or(self._clock, pause, self._stop)

    async def aclose(self) -> None:
        """Releases the policy, engine and scorer; waits only briefly for work in progress."""
        self._scorer.shutdown(wait=False, cancel_futures=True)
        if self._closing is None:
            self._closing = self._engine_thread.submit(self._engine.close)
            self._engine_thread.shutdown(wait=False)
        await asyncio.wait({asyncio.wrap_future(self._closing)}, timeout=_CLOSE_TIMEOUT.total_seconds())
        if self._policy is not None:
            self._policy.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
