"""Who may use a version of the policy, and who may replace or remove it: one lock file for each, between processes.

A lock file that nothing needs is removed by who holds it alone, so that a volume does not gather one for each version
that it ever held. Whoever waited for a file that is gone holds nothing with it, and takes the one that stands there.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

from protocol.identifiers import Digest


class Hold(IntEnum):
    """How a version is held."""

    SHARED = fcntl.LOCK_SH
    """It is used: nobody replaces or removes it."""
    ALONE = fcntl.LOCK_EX
    """Nobody else uses it."""


class VersionLock:
    """The lock of one version; held until it is released, or until the process ends.

    Args:
        home: The folder of the versions.
        digest: Which version.

    Raises:
        OSError: The file can't be opened; it may be a link, which is not followed.
    """

    def __init__(self, home: Path, digest: Digest) -> None:
        self._path = home / f".{digest}.lock"
        self._descriptor = self._open()

    def take(self, hold: Hold) -> bool:
        """Whether it is held so now. If it is not, what was held before is given up."""
        while _locked(self._descriptor, hold):
            if self._stands_there():
                return True
            self.release()
            self._descriptor = self._open()
        return False

    def remove(self) -> None:
        """Deletes the file; to be called by who holds it alone, as the last thing that is done to the version."""
        with suppress(FileNotFoundError):
            self._path.unlink()

    def release(self) -> None:
        """Gives it up. Releasing twice does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def _stands_there(self) -> bool:
        """Whether the file that is locked is the one that others open: it may have been removed while we waited."""
        try:
            there = self._path.lstat()
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._descriptor))


def locked_versions(home: Path) -> Iterator[Digest]:
    """The versions that have a lock file, whether anybody holds it or not."""
    for path in home.glob(".*.lock"):
        yield Digest(path.name.removeprefix(".").removesuffix(".lock"))


def _locked(descriptor: int, hold: Hold) -> bool:
    try:
        fcntl.flock(descriptor, hold | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            return False
        raise
    return True
