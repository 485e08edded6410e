"""The loop: a step's accepted rollouts are gathered, journalled, learned; the version is written, announced, told.

    gather ──▶ close ──▶ journal ──▶ learn ──▶ write ──▶ announce ──▶ tell
      ▲                                          │          (while the next step is gathered)
      └──────────────── next step ◀──────────────┘──▶ state on the disk (in a thread)

Killed at any of these points, the same command goes on: what is journalled is learned again from the files that lie
beside the journal, and each stage after it looks whether it was done (decision 0030).
"""

from __future__ import annotations

import asyncio
import math
import shutil
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import structlog
from numpy.typing import NDArray

from protocol.clock import Clock
from protocol.errors import MusterError
from protocol.signing import unix_ms
from protocol.wire.runs import RunView
from trainer.errors import NothingToLearn, NotWritten
from trainer.files import sync_names
from trainer.run.asynchrony import Asynchrony, Decision, Move, StepStanding, next_move
from trainer.run.batches import SeenFile, choose, groups_at, signal_share, solved_shares
from trainer.run.desk import DemandDesk, standings
from trainer.run.evaluation import EvaluationProcess
from trainer.run.intake import Intake, step_folder
from trainer.run.journal import Batch, Journal
from trainer.run.lease import RunLease
from trainer.run.progress import Progress
from trainer.run.publishing import Publisher
from trainer.run.reporting import IdleShare, StepDone, StepTimes, step_facts
from trainer.run.settings import TrainerSettings
from trainer.run.state import RunState, save_state
from trainer.run.streaming import StreamedStep
from trainer.run.student import Lesson, Student, learn_batch

T = TypeVar("T")

_Gathered = tuple[Intake, StepStanding, StreamedStep | None]
_log = structlog.get_logger(__name__)

LAST_PATIENCE = timedelta(seconds=30)
"""How long a trainer that was told to stop waits for the announcement that is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunParts:
    """What a run is made of."""

    settings: TrainerSettings
    student: Student
    candidates: NDArray[np.uint64] | None
    """The base's table of prompts: no version has others. None if it has no table, nor can have one."""
    journal: Journal
    publisher: Publisher
    desk: DemandDesk
    lease: RunLease
    intake: Callable[[int], Intake]
    progress: Progress
    evaluation: EvaluationProcess | None
    clock: Clock
    about: dict[str, str]
    """What decides whose state it is."""


