"""The loop of the inference worker (INTELLECT-2, 2.1): step, policy, slot, generate, prove, score, hand over; again.

Three things overlap: while one slot is generated, answers that are done are scored in a thread, and a newer version is
fetched as soon as the step names one. Weights change between slots only, so a file is of one version.
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
from types import TracebackType
from typing import Self, TypeVar

import structlog

from protocol.errors import Conflict, InvalidInput, MusterError, RateLimited, Unavailable
from protocol.identifiers import Digest
from protocol.runtime.clock import Clock
from protocol.wire.bridge import HandOver
from protocol.wire.runs import CheckpointRef, StepAnswer
from protocol.wire.slots import SlotGrant, SlotName, SlotWish
from rollouts.engines.errors import (
    GenerationStopped,
)
from rollouts.engines.interface import Engine
from rollouts.errors import (
    EngineFailed,
)
from rollouts.recipe import read_recipe
from rollouts.task.arithmetic import check_taken
from rollouts.task.bridge import Bridge
from rollouts.task.generator import Produced, SlotGenerator
from rollouts.task.outbox import Outbox, figures
from rollouts.task.policies import HeldPolicy, PolicyStore

MOST_ENGINE_FAILURES = 3
"""In a row; then the task ends with the reason, and its worker starts it again with a pause."""

_PAUSE = timedelta(seconds=2)
_SOON = timedelta(milliseconds=200)
"""After a slot that somebody or a new version was faster to get; the next one may be there already."""
_OF_THE_MOMENT = frozenset({"no-slot", "slot-overtaken"})
_LONGEST_PAUSE = timedelta(seconds=60)
_LOOK_AHEAD = timedelta(seconds=2)
_LAST_PATIENCE = timedelta(milliseconds=700)
_CLOSING_PATIENCE = timedelta(milliseconds=200)
"""Together under the second within which a task stops."""

_T = TypeVar("_T")
_log = structlog.get_logger(__name__)


class VersionWentBack(Conflict):
    """The run names an older version than it did."""

    code = "version-went-back"
    default_hint = "versions only grow; ask the pool's owner what happened"


class Overtaken(Conflict):
    """The slot is of a version that the run has left behind before it could be fetched."""

    code = "slot-overtaken"
    default_hint = "nothing: the slot is given back, and the next one is of the newest version"


class DiskTrouble(Unavailable):
    """A volume can't be read or written now."""

    code = "disk-trouble"
    default_hint = "make room on the volumes of the task, and look at the disk's health"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTotals:
    """What the task has done so far; reported through the bridge."""

    slots: int = 0
    samples: int = 0
    tokens: int = 0
    abandoned: int = 0
    """Slots whose lease ended, or that were stopped, before they were finished."""


