"""Loop that frees disk space: removes images and policy versions that no task has used for a long time."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.randomness import token_hex
from protocol.runtime.threads import run_in_thread
from worker.runtime.interface import Runtime, RuntimeDown
from worker.state import StateDirectory, remove_tree
from worker.tasks.reconciler import Reconciler

EVERY = timedelta(hours=1)
"""Interval of the loop."""
_REMOVED = ".removed-"
"""Prefix of folders that are being removed; a crash may leave one, which the next round removes."""
_log = get_logger(__name__)


class Housekeeping:
    """Removes what earlier tasks left on this machine.

    Args:
        runtime: Runtime with the images.
        reconciler: Knows the present task.
        state: The worker's state directory.
        unused_for: Time without use after which images and versions are removed; zero: they are never removed.
        clock: Clock for the age of versions.
    """

    def __init__(
        self, runtime: Runtime, reconciler: Reconciler, state: StateDirectory, *, unused_for: timedelta, clock: Clock
    ) -> None:
        self._runtime = runtime
        self._reconciler = reconciler
        self._state = state
        self._unused_for = unused_for
        self._clock = clock

    async def round(self) -> None:
        """Removes unused images, and unused versions while the worker has no task.

        Nothing is removed before the orchestrator's first answer, because until then the present task is not known.
        While a task runs, it removes old versions itself.
        """
        named = self._reconciler.named_images()
        if not self._unused_for or named is None:
            return
        try:
            await self._runtime.remove_unused_images(named=named, unused_for=self._unused_for)
            idle = not named and not await self._runtime.containers()
        except RuntimeDown:
            return  # the reconciler reports it
        if idle:
            before = (self._clock.now() - self._unused_for).timestamp()
            for removed in await run_in_thread(_remove_versions, self._state.shared / "checkpoints", before):
                _log.info("version-removed", version=removed)


def _remove_versions(versions: Path, before: float) -> list[str]:
    """Removes version folders and interrupted downloads that were not used since a time; returns their names.

    A task sets the time of a folder when it begins to use it. A folder is renamed before it is removed, so that a task
    that starts now finds a complete version or none.

    Args:
        versions: Folder of the versions; a task can write to it, so links are not followed.
        before: The time, in Unix seconds.
    """
    removed: list[str] = []
    if versions.is_symlink() or not versions.is_dir():
        return removed
    for folder in sorted(versions.iterdir()):
        if folder.is_symlink() or not folder.is_dir():
            continue
        if folder.name.startswith(_REMOVED):
            remove_tree(folder)
        elif folder.lstat().st_mtime < before:
            remove_tree(folder.rename(versions / f"{_REMOVED}{token_hex(8)}"))
            removed.append(folder.name)
    return removed