class TrainingRun:
    """One run at work.

    Args:
        parts: What it is made of.
        state: Where it is: everything below `state.step` is learned by the student.
        stop: Ends it after what it can't leave undone.
    """

    def __init__(self, parts: RunParts, state: RunState, *, stop: asyncio.Event) -> None:
        self._parts = parts
        self._settings = parts.settings
        self._knobs: Asynchrony = parts.settings.knobs
        self._state = state
        self._version = 0
        self._stop = stop
        self._publishing: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._intakes: dict[int, Intake] = {}
        self._idle = IdleShare()

    @property
    def state(self) -> RunState:
        """Where it is."""
        return self._state

    async def run(self) -> None:
        """Does the steps that are missing, or as many as can be done until `stop`.

        Raises:
            AnotherTrainer: Somebody else trains this run.
            NothingToLearn: Too many steps in a row had no group with signal.
            TrainingDiverged: Loss or gradient was no number too often.
            NotWritten: The disk is full, or refuses.
            MusterError: Something was down for longer than the settings allow.
        """
        try:
            await self._unless_stopped(self._take_up())
            while self._state.step < self._settings.steps and not self._stop.is_set():
                if not await self._step():
                    break
            await self._settle()
        finally:
            for task in (self._publishing, self._saving):
                if task is not None and not task.done():
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

    # One step

    async def _step(self) -> bool:
        """Gathers, learns and writes one step; False if it was told to stop while nothing was lost by it."""
        step, times, began = self._state.step, StepTimes(), time.perf_counter()
        gathered = await self._unless_stopped(self._gather(step, times))
        if gathered is None:
            return False
        intake, now, streamed = gathered
        files, parts = intake.files, tuple[int, ...]()
        if streamed is None:
            chosen = choose(files, step=step, most=self._settings.most_groups, seed=self._settings.seed)
        else:
            chosen, parts = streamed.close(files)
        batch = Batch(
            step=step,
            at_ms=unix_ms(self._parts.clock.now()),
            files=tuple(file.entry for file in files),
            groups=chosen.places,
            parts=parts,
        )
        await asyncio.to_thread(self._record, batch)
        lesson = await self._learn(batch, files, times)
        await self._write_and_publish(times)
        self._intakes.pop(step, None)
        done = StepDone(batch=batch, files=files, chosen=chosen, dropped=intake.dropped, standing=now, lesson=lesson)
        times.total = time.perf_counter() - began
        facts = step_facts(done, times, state=self._state, pools=self._settings.pools)
        idle = self._idle.after(times)
        self._parts.progress.tell("step", **facts, idle_share=idle)
        _log.info("step-learned", step=step, reward=facts["reward"], seconds=round(times.total, 2), idle=idle)
        return True

    def _record(self, batch: Batch) -> None:
        """Journals a batch whose files survive a power cut: their bytes are on the disk, and here their names."""
        state = self._settings.state
        sync_names(step_folder(state, batch.step), within=state)
        self._parts.journal.append(batch)

    async def _gather(self, step: int, times: StepTimes) -> _Gathered | None:
        """Waits until the step's batch is as full as it gets, and closes the step; None if it is told to stop."""
        intake, streamed = self._intake(step), self._streamed(step)
        full_since: float | None = None
        looked_at = (
            -1
        )  # accepted groups when the files were listed last: polling costs everybody, so no more than has to be
        while not self._stop.is_set():  # looked at too, because libraries swallow cancellations
            since = time.perf_counter()
            self._raise_what_failed()
            view = await self._parts.desk.view()
            if not self._parts.publisher.is_told(view, self._version) and self._publishing is None:
                self._parts.desk.forget()
                self._publishing = asyncio.create_task(self._publish(self._version))
            await self._open(step, view)
            times.wait += time.perf_counter() - since
            now = standings(view).get(step, StepStanding())
            news = now.accepted != looked_at or intake.is_late
            if news:
                since = time.perf_counter()
                looked_at = now.accepted if await self._look(intake) else -1
                times.read += time.perf_counter() - since
            if streamed is not None:
                since = time.perf_counter()
                await streamed.feed(intake.files)
                times.learn += time.perf_counter() - since
            useful = sum(file.useful for file in intake.files)
            if useful >= self._settings.groups_per_step and full_since is None:
                full_since = time.perf_counter()
            lingered = full_since is not None and time.perf_counter() - full_since >= self._settings.linger_s
            decided = self._decide(now, intake, useful, lingered=lingered, max_rounds=view.max_rounds)
            if decided.move is Move.FULL and not news:
                looked_at = -1  # a verdict may have been turned over and another file accepted: look once more
                continue
            if decided.move is Move.FULL:
                await self._parts.desk.close(step)
                return intake, now, streamed
            if decided.move is Move.RAISE:
                await self._parts.desk.raise_to(step, decided.groups)
            since = time.perf_counter()
            await self._parts.clock.sleep(self._settings.poll)
            times.wait += time.perf_counter() - since
        return None

    def _decide(self, now: StepStanding, intake: Intake, useful: int, *, lingered: bool, max_rounds: int) -> Decision:
        return next_move(
            now,
            wanted=self._settings.groups_per_step,
            useful=useful,
            coming=intake.coming(),
            held_up=intake.held_up(),
            share=signal_share(intake.files, before=self._state.signal_share),
            max_rounds=max_rounds,
            lingered=lingered,
        )

    async def _look(self, intake: Intake) -> bool:
        """Takes in what is new; whether that went well."""
        try:
            await intake.look()
        except MusterError as error:
            if not error.retryable or isinstance(error, NotWritten):
                raise
            _log.warning("rollouts-not-listed", step=intake.step, why=error.detail)
            return False
        return True

    async def _learn(self, batch: Batch, files: Sequence[SeenFile], times: StepTimes) -> Lesson:
        """Learns a batch, while what is there of the next step is fetched; the state is that after it."""
        since = time.perf_counter()
        groups = groups_at(files, batch.groups)
        ahead = asyncio.create_task(self._look_ahead(batch.step + 1))
        try:
            if batch.parts:
                lesson = await asyncio.to_thread(self._parts.student.finish)
            else:
                lesson = await asyncio.to_thread(learn_batch, self._parts.student, groups, parts=(), step=batch.step)
        finally:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)
        self._state = after_batch(self._state, files, learned=bool(groups))
        times.learn += time.perf_counter() - since
        if self._state.empty_steps > self._settings.most_empty_steps:
            raise NothingToLearn(f"the last {self._state.empty_steps} steps had no group whose rewards differ")
        return lesson

    async def _look_ahead(self, step: int) -> None:
        """Fetches what is accepted of the next step already; any trouble shows again when it is gathered."""
        try:
            await self._intake(step).look()
        except MusterError as error:
            _log.info("not-looked-ahead", step=step, why=error.detail)

    # Versions and state

    async def _take_up(self) -> None:
        """Brings folder, ledger and orchestrator to where the state is."""
        publisher = self._parts.publisher
        if self._is_published(self._state.step):
            await publisher.write(self._state.step, self._writer(self._state.step))
        self._version = publisher.newest
        await publisher.check_ledger(self._version)
        view = await self._parts.desk.view()
        self._knobs.check_window(view.async_level)
        await self._publish(self._version)
        self._parts.progress.tell(
            "started",
            step=self._state.step,
            steps=self._settings.steps,
            version=self._version,
            seed=self._settings.seed,
        )
        self._evaluate(self._version, first=True)

    async def _write_and_publish(self, times: StepTimes) -> None:
        """Writes the version that the state is, if it is one, and begins to publish it and to save the state."""
        since = time.perf_counter()
        version = self._state.step
        if self._is_published(version):
            await self._finished(self._publishing)
            await self._parts.publisher.write(version, self._writer(version))
            self._version = version
            self._publishing = asyncio.create_task(self._publish(version))
            self._evaluate(version)
        await self._save()
        times.write = time.perf_counter() - since

    def _is_published(self, version: int) -> bool:
        return self._knobs.publishes(version) or version >= self._settings.steps

    def _writer(self, version: int) -> Callable[[Path], None]:
        settings, eligible = self._settings, self._parts.candidates
        if eligible is not None:
            eligible = self._state.pools.eligible(eligible, settings.pools, version=version, seed=settings.seed)
        return lambda folder: self._parts.student.write(folder, eligible=eligible)

    async def _publish(self, version: int) -> None:
        since = time.perf_counter()
        await self._parts.publisher.announce(version)
        announced = time.perf_counter()
        view = await self._parts.desk.view()
        await self._open(max(self._state.step, version), view, version=version)
        await self._parts.publisher.tell(version)
        told = time.perf_counter()
        await asyncio.to_thread(self._parts.publisher.tidy, version)
        self._parts.progress.tell(
            "published",
            version=version,
            digest=self._parts.publisher.digest(version),
            seconds={"announce": announced - since, "tell": told - announced},
        )

    async def _open(self, step: int, view: RunView, *, version: int | None = None) -> None:
        told = version if version is not None else (view.checkpoint.version if view.checkpoint else self._version)
        last = self._knobs.last_step(version=told, async_level=view.async_level)
        await self._parts.desk.open(
            step,
            last,
            view,
            groups=first_demand(self._settings.groups_per_step, self._state.signal_share),
            most_waiting=self._settings.most_waiting_groups or self._settings.groups_per_step,
            ahead=self._knobs.reload_every,
        )

    async def _save(self) -> None:
        """Begins to write the state, when the one before it is on the disk."""
        if self._state.step % self._settings.state_every and self._state.step < self._settings.steps:
            return
        await self._finished(self._saving)
        state, snapshot = self._state, self._parts.student.snapshot()

        def save() -> None:
            save_state(self._settings.state, state=state, snapshot=snapshot, about=self._parts.about)
            for folder in step_folder(self._settings.state, 0).parent.glob("*"):
                if folder.name.isdigit() and int(folder.name) < state.step:
                    shutil.rmtree(folder, ignore_errors=True)

        self._saving = asyncio.create_task(asyncio.to_thread(save))

    async def _settle(self) -> None:
        """Ends what is under way."""
        await self._finished(self._saving)
        self._saving = None
        if self._publishing is not None:
            if self._stop.is_set():
                await asyncio.wait({self._publishing}, timeout=LAST_PATIENCE.total_seconds())
                if not self._publishing.done():
                    _log.warning("not-published", version=self._version, hint="the same command goes on with it")
                    return
            await self._finished(self._publishing)
        if self._parts.evaluation is not None and not self._stop.is_set():
            await self._parts.evaluation.drain()
        done = self._state.step >= self._settings.steps
        self._parts.progress.tell("stopped", step=self._state.step, version=self._version, done=done)

    async def _finished(self, task: asyncio.Task[None] | None) -> None:
        if task is not None:
            await task
            if task is self._publishing:
                self._publishing = None

    def _raise_what_failed(self) -> None:
        self._parts.lease.check()
        for task in (self._publishing, self._saving):
            if task is not None and task.done():
                task.result()
        if self._publishing is not None and self._publishing.done():
            self._publishing = None

    # Around it

    def _streamed(self, step: int) -> StreamedStep | None:
        if not self._knobs.stream:
            return None
        return StreamedStep(self._parts.student, step=step, most=self._settings.most_groups)

    def _intake(self, step: int) -> Intake:
        if step not in self._intakes:
            self._intakes[step] = self._parts.intake(step)
        return self._intakes[step]

    def _evaluate(self, version: int, *, first: bool = False) -> None:
        every = self._settings.evaluate_every
        if self._parts.evaluation is None or not every:
            return
        if first or version % every == 0 or version >= self._settings.steps:
            self._parts.evaluation.ask(version, self._parts.publisher.folder(version))

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """What the work gives; None if it is told to stop first, for work that may be left at any point."""
        running, stopped = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return running.result() if running.done() else None
        finally:
            for task in (running, stopped):
                task.cancel()
            await asyncio.gather(running, stopped, return_exceptions=True)


def after_batch(state: RunState, files: Sequence[SeenFile], *, learned: bool) -> RunState:
    """The state after a step; what the student knows stands beside it."""
    return replace(
        state,
        step=state.step + 1,
        pools=state.pools.after(solved_shares(files)),
        signal_share=signal_share(files, before=state.signal_share),
        empty_steps=0 if learned else state.empty_steps + 1,
    )


def first_demand(groups: int, share: float) -> int:
    """How many groups are asked for at first, so that a batch with signal comes of it in five steps of six.

    One standard deviation more than is expected to do: what is missing in the end costs the whole way once more.
    """
    return math.ceil((groups + math.sqrt(groups * (1 - share))) / max(share, 0.001))
