"""Publishes versions and saves the state in the background while the run continues.

At any time, at most one version is being published and one state is being saved. If one of them fails, the next `check`
raises the error.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta

from protocol.identifiers import Digest
from protocol.runtime.logs import get_logger
from protocol.runtime.threads import run_in_thread
from protocol.runtime.tracing import Tracer
from protocol.wire.runs import RunView
from trainer.run.dependencies import Dependencies, Where
from trainer.run.gathering.intake import remove_files
from trainer.run.publishing.folders import Writer
from trainer.run.reporting import StepTimes
from trainer.run.state.trainer_state import save_state

_log = get_logger(__name__)
_tracer = Tracer(__name__)

STOP_TIMEOUT = timedelta(seconds=30)
"""Maximum time for which a stopping trainer waits for an announcement in progress."""


class VersionPublisher:
    """Publishes versions and saves states of a run.

    Args:
        dependencies: Dependencies of the run.
        where: Returns the state of the run.
    """

    def __init__(self, dependencies: Dependencies, where: Where) -> None:
        self._dependencies = dependencies
        self._settings = dependencies.settings
        self._where = where
        self._publishing: asyncio.Task[None] | None = None
        self._saving: asyncio.Task[None] | None = None
        self._works: list[Digest] = []
        """Keys of the work that was trained on since the newest version, for its traces."""
        self.newest = 0
        """Newest written version."""

    async def catch_up(self) -> None:
        """Brings folder, ledger and orchestrator up to the restored state.

        Raises:
            AnotherTrainer: The ledger names a version that this trainer did not make.
        """
        folders, announcer, step = self._dependencies.folders, self._dependencies.announcer, self._where().step
        # The journal may name a version of this step although the current settings publish none at this step: the user
        # may have changed `reload_every` or `steps`.
        if self._is_published(step) or folders.digest(step) is not None:
            await folders.write(step, self._writer(step))
        self.newest = folders.newest
        await announcer.check_ledger(self.newest)
        view = await self._dependencies.demand.view()
        self._settings.knobs.check_window(view.async_level)
        await self._publish(self.newest)

    def learned_from(self, works: Sequence[Digest]) -> None:
        """Adds work whose traces the next version belongs to.

        Args:
            works: Work keys.
        """
        self._works += works

    async def write(self, times: StepTimes) -> bool:
        """Writes the current state as a version, if one is due at this step, and starts publishing and saving.

        Returns:
            Whether a version was written.
        """
        since = time.perf_counter()
        version = self._where().step
        published = self._is_published(version)
        if published:
            await self._published()
            await self._dependencies.folders.write(version, self._writer(version))
            self.newest = version
            works, self._works = self._works, []
            self._publishing = asyncio.create_task(self._publish(version, works))
        await self._save()
        times.write += time.perf_counter() - since
        return published

    async def saved(self) -> None:
        """Waits until no save is in progress.

        Raises:
            NotWritten: The disk is full or refuses the write.
        """
        if self._saving is not None:
            await asyncio.shield(self._saving)  # the waiting task may be cancelled, the writing thread can't be
            self._saving = None

    def publish_again(self, view: RunView) -> None:
        """Publishes the newest version again if the orchestrator leases no slots for it.

        This happens when the orchestrator has lost its state.
        """
        if not self._dependencies.announcer.is_adopted(view, self.newest) and self._publishing is None:
            self._dependencies.demand.forget()
            self._publishing = asyncio.create_task(self._publish(self.newest))

    def check(self) -> None:
        """Raises the error of publishing or saving in the background, if one of them has failed.

        Raises:
            MusterError: Publishing or saving failed.
        """
        for task in (self._publishing, self._saving):
            if task is not None and task.done():
                task.result()
        if self._publishing is not None and self._publishing.done():
            self._publishing = None

    async def settle(self, *, stopped: bool) -> bool:
        """Waits for publishing and saving; returns False if a stopping run left an announcement unfinished."""
        await self.saved()
        if stopped and self._publishing is not None:
            await asyncio.wait({self._publishing}, timeout=STOP_TIMEOUT.total_seconds())
            if not self._publishing.done():
                _log.warning("not-published", version=self.newest, hint="run the same command to publish it")
                return False
        await self._published()
        return True

    async def aclose(self) -> None:
        """Cancels an announcement in progress, which the next start repeats, and waits for a save in progress.

        This process must wait for the save, because its thread can't be cancelled, and the next trainer process writes
        the same file as soon as the lock is free.
        """
        if self._publishing is not None:
            self._publishing.cancel()
        left = [task for task in (self._publishing, self._saving) if task is not None]
        await asyncio.gather(*left, return_exceptions=True)

    def _is_published(self, version: int) -> bool:
        return self._settings.knobs.publishes(version) or version >= self._settings.steps

    def _writer(self, version: int) -> Writer:
        settings, eligible = self._settings, self._dependencies.candidates
        if eligible is not None:
            eligible = self._where().pools.eligible(eligible, settings.pools, version=version, seed=settings.seed)
        learner = self._dependencies.learner
        return lambda folder: self._dependencies.learner_thread(learner.write, folder, eligible=eligible)

    async def _published(self) -> None:
        if self._publishing is not None:
            await self._publishing
            self._publishing = None

    async def _publish(self, version: int, works: Sequence[Digest] = ()) -> None:
        since = time.perf_counter()
        with _tracer.span("version", *works, version=version):
            await self._dependencies.announcer.announce(version)
            announced = time.perf_counter()
            view, state = await self._dependencies.demand.view(), self._where()
            await self._dependencies.demand.open_window(
                self._settings, view, step=max(state.step, version), version=version, signal_share=state.signal_share
            )
            await self._dependencies.announcer.publish_to_orchestrator(version)
        sent = time.perf_counter()
        evaluation = self._dependencies.evaluation
        over = await self._dependencies.folders.tidy(version, used=() if evaluation is None else evaluation.used)
        self._dependencies.progress.record(
            "published",
            version=version,
            digest=self._dependencies.folders.digest(version),
            seconds={"announce": announced - since, "tell": sent - announced},
            over_budget_bytes=over,
        )

    async def _save(self) -> None:
        """Starts to save the state; the next optimiser step waits for it (`saved`)."""
        state, folder = self._where(), self._settings.state
        if state.step % self._settings.state_every and state.step < self._settings.steps:
            return
        await self.saved()
        learner_state = await self._dependencies.learner_thread(self._dependencies.learner.state)

        def save() -> None:
            save_state(folder, state=state, learner_state=learner_state, identity=self._dependencies.identity)
            remove_files(folder, below=state.step)

        self._saving = asyncio.create_task(run_in_thread(save))
