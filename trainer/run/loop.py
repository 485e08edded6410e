"""The training loop: gathers a step's rollouts, journals and trains on them, then writes and publishes the version.

    gather ──▶ close ──▶ journal ──▶ learn ──▶ write ──▶ announce ──▶ tell
      ▲                                          │          (while the next step is gathered)
      └──────────────── next step ◀──────────────┘──▶ state on the disk (in a thread)

After a kill at any point the same command resumes the run: journalled batches are repeated from the saved files,
and each later stage checks whether it was already done (decision 0030).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import structlog

from protocol.identity.signing import unix_ms
from trainer.errors import NothingToLearn
from trainer.files import sync_names
from trainer.learning.groups import TrainingGroup
from trainer.learning.metrics import LearnedStep
from trainer.run.batches import SeenFile, after_batch, choose, groups_at
from trainer.run.collector import Gathered, RolloutCollector
from trainer.run.dependencies import Dependencies
from trainer.run.intake import step_folder
from trainer.run.journal import StepBatch
from trainer.run.reporting import IdleShare, StepDone, StepTimes, step_facts
from trainer.run.state import TrainerState
from trainer.run.versions import VersionPublisher

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class TrainingRun:
    """Executes a training run.

    Args:
        parts: Dependencies of the run.
        state: State of the run; the learner has completed all steps below `state.step`.
        stop: Ends the run at the next safe point.
    """

    def __init__(self, parts: Dependencies, state: TrainerState, *, stop: asyncio.Event) -> None:
        self._parts = parts
        self._settings = parts.settings
        self._state = state
        self._stop = stop
        self._versions = VersionPublisher(parts, lambda: self._state)
        self._gathering = RolloutCollector(parts, self._versions, lambda: self._state, stop=stop)
        self._idle = IdleShare()

    @property
    def state(self) -> TrainerState:
        """Current state of the run."""
        return self._state

    async def run(self) -> None:
        """Trains the remaining steps, or until `stop` is set.

        Raises:
            AnotherTrainer: Another trainer works on this run.
            NothingToLearn: Too many steps in a row had no group with signal.
            TrainingDiverged: Loss or gradient was NaN or infinite too often.
            NotWritten: The disk is full or refuses the write.
            MusterError: A service was down for longer than the settings allow.
        """
        try:
            await self._unless_stopped(self._take_up())
            while self._state.step < self._settings.steps and not self._stop.is_set():
                if not await self._step():
                    break
            await self._settle()
        finally:
            await self._versions.aclose()

    async def _step(self) -> bool:
        """Gathers, trains and writes one step; returns False if `stop` was set before the batch was complete."""
        step, times, began = self._state.step, StepTimes(), time.perf_counter()
        gathered = await self._unless_stopped(self._gathering.gather(step, times))
        if gathered is None:
            return False
        done = await self._learn(gathered, times)
        if await self._versions.write(times):
            self._evaluate(self._versions.newest)
        self._gathering.forget(step)
        times.total = time.perf_counter() - began
        facts = step_facts(done, times, state=self._state, pools=self._settings.pools)
        idle = self._idle.after(times)
        self._parts.progress.tell("step", **facts, idle_share=idle)
        _log.info("step-learned", step=step, reward=facts["reward"], seconds=round(times.total, 2), idle=idle)
        return True

    async def _learn(self, gathered: Gathered, times: StepTimes) -> StepDone:
        """Journals the gathered batch, trains on it and updates the state."""
        step, files = self._state.step, gathered.intake.files
        parts: tuple[int, ...] = ()
        if gathered.streamed is None:
            chosen = choose(files, step=step, most=self._settings.most_groups, seed=self._settings.seed)
        else:
            chosen, parts = gathered.streamed.close(files)
        batch = StepBatch(
            step=step,
            at_ms=unix_ms(self._parts.clock.now()),
            files=tuple(file.entry for file in files),
            groups=chosen.places,
            parts=parts,
        )
        await asyncio.to_thread(self._record, batch)
        learned = await self._learn_batch(batch, files, times)
        return StepDone(
            batch=batch,
            files=files,
            chosen=chosen,
            dropped=gathered.intake.dropped,
            standing=gathered.standing,
            learned=learned,
        )

    def _record(self, batch: StepBatch) -> None:
        """Syncs the files' directory entries (their content is synced already) and journals the batch."""
        state = self._settings.state
        sync_names(step_folder(state, batch.step), within=state)
        self._parts.journal.append(batch)

    async def _learn_batch(self, batch: StepBatch, files: Sequence[SeenFile], times: StepTimes) -> LearnedStep | None:
        """Trains on a batch while files of the next step are fetched."""
        groups = groups_at(files, batch.groups)
        ahead = asyncio.create_task(self._gathering.look_ahead(batch.step + 1))
        try:
            learned = await self._step_on(groups, batch, times) if groups else None
        finally:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)
        self._state = after_batch(self._state, files, learned=bool(groups))
        if self._state.empty_steps > self._settings.most_empty_steps:
            raise NothingToLearn(f"the last {self._state.empty_steps} steps had no group whose rewards differ")
        return learned

    async def _step_on(self, groups: Sequence[TrainingGroup], batch: StepBatch, times: StepTimes) -> LearnedStep:
        """Adds a batch's gradients, unless they were streamed, and takes the optimiser step.

        A save in progress reads the learner's own tensors, so the optimiser step, which changes them, waits for it.
        """
        learner, in_thread, since = self._parts.learner, self._parts.learner_thread, time.perf_counter()
        if not batch.parts:
            await in_thread(learner.begin, step=batch.step)
            await in_thread(learner.add, groups)
        added = time.perf_counter()
        await self._versions.saved()
        saved = time.perf_counter()
        learned = await in_thread(learner.finish)
        times.learn += added - since + time.perf_counter() - saved
        times.write += saved - added
        return learned

    async def _take_up(self) -> None:
        """Brings versions, ledger and orchestrator up to the restored state."""
        await self._versions.take_up()
        version = self._versions.newest
        self._parts.progress.tell(
            "started",
            step=self._state.step,
            steps=self._settings.steps,
            version=version,
            seed=self._settings.seed,
        )
        self._evaluate(version, first=True)

    async def _settle(self) -> None:
        """Finishes publishing, saving and evaluation."""
        if not await self._versions.settle(stopped=self._stop.is_set()):
            return
        if self._parts.evaluation is not None and not self._stop.is_set():
            await self._parts.evaluation.drain()
        done = self._state.step >= self._settings.steps
        self._parts.progress.tell("stopped", step=self._state.step, version=self._versions.newest, done=done)

    def _evaluate(self, version: int, *, first: bool = False) -> None:
        every = self._settings.evaluate_every
        if self._parts.evaluation is None or not every:
            return
        if first or version % every == 0 or version >= self._settings.steps:
            self._parts.evaluation.ask(version, self._parts.publisher.folder(version))

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Awaits work that may be cancelled at any point; returns None if `stop` is set first."""
        running, stopped = asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return running.result() if running.done() else None
        finally:
            for task in (running, stopped):
                task.cancel()
            await asyncio.gather(running, stopped, return_exceptions=True)
