"""Waiting for a step's rollouts: what is accepted is taken in, more is asked for, and a full step is closed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import structlog

from protocol.errors import MusterError
from protocol.wire.runs import RunView
from trainer.errors import NotWritten
from trainer.run.asynchrony import DemandDecision, Move, StepStanding, next_move
from trainer.run.batches import signal_share
from trainer.run.demand import standings
from trainer.run.dependencies import RunParts, Where
from trainer.run.intake import RolloutIntake
from trainer.run.reporting import StepTimes
from trainer.run.step_window import open_window
from trainer.run.streaming import StreamedStep
from trainer.run.versions import VersionPublisher

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """A step that wants nothing more.

    Args:
        intake: Its files.
        standing: How it stood when it was closed.
        streamed: Its groups as they were learned already; None if they were not.
    """

    intake: RolloutIntake
    standing: StepStanding
    streamed: StreamedStep | None


class RolloutCollector:
    """Fills the steps of one run.

    Args:
        parts: Of the run.
        versions: Looked after meanwhile.
        where: Where the run is.
        stop: Ends it between two looks.
    """

    def __init__(self, parts: RunParts, versions: VersionPublisher, where: Where, *, stop: asyncio.Event) -> None:
        self._parts = parts
        self._settings = parts.settings
        self._versions = versions
        self._where = where
        self._stop = stop
        self._intakes: dict[int, RolloutIntake] = {}

    async def gather(self, step: int, times: StepTimes) -> Gathered | None:
        """Waits until the step's batch is as full as it gets, and closes the step; None if it is told to stop.

        Raises:
            AnotherTrainer: Somebody else trains this run.
            MusterError: Something was down for too long, or failed on its way out.
        """
        intake, streamed = self._intake(step), self._streamed(step)
        full_since: float | None = None
        looked_at = -1  # accepted groups at the last listing, which costs everybody: no more of them than has to be
        while not self._stop.is_set():  # looked at too, because libraries swallow cancellations
            since = time.perf_counter()
            view = await self._ask(step)
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
            if self._useful(intake) >= self._settings.groups_per_step and full_since is None:
                full_since = time.perf_counter()
            lingered = full_since is not None and time.perf_counter() - full_since >= self._settings.linger_s
            decided = self._decide(now, intake, lingered=lingered, max_rounds=view.max_rounds)
            if decided.move is Move.FULL and not news:
                looked_at = -1  # a verdict may have been turned over and another file accepted: look once more
                continue
            if decided.move is Move.FULL:
                await self._parts.desk.close(step)
                return Gathered(intake=intake, standing=now, streamed=streamed)
            if decided.move is Move.RAISE:
                await self._parts.desk.raise_to(step, decided.groups)
            since = time.perf_counter()
            await self._parts.clock.sleep(self._settings.poll)
            times.wait += time.perf_counter() - since
        return None

    async def look_ahead(self, step: int) -> None:
        """Fetches what is accepted of a later step already; any trouble shows again when it is gathered."""
        try:
            await self._intake(step).look()
        except MusterError as error:
            _log.info("not-looked-ahead", step=step, why=error.detail)

    def forget(self, step: int) -> None:
        """Lets go of a step that is learned."""
        self._intakes.pop(step, None)

    async def _ask(self, step: int) -> RunView:
        """Publishes the present demand and returns the state of the run."""
        self._parts.lease.check()
        self._versions.check()
        view = await self._parts.desk.view()
        self._versions.tell_again(view)
        version = view.checkpoint.version if view.checkpoint else self._versions.newest
        await open_window(self._parts, self._where(), step, view, version=version)
        return view

    async def _look(self, intake: RolloutIntake) -> bool:
        """Takes in what is new; whether that went well."""
        try:
            await intake.look()
        except MusterError as error:
            if not error.retryable or isinstance(error, NotWritten):
                raise
            _log.warning("rollouts-not-listed", step=intake.step, why=error.detail)
            return False
        return True

    def _decide(self, now: StepStanding, intake: RolloutIntake, *, lingered: bool, max_rounds: int) -> DemandDecision:
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
            self._intakes[step] = self._parts.intake(step)
        return self._intakes[step]

    def _streamed(self, step: int) -> StreamedStep | None:
        if not self._settings.knobs.stream:
            return None
        student, in_thread = self._parts.student, self._parts.student_thread
        return StreamedStep(student, in_thread, step=step, most=self._settings.most_groups)
