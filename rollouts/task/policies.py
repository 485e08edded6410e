"""Versions of the policy on the shared volume: fetched once for all tasks, checked before use, removed when old.

<shared>/checkpoints/<digest>/            a version, whole
<shared>/checkpoints/.incoming-<digest>/  what is being fetched, or was when a fetch broke
<shared>/checkpoints/.<digest>.lock       held shared by who uses it, alone by who fetches or removes it; goes with it
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import structlog

from protocol.checkpoints import folder_files, version_digest
from protocol.errors import MusterError, Unavailable
from protocol.identifiers import Digest
from protocol.runtime.budgets import KeepRule, StoredVersion, size_of
from protocol.runtime.clock import Clock
from protocol.wire.runs import CheckpointRef
from rollouts.errors import BadVersionFolder
from rollouts.task.version_lock import Hold, VersionLock, locked_versions

KEPT_VERSIONS = 2
"""Beside those in use: the one that is generated with and the one before, should the step move back."""

INCOMING = ".incoming-"
"""Begins the name of the folder that a version is fetched into."""
_KEPT_INCOMING = 1
"""Of broken fetches: the newest may still be gone on with."""

_LOOK_AGAIN = timedelta(milliseconds=200)
_log = structlog.get_logger(__name__)


Stamp = tuple[tuple[str, int, int, int, int], ...]
"""Name, size, both times and inode of each file of a folder."""


class Fetch(Protocol):
    """Brings a version's folder here."""

    async def __call__(self, run: Digest, checkpoint: CheckpointRef, to: Path) -> None:
        """Makes the folder `to`, whole and verified, or nothing.

        Raises:
            MusterError: It can't be had now; `retryable` says whether it may be later.
        """
        ...


class NoPolicy(Unavailable):
    """The version is not on this machine, and nobody gives it."""

    code = "no-policy"


class DamagedPolicy(Unavailable):
    """What is here is not the version, and another task is using it."""

    code = "damaged-policy"
    default_hint = "stop the other tasks on this volume; the version is then fetched again"


@dataclass(slots=True)
class HeldPolicy:
    """A version that nobody removes while it is held.

    Args:
        digest: Its digest, checked.
        folder: Where it is.
        stamp: Of its files when they were checked.
        lock: Of the version; none for a folder that nobody would remove.
    """

    digest: Digest
    folder: Path
    stamp: Stamp
    lock: VersionLock | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(size for _, size, *_ in self.stamp)

    def check_unchanged(self) -> None:
        """Returns if no file was touched since the digest was checked.

        Raises:
            BadVersionFolder: One was.
        """
        if stamp_of(self.folder) != self.stamp:
            raise BadVersionFolder(
                f"{self.folder} changed under the engine", hint="let nothing else write to the shared volume"
            )

    def release(self) -> None:
        """Lets it be removed. Releasing twice does nothing."""
        if self.lock is not None:
            self.lock.release()


