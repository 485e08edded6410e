"""Inter-process lock of a policy version: shared for use, exclusive for replacement or removal; one file per version.

The exclusive holder removes a lock file that is no longer needed, so that a volume does not accumulate one file per
version. If a process gets a lock on a file that was removed meanwhile, the lock has no effect. The process then locks
the file that replaced the removed one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path

from protocol.identifiers import Digest
from protocol.runtime.files import try_lock


class Hold(Enum):
    """Mode of a version lock."""

    SHARED = auto()
    """Held while a process uses the version; prevents replacement and removal."""
    EXCLUSIVE = auto()
    """Held while a process replaces or removes the version; no other process uses it meanwhile."""


class VersionLock:
    """The lock of one version; held until released, or until the process ends.

    Args:
        home: The folder of the versions.
        digest: The version.

    Raises:
        OSError: The file can't be opened; links are not followed.
    """

    def __init__(self, home: Path, digest: Digest) -> None:
        self._path = home / f".{digest}.lock"
        self._descriptor = self._open()

    def take(self, hold: Hold) -> bool:
        """Tries to take the lock in this mode; on failure, releases any lock held before and returns False."""
        while try_lock(self._descriptor, shared=hold is Hold.SHARED):
            if self._is_current():
                return True
            self.release()
            self._descriptor = self._open()
        return False

    def remove(self) -> None:
        """Deletes the lock file; the exclusive holder calls this method as the last step of removing a version."""
        with suppress(FileNotFoundError):
            self._path.unlink()

    def release(self) -> None:
        """Releases the lock. May be called repeatedly."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> int:
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def _is_current(self) -> bool:
        """Returns whether the locked file is still at its path; the former holder may have removed it."""
        try:
            there = self._path.lstat()
        except FileNotFoundError:
            return False
        return os.path.samestat(there, os.fstat(self._descriptor))


def locked_versions(home: Path) -> Iterator[Digest]:
    """Yields the versions that have a lock file, whether it is held or not."""
    for path in home.glob(".*.lock"):
        yield Digest(path.name.removeprefix(".").removesuffix(".lock"))
