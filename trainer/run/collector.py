"""Collects a step's rollouts: fetches accepted files, raises demand if needed and closes the step when it is full."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from protocol.errors import MusterError
from protocol.runtime.logs import get_logger
from protocol.wire.runs import RunView
from trainer.errors import NotWritten
from trainer.run.dependencies import Dependencies, Where
from trainer.run.gathering.asynchrony import DemandDecision, Move, StepProgress, next_move
from trainer.run.gathering.batches import signal_share
from trainer.run.gathering.intake import RolloutIntake
from trainer.run.learner.streaming import StreamedStep
from trainer.run.orchestrator.demand import step_progress
from trainer.run.reporting import StepTimes
from trainer.run.versions import VersionPublisher

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """A closed step.

    Args:
        intake: Intake with the step's files.
        progress: State of the step when it was closed.
        streamed: Gradients already computed from the step's groups; None without streaming.
    """

    intake: RolloutIntake
    progress: StepProgress
    streamed: StreamedStep | None


class RolloutCollector:
    """Collects the rollouts of a run's steps.

    Args:
        dependencies: Dependencies of the run.
        versions: Publisher of versions; `gather` raises its errors.
        where: Returns the state of the run.
        stop: Event that makes `gather` return at its next poll.
    """

    def __init__(
        self, dependencies: Dependencies, versions: VersionPublisher, where: Where, *, stop: asyncio.Event
    ) -> None:
        self._dependencies = dependencies
        self._settings = dependencies.settings
        self._versions = versions
        self._where = where
        self._stop = stop
        self._intakes: dict[int, RolloutIntake] = {}

    async def gather(self, step: int, times: StepTimes) -> Gathered | None:
        """Waits until the step's batch is complete and closes the step; returns None if `stop` was set.

        Raises:
            AnotherTrainer: Another trainer works on this run.
            MusterError: A service was down for too long, or publishing failed.
        """
        intake, streamed = self._intake(step), self._streamed(step)
        full_since: float | None = None
        looked_at = -1  # number of accepted groups at the last listing; a new listing is needed only after a change
        while not self._stop.is_set():  # checked in addition to cancellation, which libraries may swallow
            since = time.perf_counter()
            view = await self._ask(step)
            times.wait += time.perf_counter() - since
            now = step_progress(view).get(step, StepProgress())
            news = now.accepted != looked_at or intake.has_unavailable
            if news:
                since = time.perf_counter()
                looked_at = now.accepted if await self._look(intake) else -1
                times.read += time.perf_counter() - since
            if streamed is not None:
                since = time.perf_counter()
                await streamed.feed(intake.files)
                times.learn += time.perf_counter() - since
            if self._useful(intake) >= self._settings.groups_per_step and full_since is None:
                full_since = self._dependencies.clock.monotonic()
            lingered = (
                full_since is not None and self._dependencies.clock.monotonic() - full_since >= self._settings.linger_s
            )
            decided = self._decide(now, intake, lingered=lingered, max_rounds=view.max_rounds)
            if decided.move is Move.FULL and not news:
                looked_at = -1  # list once more: a verdict may have been overturned
                continue
            if decided.move is Move.FULL:
                await self._dependencies.demand.close(step)
                return Gathered(intake=intake, progress=now, streamed=streamed)
            if decided.move is Move.RAISE:
                await self._dependencies.demand.raise_to(step, decided.groups)
            since = time.perf_counter()
            await self._dependencies.clock.sleep(self._settings.poll)
            times.wait += time.perf_counter() - since
        return None

    async def look_ahead(self, step: int) -> None:
        """Fetches accepted files of a later step; errors are only logged, because `gather` raises them again."""
        if step >= self._dependencies.settings.steps:
            return
        try:
            await self._intake(step).look()
        except MusterError as error:
            _log.info("not-looked-ahead", step=step, why=error.detail)

    def forget(self, step: int) -> None:
        """Drops the intake of a finished step from memory."""
        self._intakes.pop(step, None)

    async def _ask(self, step: int) -> RunView:
        """Returns the orchestrator's view of the run after updating the demand."""
        self._dependencies.lease.check()
        self._versions.check()
        view = await self._dependencies.demand.view()
        self._versions.publish_again(view)
        version = view.checkpoint.version if view.checkpoint else self._versions.newest
        await self._dependencies.demand.open_window(
            self._settings, view, step=step, version=version, signal_share=self._where().signal_share
        )
        return view

    async def _look(self, intake: RolloutIntake) -> bool:
        """Fetches new files; returns whether they could be listed."""
        try:
            await intake.look()
        except MusterError as error:
            if not error.retryable or isinstance(error, NotWritten):
                raise
            _log.warning("rollouts-not-listed", step=intake.step, why=error.detail)
            return False
        return True

    def _decide(self, now: StepProgress, intake: RolloutIntake, *, lingered: bool, max_rounds: int) -> DemandDecision:
        return next_move(
            now,
            wanted=self._settings.groups_per_step,
            useful=self._useful(intake),
            coming=intake.coming(),
            held_up=intake.held_up(),
            share=signal_share(intake.files, before=self._where().signal_share),
            max_rounds=max_rounds,
            lingered=lingered,
        )

    def _useful(self, intake: RolloutIntake) -> int:
        return sum(file.useful for file in intake.files)

    def _intake(self, step: int) -> RolloutIntake:
        if step not in self._intakes:
            self._intakes[step] = self._dependencies.intake(step)
        return self._intakes[step]

    def _streamed(self, step: int) -> StreamedStep | None:
        if not self._settings.knobs.stream:
            return None
        learner, in_thread = self._dependencies.learner, self._dependencies.learner_thread
        return StreamedStep(learner, in_thread, step=step, most=self._settings.most_groups)