class PolicyStore:
    """The versions of one shared volume; several tasks may share it.

    Args:
        shared: The shared volume.
        fetch: Brings versions; None if somebody else puts them there.
        clock: Whose time is waited.
        keep: Which versions stay beside those in use.
    """

    def __init__(self, shared: Path, *, fetch: Fetch | None, clock: Clock, keep: KeepRule | None = None) -> None:
        self._home = shared / "checkpoints"
        self._fetch = fetch
        self._clock = clock
        self._keep = KeepRule(most=KEPT_VERSIONS) if keep is None else keep

    async def hold(self, run: Digest, checkpoint: CheckpointRef) -> HeldPolicy:
        """Returns the folder of a run's version, held, after making sure that its content is the digest's.

        A damaged folder is fetched anew if there is somebody to fetch it from.

        Raises:
            NoPolicy: It is not there and there is nobody to fetch it from.
            BadVersionFolder: What is there is something else and can't be fetched anew, or what was fetched is.
            DamagedPolicy: What is there is something else, and another task uses it.
        """
        digest = checkpoint.digest
        folder = self._home / digest
        self._home.mkdir(parents=True, exist_ok=True)
        lock = VersionLock(self._home, digest)
        try:
            may_fetch = self._fetch is not None
            await self._take(lock, Hold.SHARED)
            while True:
                while not _is_here(folder):  # fetched by us, and removed by nobody before we hold it again
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
        with suppress(OSError):  # a volume that keeps no times is tidied by chance only
            os.utime(folder)
        return HeldPolicy(digest, folder, stamp, lock)

    def _remove_damaged(self, folder: Path, damage: str, lock: VersionLock, *, may_fetch: bool) -> None:
        """Makes way for another fetch.

        Raises:
            BadVersionFolder: There is to be none.
            DamagedPolicy: Another task uses what is there.
        """
        if not may_fetch:
            raise BadVersionFolder(
                f"{folder} {damage}", hint="remove the folder; it is fetched again if there are relays"
            )
        if not lock.take(Hold.ALONE):
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
        await self._take(lock, Hold.ALONE)
        if not _is_here(folder):  # another task may have fetched it while we waited
            await self.tidy()
            await self._fetch(run, checkpoint, folder)
            await asyncio.to_thread(self._tidy, fetched=1)  # now that its size is known

    async def tidy(self) -> None:
        """Removes versions that nobody uses, the longest unused first, until those are left that `keep` names."""
        await asyncio.to_thread(self._tidy)

    def _tidy(self, *, fetched: int = 0) -> None:
        found = sorted(((_used(path), path) for path in self._home.iterdir() if path.is_dir()), reverse=True)
        versions = [path for _, path in found if not path.name.startswith(".")]
        incoming = [path for _, path in found if path.name.startswith(INCOMING)]
        stored = [StoredVersion(size_of(path), _used(path) / 1e9) for path in versions]
        left = replace(self._keep, most=self._keep.most + fetched).count(stored, now=time.time())
        for path in (*versions[left:], *incoming[_KEPT_INCOMING:]):
            with suppress(OSError), self._alone(Digest(path.name.removeprefix(INCOMING))) as lock:
                if lock is not None:
                    shutil.rmtree(path, ignore_errors=True)
                    _log.info("version-removed", version=path.name)
        for digest in [each for each in locked_versions(self._home) if not self._anything_of(each)]:
            with suppress(OSError), self._alone(digest) as lock:
                if lock is not None and not self._anything_of(digest):  # it may have been fetched meanwhile
                    lock.remove()

    def _anything_of(self, digest: Digest) -> bool:
        return any(os.path.lexists(self._home / name) for name in (digest, f"{INCOMING}{digest}"))

    @contextmanager
    def _alone(self, digest: Digest) -> Iterator[VersionLock | None]:
        """The version's lock, None if somebody uses the version; nobody begins to while this lasts."""
        lock = VersionLock(self._home, digest)
        try:
            yield lock if lock.take(Hold.ALONE) else None
        finally:
            lock.release()

    async def _take(self, lock: VersionLock, hold: Hold) -> None:
        while not lock.take(hold):
            await self._clock.sleep(_LOOK_AGAIN)


def _used(path: Path) -> int:
    """When a folder was used last, in nanoseconds; 0 if another task has just removed it."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _is_here(folder: Path) -> bool:
    return folder.is_dir()


def _damage(folder: Path, wanted: Digest) -> str | None:
    """What is wrong with a folder, as the end of a sentence; None if it is the version that is wanted."""
    try:
        found = version_digest(folder_files(folder))
    except (MusterError, OSError) as error:
        return f"is no version: {error}"
    if folder.is_symlink():
        return "is a link"
    return None if found == wanted else f"has the digest {found}"


def stamp_of(folder: Path) -> Stamp:
    """What tells that a file was replaced or written to since. The second time can't be set, not even by its owner."""
    facts = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            about = path.stat()
            name = path.relative_to(folder).as_posix()
            facts.append((name, about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino))
    return tuple(facts)
