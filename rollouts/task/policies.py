"""Policy versions on the shared volume: fetched once for all tasks, checked before use, removed when old.

<shared>/checkpoints/<digest>/            a complete version
<shared>/checkpoints/.incoming-<digest>/  a fetch in progress, or an interrupted one
<shared>/checkpoints/.<digest>.lock       the version's lock (`version_lock`); removed with the version
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from protocol.checkpoints import folder_files, version_digest
from protocol.errors import MusterError, Unavailable
from protocol.identifiers import Digest
from protocol.runtime.budgets import KeepRule, StoredVersion, size_of
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.wire.runs import CheckpointRef
from rollouts.errors import BadVersionFolder
from rollouts.task.version_lock import Hold, VersionLock, locked_versions

KEPT_VERSIONS = 2
"""Number of versions kept besides those in use: the current version, and the previous one if the step moves back."""

INCOMING = ".incoming-"
"""Prefix of the folder into which a version is fetched."""
_KEPT_INCOMING = 1
"""Number of interrupted fetches to keep, because a task may resume the newest one."""

_LOCK_POLL = timedelta(milliseconds=200)
_log = get_logger(__name__)


Stamp = tuple[tuple[str, int, int, int, int], ...]
"""Name, size, modification time, change time (ctime) and inode of each file in a folder."""


class Fetch(Protocol):
    """Fetches a version's folder."""

    async def __call__(self, run: Digest, checkpoint: CheckpointRef, to: Path) -> None:
        """Creates the complete and verified folder `to`, or nothing.

        Raises:
            MusterError: The version is not available now; `retryable` says whether it may become available later.
        """
        ...


class NoPolicy(Unavailable):
    """The version is not on this machine, and there is no relay to fetch it from."""

    code = "no-policy"


class DamagedPolicy(Unavailable):
    """The local folder does not match the version's digest, and another task is using it."""

    code = "damaged-policy"
    default_hint = "stop the other tasks on this volume; the version is then fetched again"


@dataclass(slots=True)
class HeldPolicy:
    """A version that is protected from removal while held.

    Args:
        digest: The version's verified digest.
        folder: The version's folder.
        stamp: Stamp of the version's files when they were verified.
        lock: The version's lock; None for a folder that is never removed.
    """

    digest: Digest
    folder: Path
    stamp: Stamp
    lock: VersionLock | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """Total size of the version's files in bytes."""
        return sum(size for _, size, *_ in self.stamp)

    def check_unchanged(self) -> None:
        """Checks that no file was modified since the digest was verified.

        Raises:
            BadVersionFolder: A file was modified.
        """
        if stamp_of(self.folder) != self.stamp:
            raise BadVersionFolder(
                f"{self.folder} changed while it was used", hint="let no other program write to the shared volume"
            )

    def release(self) -> None:
        """Allows the version's removal. May be called repeatedly."""
        if self.lock is not None:
            self.lock.release()


