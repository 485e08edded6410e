"""The training loop: gathers a step's rollouts, journals and trains on them, then writes and publishes the version.

    gather ──▶ close ──▶ journal ──▶ learn ──▶ write ──▶ announce ──▶ tell the orchestrator
      ▲                                          │          (while the next step is gathered)
      └──────────────── next step ◀──────────────┘──▶ state on the disk (in a thread)

If the process is killed at any point, the same command resumes the run: it trains again on the journalled batches, from
the saved files, and each later stage checks whether it was already done (decision 0030).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from protocol.identity.signing import unix_ms
from protocol.runtime.logs import get_logger
from protocol.runtime.threads import run_in_thread
from protocol.runtime.tracing import Tracer
from protocol.runtime.waiting import cancel_all, run_unless
from trainer.errors import NothingToLearn
from trainer.learning.groups import TrainingGroup
from trainer.learning.metrics import LearnedStep
from trainer.run.collector import Gathered, RolloutCollector
from trainer.run.curves import SAMPLED_GROUPS, ShownStep
from trainer.run.dependencies import Dependencies
from trainer.run.gathering.batches import SeenFile, after_batch, choose, groups_at
from trainer.run.gathering.intake import step_folder
from trainer.run.reporting import IdleShare, StepDone, StepTimes, step_facts
from trainer.run.state.journal import StepBatch
from trainer.run.state.trainer_state import TrainerState
from trainer.run.versions import VersionPublisher
from trainer.saving.files import sync_names

_log = get_logger(__name__)
_tracer = Tracer(__name__)


class TrainingRun:
    """Executes a training run.

    Args:
        dependencies: Dependencies of the run.
        state: State of the run; the learner has completed all steps below `state.step`.
        stop: Event that ends the run at the next point from which it can resume.
    """

    def __init__(self, dependencies: Dependencies, state: TrainerState, *, stop: asyncio.Event) -> None:
        self._dependencies = dependencies
        self._settings = dependencies.settings
        self._state = state
        self._stop = stop
        self._versions = VersionPublisher(dependencies, lambda: self._state)
        self._collector = RolloutCollector(dependencies, self._versions, lambda: self._state, stop=stop)
        self._idle = IdleShare()

    @property
    def state(self) -> TrainerState:
        """Current state of the run."""
        return self._state

    async def run(self) -> None:
        """Trains the remaining steps, or until `stop` is set.

        Raises:
            AnotherTrainer: Another trainer works on this run.
            NothingToLearn: Too many steps in a row had no group whose rewards differ.
            TrainingDiverged: Loss or gradient was NaN, infinite or too large in too many steps in a row.
            NotWritten: The disk is full or refuses the write.
            MusterError: A service was down for longer than the settings allow.
        """
        try:
            await run_unless(self._stop, self._catch_up())
            while self._state.step < self._settings.steps and not self._stop.is_set():
                if not await self._step():
                    break
            await self._finish_publishing()
        finally:
            await self._versions.aclose()

    async def _step(self) -> bool:
        """Gathers rollouts, trains one step, and writes a version if one is due.

        Returns False if `stop` was set before the batch was complete.
        """
        step, times, began = self._state.step, StepTimes(), time.perf_counter()
        since = self._dependencies.clock.now()
        gathered = await run_unless(self._stop, self._collector.gather(step, times))
        if gathered is None:
            return False
        _tracer.record("gathering", *(file.entry.key for file in gathered.intake.files), since=since, step=step)
        done = await self._learn(gathered, times)
        if await self._versions.write(times):
            self._evaluate(self._versions.newest)
        self._collector.forget(step)
        times.total = time.perf_counter() - began
        facts = step_facts(done, times, state=self._state, pools=self._settings.pools, parts=self._dependencies.parts)
        idle = self._idle.after(times)
        self._dependencies.progress.record("step", **facts, idle_share=idle)
        self._show(done, facts)
        _log.info("step-learned", step=step, reward=facts["reward"], seconds=round(times.total, 2), idle=idle)
        return True

    def _show(self, done: StepDone, facts: Mapping[str, Any]) -> None:
        """Sends the step's metrics and a few of its rollouts to the pool's page, in the background."""
        groups = groups_at(done.files, done.chosen.places)
        groups = groups or [seen.group for file in done.files for seen in file.groups if seen.group is not None]
        at_ms = unix_ms(self._dependencies.clock.now())
        self._dependencies.curves.show(ShownStep(facts=facts, groups=groups[:SAMPLED_GROUPS], at_ms=at_ms))

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
            at_ms=unix_ms(self._dependencies.clock.now()),
            files=tuple(file.entry for file in files),
            groups=chosen.places,
            parts=parts,
        )
        await run_in_thread(self._record, batch)
        works = sorted({files[number].entry.key for number, _ in batch.groups})
        with _tracer.span("training", *works, step=step):
            learned = await self._learn_batch(batch, files, times)
        self._versions.learned_from(works)
        return StepDone(
            batch=batch,
            files=files,
            chosen=chosen,
            dropped=gathered.intake.dropped,
            progress=gathered.progress,
            learned=learned,
        )

    def _record(self, batch: StepBatch) -> None:
        """Syncs the files' directory entries (their content is synced already) and journals the batch."""
        state = self._settings.state
        sync_names(step_folder(state, batch.step), within=state)
        self._dependencies.journal.append(batch)

    async def _learn_batch(self, batch: StepBatch, files: Sequence[SeenFile], times: StepTimes) -> LearnedStep | None:
        """Trains on a batch while files of the next step are fetched."""
        groups = groups_at(files, batch.groups)
        ahead = asyncio.create_task(self._collector.look_ahead(batch.step + 1))
        try:
            learned = await self._step_on(groups, batch, times) if groups else None
        finally:
            await cancel_all([ahead])
        self._state = after_batch(self._state, files, learned=bool(groups))
        if self._state.empty_steps > self._settings.most_empty_steps:
            raise NothingToLearn(f"the last {self._state.empty_steps} steps had no group whose rewards differ")
        return learned

    async def _step_on(self, groups: Sequence[TrainingGroup], batch: StepBatch, times: StepTimes) -> LearnedStep:
        """Adds a batch's gradients, unless they were streamed, and takes the optimiser step.

        The optimiser step changes tensors that a save in progress reads, so it waits until the save is finished.
        """
        learner, in_thread, since = self._dependencies.learner, self._dependencies.learner_thread, time.perf_counter()
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

    async def _catch_up(self) -> None:
        """Brings versions, ledger and orchestrator up to the restored state."""
        await self._versions.catch_up()
        version = self._versions.newest
        self._dependencies.progress.record(
            "started",
            step=self._state.step,
            steps=self._settings.steps,
            version=version,
            seed=self._settings.seed,
        )
        self._evaluate(version, first=True)

    async def _finish_publishing(self) -> None:
        """Waits for publishing, saving and evaluation, and records the end of the run."""
        if not await self._versions.settle(stopped=self._stop.is_set()):
            return
        if self._dependencies.evaluation is not None and not self._stop.is_set():
            await self._dependencies.evaluation.drain()
        await self._dependencies.curves.drain()
        done = self._state.step >= self._settings.steps
        self._dependencies.progress.record("stopped", step=self._state.step, version=self._versions.newest, done=done)

    def _evaluate(self, version: int, *, first: bool = False) -> None:
        every = self._settings.evaluate_every
        if self._dependencies.evaluation is None or not every:
            return
        if first or version % every == 0 or version >= self._settings.steps:
            self._dependencies.evaluation.ask(version, self._dependencies.folders.folder(version))
