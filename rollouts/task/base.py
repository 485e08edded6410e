"""Base class of the loops of generation and serving tasks: turns, errors, versions, and the end of slots."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Collection, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Generic, Protocol, Self, TypeVar

from protocol.errors import Conflict, InvalidInput, MusterError, RateLimited, Unavailable
from protocol.identifiers import Digest
from protocol.runtime.backoff import backoff
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.waiting import cancel_all, sleep_or, wait_first
from protocol.wire.bridge import HandOver
from protocol.wire.runs import CheckpointRef, StepAnswer
from protocol.wire.slots import SlotGrant, SlotName
from rollouts.engines.errors import GenerationStopped
from rollouts.engines.interface import SessionEngine
from rollouts.errors import EngineFailed
from rollouts.task.arithmetic import paid_arithmetic
from rollouts.task.bridge import Bridge
from rollouts.task.generator import Produced
from rollouts.task.outbox import Outbox, figures
from rollouts.task.policies import HeldPolicy, PolicyStore

MOST_ENGINE_FAILURES = 3
"""Consecutive failures after which the task exits with the reason; the worker restarts the task after a pause."""
CLOSE_TIMEOUT = timedelta(milliseconds=200)
"""A task should stop within a second. If the bridge does not answer, releasing slots adds `CLOSE_TIMEOUT` twice."""

_PAUSE = timedelta(seconds=2)
_SHORT_PAUSE = timedelta(milliseconds=200)
"""Pause after losing a slot to another node or a new version; the next slot may be available already."""
_OF_THE_MOMENT = frozenset({"no-slot", "slot-overtaken"})
_LONGEST_PAUSE = timedelta(seconds=60)
_RATE_SLOTS = 8
"""Slots over which the rate of tokens is averaged."""
_LAST_TIMEOUT = timedelta(milliseconds=700)

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
    """Slots that ended unfinished, because the lease expired or the task was stopped; without those that did not end in
    time at the stop."""


class RecentRate:
    """Tokens per second in which the engine computed, over the last few slots.

    The time of one slot says little, because slots overlap.
    """

    def __init__(self) -> None:
        self._readings: deque[tuple[float, int]] = deque([(0.0, 0)], maxlen=_RATE_SLOTS + 1)

    def add(self, busy: float, tokens: int) -> float:
        """Returns the rate after a finished slot.

        Args:
            busy: Seconds with an answer in progress since the task's start.
            tokens: Tokens of finished slots since the task's start.
        """
        self._readings.append((busy, tokens))
        (first_busy, first), (last_busy, last) = self._readings[0], self._readings[-1]
        return (last - first) / max(last_busy - first_busy, 1e-9)


class LoadedVersion(Protocol):
    """A version with which a task works."""

    @property
    def version(self) -> Digest:
        """The version's digest."""

    def choose_arithmetic(self, unverifiable: Collection[str]) -> None:
        """Chooses the arithmetic that further files name: see `SlotGenerator.choose_arithmetic`."""


_Version = TypeVar("_Version", bound=LoadedVersion)