class PolicyStore:
    """The versions of one shared volume, which several tasks may share.

    Args:
        shared: The shared volume.
        fetch: Fetches versions; None if versions reach the volume by other means.
        clock: Clock for waiting.
        keep: Rule for versions to keep in addition to those in use.
    """

    def __init__(self, shared: Path, *, fetch: Fetch | None, clock: Clock, keep: KeepRule | None = None) -> None:
        self._home = shared / "checkpoints"
        self._fetch = fetch
        self._clock = clock
        self._keep = KeepRule(most=KEPT_VERSIONS) if keep is None else keep

    async def hold(self, run: Digest, checkpoint: CheckpointRef) -> HeldPolicy:
        """Verifies the digest of a run's version and returns its folder, locked against replacement and removal.

        A damaged folder is fetched again if possible.

        Raises:
            NoPolicy: The version is missing and can't be fetched.
            BadVersionFolder: The local folder is damaged and can't be fetched again, or the fetched folder is damaged.
            DamagedPolicy: The local folder is damaged, and another task uses it.
        """
        digest = checkpoint.digest
        folder = self._home / digest
        self._home.mkdir(parents=True, exist_ok=True)
        lock = VersionLock(self._home, digest)
        try:
            may_fetch = self._fetch is not None
            await self._take(lock, Hold.SHARED)
            while True:
                while not _is_here(folder):  # another task may remove the folder before this task has the lock again
                    await self._bring(run, checkpoint, folder, lock)
                    await self._take(lock, Hold.SHARED)
                stamp = stamp_of(folder)
                damage = await asyncio.to_thread(_damage, folder, digest)
                if damage is None:
                    break
                await asyncio.to_thread(self._remove_damaged, folder, damage, lock, may_fetch=may_fetch)
                may_fetch = False
        except BaseException:
            lock.release()
            raise
        with suppress(OSError):  # the time only orders versions for removal
            os.utime(folder)
        return HeldPolicy(digest, folder, stamp, lock)

    def _remove_damaged(self, folder: Path, damage: str, lock: VersionLock, *, may_fetch: bool) -> None:
        """Removes a damaged folder, so that it can be fetched again.

        Raises:
            BadVersionFolder: The folder can't be fetched again.
            DamagedPolicy: Another task uses the folder.
        """
        if not may_fetch:
            raise BadVersionFolder(
                f"{folder} {damage}", hint="remove the folder; the task fetches it again if the run has relays"
            )
        if not lock.take(Hold.EXCLUSIVE):
            raise DamagedPolicy(f"{folder} {damage}")
        _log.warning("version-damaged", folder=str(folder), why=damage)
        if folder.is_symlink():
            folder.unlink()
        else:
            shutil.rmtree(folder)

    async def _bring(self, run: Digest, checkpoint: CheckpointRef, folder: Path, lock: VersionLock) -> None:
        if self._fetch is None:
            raise NoPolicy(
                f"version {checkpoint.version} ({checkpoint.digest}) is not in {self._home}",
                hint="give the run relays, or put the version's folder there",
            )
        await self._take(lock, Hold.EXCLUSIVE)
        if not _is_here(folder):  # another task may have fetched it while this task waited
            await self.tidy()
            await self._fetch(run, checkpoint, folder)
            await asyncio.to_thread(self._tidy, fetched=1)  # again, because the version's size is known only now

    async def tidy(self) -> None:
        """Removes unused versions, the least recently used first, until `keep` allows the remaining versions."""
        await asyncio.to_thread(self._tidy)

    def _tidy(self, *, fetched: int = 0) -> None:
        found = sorted(((_used(path), path) for path in self._home.iterdir() if path.is_dir()), reverse=True)
        versions = [path for _, path in found if not path.name.startswith(".")]
        incoming = [path for _, path in found if path.name.startswith(INCOMING)]
        stored = [StoredVersion(size_of(path), _used(path) / 1e9) for path in versions]
        stays = replace(self._keep, most=self._keep.most + fetched).choose(stored).stays
        old = [path for path, each in zip(versions, stays, strict=True) if not each]
        for path in (*old, *incoming[_KEPT_INCOMING:]):
            with suppress(OSError), self._alone(Digest(path.name.removeprefix(INCOMING))) as lock:
                if lock is not None:
                    shutil.rmtree(path, ignore_errors=True)
                    _log.info("version-removed", version=path.name)
        for digest in [each for each in locked_versions(self._home) if not self._has_folder(each)]:
            with suppress(OSError), self._alone(digest) as lock:
                if lock is not None and not self._has_folder(digest):  # another task may have fetched it
                    lock.remove()

    def _has_folder(self, digest: Digest) -> bool:
        return any(os.path.lexists(self._home / name) for name in (digest, f"{INCOMING}{digest}"))

    @contextmanager
    def _alone(self, digest: Digest) -> Iterator[VersionLock | None]:
        """Holds the version's lock exclusively; yields None if another task uses the version."""
        lock = VersionLock(self._home, digest)
        try:
            yield lock if lock.take(Hold.EXCLUSIVE) else None
        finally:
            lock.release()

    async def _take(self, lock: VersionLock, hold: Hold) -> None:
        while not lock.take(hold):
            await self._clock.sleep(_LOCK_POLL)


def _used(path: Path) -> int:
    """Returns when a folder was last used, in nanoseconds; 0 if another task has just removed it."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _is_here(folder: Path) -> bool:
    return folder.is_dir()


def _damage(folder: Path, wanted: Digest) -> str | None:
    """Returns a predicate that describes a folder's damage, for messages; None if it is the wanted version."""
    try:
        found = version_digest(folder_files(folder))
    except (MusterError, OSError) as error:
        return f"is not a version: {error}"
    if folder.is_symlink():
        return "is a link"
    return None if found == wanted else f"has the digest {found}"


def stamp_of(folder: Path) -> Stamp:
    """Returns a stamp that detects replaced or modified files, because not even their owner can set their ctime."""
    facts = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            about = path.stat()
            name = path.relative_to(folder).as_posix()
            facts.append((name, about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino))
    return tuple(facts)
