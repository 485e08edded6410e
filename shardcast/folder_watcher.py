"""Watches an origin's folder and publishes each version that appears in it.

    DIR/7/                 folder of version 7; it may also be called checkpoint-7, step_7 or v7
    DIR/7/.writing         mark that version 7 is being written: its files may only grow, and new blocks are published
    DIR/7/.anything        hidden files, *.tmp, *.part and *.partial are not part of the version

A folder without `.writing` counts as complete when the watcher first sees it. So either move a complete folder into the
origin's folder (`mv` on the same disk), or create `.writing` before any other file. If a folder is deleted and created
again, the watcher publishes it as a new attempt at its version.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

from watchfiles import Change, awatch

from protocol.errors import InvalidInput, MusterError
from protocol.runtime.logs import get_logger
from protocol.runtime.threads import run_in_thread
from shardcast.origin import KEPT_VERSIONS, STATE_FOLDER, Origin, file_sizes
from shardcast.publish.anchors import next_form
from shardcast.publish.publication import Publication

WRITING = ".writing"
"""Name of the file that marks a version's folder as still being written."""

_FOLDER = re.compile(r"(?:[A-Za-z]+[-_]?)?([0-9]{1,15})")
_UNFINISHED = (".tmp", ".part", ".partial")
_DEBOUNCE_MS = 20
"""Milliseconds for which the kernel's file notifications are collected; a writer can cause thousands per second."""

logging.getLogger("watchfiles.main").setLevel(logging.WARNING)  # at INFO it logs every notification
_log = get_logger(__name__)


@dataclass(slots=True)
class _Seen:
    """State of a version's folder when the watcher last looked at it."""

    inode: int
    """Inode of the folder; it differs when the folder was deleted and created again under the same name."""
    publication: Publication | None
    """Running publication of the version; None if the version is complete, or could not be published."""
    refused: bool = False
    """Whether the version could not be published; the watcher then ignores the folder until it is created again."""


class FolderWatcher:
    """Publishes the versions that appear in an origin's folder.

    Args:
        origin: The origin that publishes the versions.
        keep: Number of versions to publish; the watcher ignores older versions in the folder.
        anchor_every: With a value N, one version in N is published whole, and the others as deltas; 1 publishes all
            versions whole. With a value above 1 the watcher publishes a version when it is complete, and not while its
            files grow.
    """

    def __init__(self, origin: Origin, *, keep: int = KEPT_VERSIONS, anchor_every: int = 1) -> None:
        self._origin = origin
        self._keep = keep
        self._anchor_every = anchor_every
        self._seen: dict[int, _Seen] = {}

    async def run(self) -> None:
        """Watches the folder and publishes its versions, until the task is cancelled."""
        stop = asyncio.Event()
        changes = awatch(
            self._origin.folder,
            watch_filter=_is_outside_state,
            step=_DEBOUNCE_MS,
            debounce=5 * _DEBOUNCE_MS,
            stop_event=stop,
        )
        # The first step of `anext` starts the watch. The first scan follows the start of the watch, so that a change
        # that is too late for the scan causes a notification.
        change = asyncio.ensure_future(anext(changes, None))
        try:
            await asyncio.sleep(0)
            await self.look()
            while await change is not None:
                await self.look()
                change = asyncio.ensure_future(anext(changes, None))
        finally:
            stop.set()
            await asyncio.wait({change})

    async def look(self) -> None:
        """Scans the folder once, publishes new data, and withdraws versions whose folders are gone."""
        found = await run_in_thread(_versions, self._origin.folder)
        for version in set(self._seen) - set(found):
            self._withdraw(version)
            del self._seen[version]
        for version in sorted(found)[-self._keep :]:
            try:
                await self._advance(version, found[version])
            except (MusterError, OSError) as error:
                why = error.detail if isinstance(error, MusterError) else str(error)
                _log.warning("version-not-published", version=version, folder=str(found[version]), why=why)
                self._withdraw(version)

    async def _advance(self, version: int, folder: Path) -> None:
        # The state is read before the files' sizes: if the writer ends in between, the next scan reads the new state.
        # In the other order the last bytes would be missing from a version that counts as complete.
        inode, growing = await run_in_thread(_state_of, folder)
        seen = self._seen.get(version)
        if seen is None or seen.inode != inode or (seen.publication is None and growing and not seen.refused):
            if seen is None and not growing and self._is_held(version, folder):
                self._seen[version] = _Seen(inode, None)
                return
            sizes = await run_in_thread(published_sizes, folder)
            if not sizes and not growing:
                return  # the folder was just created, and the writer has not yet created `.writing` or a file
            if self._anchor_every > 1:
                if not growing:
                    await self._publish_complete(version, folder, inode, sizes)
                return
            seen = self._seen[version] = _Seen(inode, self._origin.begin(version, folder=folder))
        if seen.publication is None:
            return
        sizes = await run_in_thread(published_sizes, folder)
        if missing := set(seen.publication.paths) - set(sizes):
            raise InvalidInput(
                f"{min(missing)} was deleted while its version was published", hint="write the version again"
            )
        for path, size in sizes.items():
            await seen.publication.advance(path, expected=None if growing else size, ended=not growing)
        if not growing:
            await self._origin.finish(seen.publication)
            seen.publication = None

    async def _publish_complete(self, version: int, folder: Path, inode: int, sizes: dict[str, int]) -> None:
        self._seen[version] = _Seen(inode, None)
        form = next_form(self._origin.versions, version, anchor_every=self._anchor_every)
        await self._origin.publish_folder(version, folder, base=form.base, full=form.full, sizes=sizes)

    def _is_held(self, version: int, folder: Path) -> bool:
        """Returns whether the origin holds this version, complete and from this folder.

        The result is True after a restart in which the origin has resumed the version.
        """
        local = self._origin.versions.get(version)
        if local is None or not local.manifest.sealed:
            return False
        return all(local.path(file.index).is_relative_to(folder.absolute()) for file in local.manifest.files)

    def _withdraw(self, version: int) -> None:
        local = self._origin.versions.get(version)
        if local is not None:
            self._origin.withdraw(local)
        if version in self._seen:
            self._seen[version].publication = None
            self._seen[version].refused = True


def _versions(folder: Path) -> dict[int, Path]:
    """Returns the versions' folders by version number.

    If two folders have the same number, the alphabetically last one counts.
    """
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        match = _FOLDER.fullmatch(path.name)
        if match is not None and path.is_dir() and not path.is_symlink():
            found[int(match[1])] = path
    return found


def _state_of(folder: Path) -> tuple[int, bool]:
    """Returns the folder's inode, and whether its version is still being written."""
    return folder.stat().st_ino, (folder / WRITING).exists()


def published_sizes(folder: Path) -> dict[str, int]:
    """Returns the files of a folder that belong to its version, with their sizes in bytes."""
    return {
        path: size for path, size in file_sizes(folder, may_be_empty=True).items() if not path.endswith(_UNFINISHED)
    }


def _is_outside_state(_change: Change, path: str) -> bool:
    return f"{os.sep}{STATE_FOLDER}{os.sep}" not in path