class TaskLoop(ABC, Generic[_Version]):
    """A loop of turns, each of which may start a slot, until the loop is stopped.

    Args:
        bridge: Client of the worker.
        engine: The engine.
        policies: Versions on the shared volume.
        outbox: Finished files that wait for the worker.
        groups: Groups to request per lease.
        clock: Clock for waiting.
    """

    def __init__(
        self,
        *,
        bridge: Bridge,
        engine: SessionEngine,
        policies: PolicyStore,
        outbox: Outbox,
        groups: int,
        clock: Clock,
    ) -> None:
        self._bridge = bridge
        self._engine = engine
        self._policies = policies
        self._outbox = outbox
        self._groups = groups
        self._clock = clock
        self._stop = asyncio.Event()
        self._halt = threading.Event()
        self._stopped_at = 0.0
        self._slots: set[asyncio.Task[None]] = set()
        self._handing_over = asyncio.Lock()
        self._policy: HeldPolicy | None = None
        self._loaded: _Version | None = None
        self._newest = -1
        self._unusable: dict[Digest, InvalidInput] = {}
        self._failures = 0
        self._last_failure: EngineFailed | None = None
        self._put_offs = 0
        self._rate = RecentRate()
        self.totals = TaskTotals()

    @abstractmethod
    async def _turn(self) -> timedelta:
        """Starts the next slot as soon as there is room for it; returns the pause before the next turn.

        Raises:
            Exception: A slot under way failed with this error.
        """

    @abstractmethod
    async def _load_version(self, policy: HeldPolicy) -> _Version:
        """Loads a version into the engine while no slot is under way."""

    @abstractmethod
    async def aclose(self) -> None:
        """Releases the policy and the engine; waits only briefly for work in progress."""

    def stop(self) -> None:
        """Stops the loop within a second; abandons the slots under way."""
        if not self._halt.is_set():
            self._stopped_at = time.monotonic()
        self._halt.set()
        self._stop.set()

    def _seconds_to_stop(self) -> float:
        return max(0.0, self._stopped_at + _LAST_TIMEOUT.total_seconds() - time.monotonic())

    async def run(self) -> None:
        """Works until `stop` is called.

        Raises:
            EngineFailed: The engine failed too often in a row.
        """
        try:
            while not self._stop.is_set():
                await self._wait(await self._handled(self._until_stopped(self._turn())))
        finally:
            await self._end_slots()

    async def _handled(self, turn: Coroutine[None, None, timedelta]) -> timedelta:
        """Returns the turn's result; after an error, logs the error and returns the pause before the next turn.

        Raises:
            EngineFailed: The engine failed too often in a row.
        """
        try:
            pause = await turn
        except asyncio.CancelledError:
            if not self._stop.is_set():
                raise
        except GenerationStopped:
            self._abandoned()
        except EngineFailed as error:
            return self._failed(error)
        except MusterError as error:
            return self._put_off(error)
        except OSError as error:
            return self._put_off(DiskError(f"{error.filename or 'a volume'}: {error.strerror or error}"))
        else:
            self._put_offs = 0
            return pause
        return timedelta()

    def _abandoned(self) -> None:
        self.totals = replace(self.totals, abandoned=self.totals.abandoned + 1)
        _log.info("slot-abandoned", why="stopped" if self._stop.is_set() else "its lease ended")

    async def _until_stopped(self, turn: Coroutine[None, None, timedelta]) -> timedelta:
        """Waits for the turn; cancels the turn if it does not end within `_LAST_TIMEOUT` after `stop`."""
        running = asyncio.ensure_future(turn)
        try:
            await wait_first(self._stop.wait(), tasks=[running])
            if not running.done():
                await asyncio.wait({running}, timeout=self._seconds_to_stop())
        finally:
            running.cancel()
        return await running

    async def _drained(self) -> None:
        """Waits until no slot is under way; `_collect` raises their errors later."""
        running = [slot for slot in self._slots if not slot.done()]
        if running:
            await asyncio.wait(running)

    def _collect(self) -> None:
        """Forgets ended slots; raises the error of the first one that failed."""
        for slot in [one for one in self._slots if one.done()]:
            self._slots.remove(slot)
            slot.result()

    async def _hand_over_left(self) -> None:
        """Hands over the files of an earlier start."""
        async with self._handing_over:
            left = await self._outbox.hand_over_left()
        if left:
            _log.info("left-files-handed-over", files=left)

    async def _end_slots(self) -> None:
        """Cancels the slots under way that do not end within `_LAST_TIMEOUT` after `stop`."""
        self.stop()
        if not self._slots:
            return
        _, running = await asyncio.wait(self._slots, timeout=self._seconds_to_stop())
        await cancel_all(running)
        for slot in self._slots:
            if not slot.cancelled() and isinstance(slot.exception(), GenerationStopped):
                self._abandoned()
        self._slots.clear()

    @asynccontextmanager
    async def _released_on(self, grant: SlotGrant, *ends: type[BaseException]) -> AsyncIterator[None]:
        """Releases the slot if the block raises one of `ends`, so that no other node waits for the lease's end.

        If the task is stopped while a file is written, the file is kept, and the next start hands it over.
        """
        try:
            yield
        except ends:
            with suppress(MusterError, TimeoutError):
                stopping = self._halt.is_set()
                limit = max(self._seconds_to_stop(), CLOSE_TIMEOUT.total_seconds())
                async with asyncio.timeout(limit if stopping else _LAST_TIMEOUT.total_seconds()):
                    await self._bridge.release(SlotName(step=grant.lease.step, index=grant.lease.index))
            raise

    async def _loaded_for_lease(self, loaded: _Version, grant: SlotGrant) -> _Version:
        """Returns the leased version, loaded; `loaded` may be another one.

        The run may announce a version between the request for the step and the request for the slot.

        Raises:
            Overtaken: The version changed again.
        """
        if grant.lease.digest == loaded.version:
            return loaded
        newer = await self._bridge.step()
        if newer.checkpoint is None or newer.checkpoint.digest != grant.lease.digest:
            raise Overtaken(f"the slot is of version {grant.lease.version}, but the run now names another version")
        return await self._ready(newer.run_id, newer.checkpoint)

    async def _ready(self, run: Digest, checkpoint: CheckpointRef) -> _Version:
        """Returns this version; loads it if needed."""
        if checkpoint.version < self._newest:
            raise VersionWentBack(f"the run went back from version {self._newest} to {checkpoint.version}")
        if checkpoint.digest in self._unusable:
            raise self._unusable[checkpoint.digest]
        if self._loaded is not None and self._loaded.version == checkpoint.digest:
            self._loaded.choose_arithmetic(checkpoint.unverifiable)
            return self._loaded
        self._check_arithmetic(checkpoint)  # a failure does not mark the version unusable: the pool owner may fix it
        try:
            policy = await self._policies.hold(run, checkpoint)
        except InvalidInput as error:
            raise self._give_up_on(checkpoint.digest, error) from error
        try:
            await self._drained()
        except BaseException:
            policy.release()
            raise
        try:
            loaded = await self._load_version(policy)
        except BaseException as error:
            policy.release()
            self._loaded = None
            if isinstance(error, InvalidInput):
                raise self._give_up_on(checkpoint.digest, error) from error
            raise
        if self._policy is not None:
            self._policy.release()
        self._policy, self._loaded, self._newest = policy, loaded, checkpoint.version
        await self._policies.tidy()
        _log.info("version-loaded", version=checkpoint.version, digest=checkpoint.digest)
        loaded.choose_arithmetic(checkpoint.unverifiable)  # last, so that a failure does not cause another load
        return loaded

    def _check_arithmetic(self, checkpoint: CheckpointRef) -> None:
        paid_arithmetic(checkpoint.arithmetic, self._engine, unverifiable=checkpoint.unverifiable)

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

    async def _deliver(self, grant: SlotGrant, answer: StepAnswer, produced: Produced, *, ends: float) -> None:
        """Writes a slot's file and hands it over to the worker.

        Args:
            grant: The slot.
            answer: The slot's step.
            produced: The file.
            ends: End of the lease, on the monotonic clock.
        """
        self._failures = 0
        async with self._handing_over:
            async with self._released_on(grant, MusterError, OSError):  # if cancelled, the thread still writes the file
                handed = await self._write(produced, ends=ends)
            await self._outbox.hand_over(handed)
        await self._done(answer, produced)

    def _lease_end(self, grant: SlotGrant) -> float:
        """Returns the end of a lease, on the monotonic clock."""
        return self._clock.monotonic() + grant.lease.expiry - self._clock.now().timestamp()

    async def _done(self, answer: StepAnswer, produced: Produced) -> None:
        samples, units = produced.file.samples, produced.file.units
        self.totals = replace(
            self.totals,
            slots=self.totals.slots + 1,
            samples=self.totals.samples + len(samples),
            tokens=self.totals.tokens + units,
        )
        usage = self._engine.usage.read()
        shown = {**figures(samples), "tokens-per-second": self._rate.add(usage.busy, self.totals.tokens)}
        seconds = round(produced.took.total_seconds(), 2)
        _log.info("slot-done", step=answer.step, seconds=seconds, **{k: round(v, 3) for k, v in shown.items()})
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
                    "batch-seconds": usage.total,
                    "batch-idle-seconds": usage.idle,
                    "batch-under-half-seconds": usage.under_half,
                }
            )

    def _failed(self, error: EngineFailed) -> timedelta:
        if error is self._last_failure:  # a failure of the engine ends all slots under way
            return timedelta()
        self._last_failure = error
        self._failures += 1
        self._loaded = None  # the engine's weights may be incomplete, so the next turn loads them again
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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
