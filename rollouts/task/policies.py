"""Versions of the policy on the shared volume: fetched once for all tasks, checked before use, removed when old.

<shared>/checkpoints/<digest>/            a version, whole
<shared>/checkpoints/.incoming-<digest>/  what is being fetched, or was when a fetch broke
<shared>/checkpoints/.<digest>.lock       held shared by who uses it, alone by who fetches or removes it
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Protocol

import structlog

from protocol.checkpoints import folder_files, version_digest
from protocol.clock import Clock
from protocol.errors import MusterError, Unavailable
from protocol.identifiers import Digest
from protocol.wire.runs import CheckpointRef
from rollouts.errors import BadVersionFolder

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
    """

    digest: Digest
    folder: Path
    stamp: Stamp
    _descriptor: int = field(repr=False)

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
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class PolicyStore:
    """The versions of one shared volume; several tasks may share it.

    Args:
        shared: The shared volume.
        fetch: Brings versions; None if somebody else puts them there.
        clock: Whose time is waited.
        keep: How many versions stay beside those in use.
    """

    def __init__(self, shared: Path, *, fetch: Fetch | None, clock: Clock, keep: int = KEPT_VERSIONS) -> None:
        self._home = shared / "checkpoints"
        self._fetch = fetch
        self._clock = clock
        self._keep = keep

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
        descriptor = self._open_lock(digest)
        try:
            may_fetch = self._fetch is not None
            await self._take(descriptor, fcntl.LOCK_SH)
            while True:
                while not _is_here(folder):  # fetched by us, and removed by nobody before we hold it again
                    await self._bring(run, checkpoint, folder, descriptor)
                    await self._take(descriptor, fcntl.LOCK_SH)
                stamp = stamp_of(folder)
                damage = await asyncio.to_thread(_damage, folder, digest)
                if damage is None:
                    break
                await asyncio.to_thread(self._remove_damaged, folder, damage, descriptor, may_fetch=may_fetch)
                may_fetch = False
        except BaseException:
            os.close(descriptor)
            raise
        with suppress(OSError):  # a volume that keeps no times is tidied by chance only
            os.utime(folder)
        return HeldPolicy(digest, folder, stamp, descriptor)

    def _remove_damaged(self, folder: Path, damage: str, descriptor: int, *, may_fetch: bool) -> None:
        """Makes way for another fetch.

        Raises:
            BadVersionFolder: There is to be none.
            DamagedPolicy: Another task uses what is there.
        """
        if not may_fetch:
            raise BadVersionFolder(
                f"{folder} {damage}", hint="remove the folder; it is fetched again if there are relays"
            )
        if not _locked(descriptor, fcntl.LOCK_EX):
            raise DamagedPolicy(f"{folder} {damage}")
        _log.warning("version-damaged", folder=str(folder), why=damage)
        if folder.is_symlink():
            folder.unlink()
        else:
            shutil.rmtree(folder)

    async def _bring(self, run: Digest, checkpoint: CheckpointRef, folder: Path, descriptor: int) -> None:
        if self._fetch is None:
            raise NoPolicy(
                f"version {checkpoint.version} ({checkpoint.digest}) is not in {self._home}",
                hint="give the run relays, or put the version's folder there",
            )
        await self._take(descriptor, fcntl.LOCK_EX)
        if not _is_here(folder):  # another task may have fetched it while we waited
            await self.tidy()
            await self._fetch(run, checkpoint, folder)

    async def tidy(self) -> None:
        """Removes versions that nobody uses, the longest unused first, until `keep` are left."""
        await asyncio.to_thread(self._tidy)

    def _tidy(self) -> None:
        found = sorted(((_used(path), path) for path in self._home.iterdir() if path.is_dir()), reverse=True)
        versions = [path for _, path in found if not path.name.startswith(".")]
        incoming = [path for _, path in found if path.name.startswith(INCOMING)]
        for path in (*versions[self._keep :], *incoming[_KEPT_INCOMING:]):
            with suppress(OSError), self._alone(Digest(path.name.removeprefix(INCOMING))) as alone:
                if alone:
                    shutil.rmtree(path, ignore_errors=True)
                    _log.info("version-removed", version=path.name)

    @contextmanager
    def _alone(self, digest: Digest) -> Iterator[bool]:
        """Whether nobody uses the version; nobody begins to while this lasts."""
        descriptor = self._open_lock(digest)
        try:
            yield _locked(descriptor, fcntl.LOCK_EX)
        finally:
            os.close(descriptor)

    async def _take(self, descriptor: int, kind: int) -> None:
        while not _locked(descriptor, kind):
            await self._clock.sleep(_LOOK_AGAIN)

    def _open_lock(self, digest: Digest) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self._home / f".{digest}.lock", flags, 0o600)


def _used(path: Path) -> int:
    """When a folder was used last, in nanoseconds; 0 if another task has just removed it."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _is_here(folder: Path) -> bool:
    return folder.is_dir()


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            return False
        raise
    return True


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
