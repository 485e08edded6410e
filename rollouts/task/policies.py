"""Versions of the policy on the shared volume: fetched once for all tasks, checked before use, removed when old.

<shared>/checkpoints/<digest>/          a version, whole
<shared>/checkpoints/.<digest>.lock     held shared by who uses it, alone by who fetches or removes it
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

_LOOK_AGAIN = timedelta(milliseconds=200)
_log = structlog.get_logger(__name__)


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


@dataclass(slots=True)
class HeldPolicy:
    """A version that nobody removes while it is held.

    Args:
        digest: Its digest, checked.
        folder: Where it is.
        stamp: Size, time and inode of its files when they were checked.
    """

    digest: Digest
    folder: Path
    stamp: tuple[tuple[str, int, int, int], ...]
    _descriptor: int = field(repr=False)

    def check_unchanged(self) -> None:
        """Returns if no file was touched since the digest was checked.

        Raises:
            BadVersionFolder: One was.
        """
        if _stamp(self.folder) != self.stamp:
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

        Raises:
            NoPolicy: It is not there and there is nobody to fetch it from.
            BadVersionFolder: What is there, or what was fetched, is something else; it is removed if we fetched it.
        """
        digest = checkpoint.digest
        self._home.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._lock(digest), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            folder = self._home / digest
            await self._take(descriptor, fcntl.LOCK_SH)
            while not _is_here(folder):  # fetched by us, and removed by nobody before we hold it again
                await self._bring(run, checkpoint, folder, descriptor)
                await self._take(descriptor, fcntl.LOCK_SH)
            stamp = _stamp(folder)
            found = await asyncio.to_thread(_digest_of, folder)
        except BaseException:
            os.close(descriptor)
            raise
        held = HeldPolicy(digest, folder, stamp, descriptor)
        if found != digest:
            held.release()
            raise BadVersionFolder(
                f"{folder} has the digest {found}", hint="remove the folder; it is fetched again if there are relays"
            )
        with suppress(OSError):  # a volume that keeps no times is tidied by chance only
            os.utime(folder)
        return held

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
        versions = [path for path in self._home.iterdir() if path.is_dir() and not path.name.startswith(".")]
        versions.sort(key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in versions[self._keep :]:
            with self._alone(Digest(path.name)) as alone:
                if alone:
                    shutil.rmtree(path, ignore_errors=True)
                    _log.info("version-removed", version=path.name)

    @contextmanager
    def _alone(self, digest: Digest) -> Iterator[bool]:
        """Whether nobody uses the version; nobody begins to while this lasts."""
        descriptor = os.open(self._lock(digest), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield _locked(descriptor, fcntl.LOCK_EX)
        finally:
            os.close(descriptor)

    async def _take(self, descriptor: int, kind: int) -> None:
        while not _locked(descriptor, kind):
            await self._clock.sleep(_LOOK_AGAIN)

    def _lock(self, digest: Digest) -> Path:
        return self._home / f".{digest}.lock"


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


def _digest_of(folder: Path) -> Digest:
    try:
        return version_digest(folder_files(folder))
    except (MusterError, OSError) as error:
        raise BadVersionFolder(f"{folder} is no version: {error}") from error


def _stamp(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """What tells that a file was replaced or written to since."""
    facts = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            about = path.stat()
            facts.append((path.relative_to(folder).as_posix(), about.st_size, about.st_mtime_ns, about.st_ino))
    return tuple(facts)
