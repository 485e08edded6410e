"""An origin's folder: each version that appears in it is published, while it is written where that can be told.

    DIR/7/                 version 7; also checkpoint-7, step_7, v7
    DIR/7/.writing         there while it grows: its files are only added to, and published as they are
    DIR/7/.anything        hidden, and *.tmp, *.part: no part of the version

Without `.writing` a folder counts as complete the moment it is seen, so it is moved there whole (`mv` on the same
disk), or made with `.writing` in it first. A folder that is made anew is a new attempt at its version.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

import structlog
from watchfiles import Change, awatch

from protocol.errors import InvalidInput, MusterError
from shardcast.origin import KEPT_VERSIONS, STATE_FOLDER, Origin, file_sizes
from shardcast.publish.anchors import next_form
from shardcast.publish.publication import Publication

WRITING = ".writing"

_FOLDER = re.compile(r"(?:[A-Za-z]+[-_]?)?([0-9]{1,15})")
_UNFINISHED = (".tmp", ".part", ".partial")
_SETTLING_MS = 20
"""The kernel's notices are gathered for so long: writers make thousands of them a second."""

logging.getLogger("watchfiles.main").setLevel(logging.WARNING)  # at INFO it writes a line for every notice
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Seen:
    """A version's folder, as it was published."""

    made: int
    """Inode of the folder, to distinguish folders of the same name."""
    publication: Publication | None
    """None once the version is complete, or was refused."""
    refused: bool = False


class FolderWatcher:
    """Publishes what appears in an origin's folder.

    Args:
        origin: Publishes.
        keep: Of the versions that are there, only so many of the newest are published.
        anchor_every: One version in so many travels whole, and the others as what changed since the one before. More
            than 1 means that a version is published when it is complete, and not while it grows.
    """

    def __init__(self, origin: Origin, *, keep: int = KEPT_VERSIONS, anchor_every: int = 1) -> None:
        self._origin = origin
        self._keep = keep
        self._anchor_every = anchor_every
        self._seen: dict[int, _Seen] = {}

    async def run(self) -> None:
        """Goes on until it is cancelled."""
        stop = asyncio.Event()
        notices = awatch(
            self._origin.folder,
            watch_filter=_is_of_a_version,
            step=_SETTLING_MS,
            debounce=5 * _SETTLING_MS,
            stop_event=stop,
        )
        # The watch is there after the first step of its first round, and the first look comes then: nothing is missed.
        notice = asyncio.ensure_future(anext(notices, None))
        try:
            await asyncio.sleep(0)
            await self.look()
            while await notice is not None:
                await self.look()
                notice = asyncio.ensure_future(anext(notices, None))
        finally:
            stop.set()
            await asyncio.wait({notice})

    async def look(self) -> None:
        """Publishes files that are new since the last scan."""
        found = await asyncio.to_thread(_versions, self._origin.folder)
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
        # Read before the files: later writes are seen with the next notification.
        made, growing = await asyncio.to_thread(_state_of, folder)
        seen = self._seen.get(version)
        if seen is None or seen.made != made or (seen.publication is None and growing and not seen.refused):
            if seen is None and not growing and self._is_held(version, folder):
                self._seen[version] = _Seen(made, None)
                return
            sizes = await asyncio.to_thread(published_sizes, folder)
            if not sizes and not growing:
                return  # just made: the files, or `.writing`, are still to come
            if self._anchor_every > 1:
                if not growing:
                    await self._publish_complete(version, folder, made, sizes)
                return
            seen = self._seen[version] = _Seen(made, self._origin.begin(version, folder=folder))
        if seen.publication is None:
            return
        sizes = await asyncio.to_thread(published_sizes, folder)
        if missing := set(seen.publication.paths) - set(sizes):
            raise InvalidInput(f"{min(missing)} was published and is there no longer")
        for path, size in sizes.items():
            await seen.publication.advance(path, expected=None if growing else size, ended=not growing)
        if not growing:
            await self._origin.finish(seen.publication)
            seen.publication = None

    async def _publish_complete(self, version: int, folder: Path, made: int, sizes: dict[str, int]) -> None:
        self._seen[version] = _Seen(made, None)
        form = next_form(self._origin.versions, version, anchor_every=self._anchor_every)
        await self._origin.publish_folder(version, folder, base=form.base, full=form.full, sizes=sizes)

    def _is_held(self, version: int, folder: Path) -> bool:
        """Returns whether the origin resumed this version after a restart."""
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
    """The folders that are versions, by number; of two with one number the one that sorts last."""
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir()):
        match = _FOLDER.fullmatch(path.name)
        if match is not None and path.is_dir() and not path.is_symlink():
            found[int(match[1])] = path
    return found


def _state_of(folder: Path) -> tuple[int, bool]:
    """Returns the folder's inode, and whether it is being written."""
    return folder.stat().st_ino, (folder / WRITING).exists()


def published_sizes(folder: Path) -> dict[str, int]:
    """The files of a folder that belong to its version now."""
    return {
        path: size for path, size in file_sizes(folder, may_be_empty=True).items() if not path.endswith(_UNFINISHED)
    }


def _is_of_a_version(_change: Change, path: str) -> bool:
    return f"{os.sep}{STATE_FOLDER}{os.sep}" not in path