class RolloutTask:
    """Generates until it is told to stop.

    Args:
        bridge: To the worker.
        engine: Whatever generates.
        policies: The shared volume's versions.
        outbox: Where finished files wait for the worker.
        groups: How many groups it asks for at a time.
        clock: Whose time is waited.
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
        """Ends the loop: within a second, and without the slot that is under way."""
        self._halt.set()
        self._stop.set()

    async def run(self) -> None:
        """Works until `stop`.

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
                pause = self._put_off(DiskTrouble(f"{error.filename or 'a volume'}: {error.strerror or error}"))
            else:
                self._put_offs = 0
            await self._wait(pause)

    async def _until_stopped(self, turn: Coroutine[None, None, timedelta]) -> timedelta:
        """Waits for the turn; once the task is told to stop, only as long as handing a file over takes."""
        running = asyncio.ensure_future(turn)
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await asyncio.wait({running}, timeout=_LAST_PATIENCE.total_seconds())
        finally:
            for task in (running, stopped):
                task.cancel()
        return await running

    async def _turn(self) -> timedelta:
        """One slot, or nothing to do; returns how long to wait before the next."""
        answer = await self._bridge.step()
        if left := await self._outbox.hand_over_left():
            _log.info("left-files-handed-over", files=left)
        if answer.checkpoint is None or answer.need == 0:
            _log.info("nothing-to-do", why=answer.reason, step=answer.step)
            return timedelta(milliseconds=max(answer.retry_after_ms, 100))
        generator = await self._ready(answer.run_id, answer.checkpoint)
        groups = min(self._groups, answer.need, answer.groups_per_slot)
        grant = await self._bridge.slot(SlotWish(step=answer.step, groups=groups))
        async with self._given_back_upon(grant, GenerationStopped, MusterError, OSError, asyncio.CancelledError):
            generator = await self._of_the_lease(generator, grant)
            ends = self._clock.monotonic() + grant.lease.expiry - self._clock.now().timestamp()
            produced = await self._generate(generator, grant, ends=ends)
        self._failures = 0
        async with self._given_back_upon(grant, MusterError, OSError):  # cancelled, its thread writes on
            handed = await self._write(produced, ends=ends)
        await self._outbox.hand_over(handed)
        await self._done(answer, produced)
        return timedelta()

    @asynccontextmanager
    async def _given_back_upon(self, grant: SlotGrant, *ends: type[BaseException]) -> AsyncIterator[None]:
        """Releases the slot when no file comes of it, so that nobody waits for its lease to end.

        A file that is being written still comes, when the task is stopped meanwhile: its next life hands it over.
        """
        try:
            yield
        except ends:
            with suppress(MusterError, TimeoutError):
                async with asyncio.timeout(_LAST_PATIENCE.total_seconds()):
                    await self._bridge.release(SlotName(step=grant.lease.step, index=grant.lease.index))
            raise

    async def _of_the_lease(self, generator: SlotGenerator, grant: SlotGrant) -> SlotGenerator:
        """The generator of the leased version, which may have come between the two questions.

        Raises:
            Overtaken: And another one came after it.
        """
        if grant.lease.digest == generator.version:
            return generator
        newer = await self._bridge.step()
        if newer.checkpoint is None or newer.checkpoint.digest != grant.lease.digest:
            raise Overtaken(f"the slot is of version {grant.lease.version}, and the run names another one by now")
        return await self._ready(newer.run_id, newer.checkpoint)

    async def _ready(self, run: Digest, checkpoint: CheckpointRef) -> SlotGenerator:
        """The generator of this version; loads it if another one is loaded."""
        if checkpoint.version < self._newest:
            raise VersionWentBack(f"the run went back from version {self._newest} to {checkpoint.version}")
        if checkpoint.digest in self._unusable:
            raise self._unusable[checkpoint.digest]
        if self._generator is not None and self._generator.version == checkpoint.digest:
            return self._generator
        check_taken(checkpoint.arithmetic, self._engine)  # before anything is fetched; a word that may be corrected
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
        return generator

    def _load(self, policy: HeldPolicy) -> SlotGenerator:
        check_taken(read_recipe(policy.folder).taken, self._engine)
        self._engine.load(policy.folder, version=policy.digest)
        generator = SlotGenerator(self._engine, policy, scorer=self._scorer, clock=self._clock)
        policy.check_unchanged()
        return generator

    async def _with_engine(self, function: Callable[..., _T], *args: object) -> _T:
        """Runs something on the one thread that uses the engine; who stops waiting does not stop it."""
        return await asyncio.get_running_loop().run_in_executor(self._engine_thread, function, *args)

    async def _generate(self, generator: SlotGenerator, grant: SlotGrant, *, ends: float) -> Produced:
        """Makes the slot's file, unless its lease ends before: at `ends`, by a clock that nobody sets."""

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
        """Writes a finished file; waits for a volume that can't be written as long as the lease lasts.

        Raises:
            OSError: It still can't.
        """
        while True:
            try:
                return await asyncio.to_thread(self._outbox.put, produced.file, took=produced.took)
            except OSError as error:
                if self._clock.monotonic() >= ends:
                    raise
                _log.warning("file-not-written", why=str(error), hint=DiskTrouble.default_hint)
                await self._clock.sleep(_PAUSE)

    def _give_up_on(self, digest: Digest, error: InvalidInput) -> InvalidInput:
        """A version that can't be generated with is not leased again: its slots would only go undelivered."""
        self._unusable[digest] = error
        return error

    async def _look_ahead(self, generator: SlotGenerator) -> None:
        """Fetches the next version while this one is generated with; any trouble shows again when it is wanted.

        So it raises nothing: the file that is being made is worth more than the next version.
        """
        while True:
            await self._clock.sleep(_LOOK_AHEAD)
            try:
                answer = await self._bridge.step()
                newest = answer.checkpoint
                if newest is not None and newest.digest != generator.version and newest.version > self._newest:
                    (await self._policies.hold(answer.run_id, newest)).release()
                    return
            except InvalidInput as error:  # it would come as bad again, and again in full
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
        with suppress(MusterError):  # figures for people: the next slot reports again
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
        self._generator = None  # its weights may be half there
        if self._failures >= MOST_ENGINE_FAILURES:
            raise error
        _log.error("engine-failed", why=error.detail, hint=error.hint, failures=self._failures)
        return _PAUSE

    def _put_off(self, error: MusterError) -> timedelta:
        """Whatever else stands in the way: say it, and look again, less and less often."""
        _log.warning("put-off", why=error.detail, hint=error.hint, code=error.code)
        first = _SOON if error.code in _OF_THE_MOMENT else _PAUSE
        doubled: int = 2 ** min(self._put_offs, 10)
        pause = min(first * doubled, _LONGEST_PAUSE)
        self._put_offs += 1
        return max(pause, error.retry_after) if isinstance(error, RateLimited) else pause

    async def _wait(self, pause: timedelta) -> None:
        if pause <= timedelta() or self._stop.is_set():
            return
        waiting = [asyncio.ensure_future(self._stop.wait()), asyncio.ensure_future(self._clock.sleep(pause))]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()

    async def aclose(self) -> None:
        """Lets go of the policy, the engine and the scorer; does not wait long for what they are still at."""
        self._scorer.shutdown(wait=False, cancel_futures=True)
        if self._closing is None:
            self._closing = self._engine_thread.submit(self._engine.close)
            self._engine_thread.shutdown(wait=False)
        await asyncio.wait({asyncio.wrap_future(self._closing)}, timeout=_CLOSING_PATIENCE.total_seconds())
        if self._policy is not None:
            self._policy.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
