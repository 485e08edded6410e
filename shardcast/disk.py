"""Writes blocks to files, and converts disk errors into errors with a hint."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from protocol.errors import Unavailable
from shardcast.errors import VersionDiskFull

WRITE_BYTES = 1 << 17
"""Number of bytes per `pwrite` call. On a virtual machine, calls of 1 MiB took the kernel about a third more time than
calls of this size (measured). A probable reason: the kernel puts 1 MiB into one large page, which the host must
allocate first. Without virtualisation, larger calls may be as fast."""


class Writer:
    """Context manager for a file that is opened at the first write.

    The writer creates missing folders, and closes the file on exit.

    Args:
        path: The file to write. A symbolic link at this path is refused.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def reserve(self, start: int, end: int) -> None:
        """Allocates disk blocks for the bytes from `start` to `end`.

        Raises:
            VersionDiskFull: The disk has no room for these bytes.
        """
        with disk_errors(self._path):
            os.posix_fallocate(self._open(), start, end - start)

    def write(self, data: memoryview, *, at: int) -> None:
        """Writes bytes at an offset.

        Raises:
            VersionDiskFull: The disk has no room for these bytes.
        """
        with disk_errors(self._path):
            descriptor = self._open()
            while data:
                written = os.pwrite(descriptor, data[:WRITE_BYTES], at)
                data, at = data[written:], at + written

    def truncate(self, size: int) -> None:
        """Sets the file's length in bytes; creates the file if it does not exist.

        Raises:
            VersionDiskFull: The disk has no room for the file's directory entry.
        """
        with disk_errors(self._path):
            descriptor = self._open()
            if os.fstat(descriptor).st_size != size:
                os.ftruncate(descriptor, size)

    def _open(self) -> int:
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                self._descriptor = os.open(self._path, flags, 0o644)
            except FileNotFoundError:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._descriptor = os.open(self._path, flags, 0o644)
        return self._descriptor


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Converts each `OSError` that the `with` statement's body raises into a `MusterError` with a hint.

    Raises:
        VersionDiskFull: The disk or the user's quota is full.
        Unavailable: The body raised any other `OSError`.
    """
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise VersionDiskFull(f"the disk has no room for {path.name} in {path.parent}: {error.strerror}") from error
        raise Unavailable(
            f"{path}: {error.strerror or error}",
            hint="check the disk and the folder's permissions",
            retryable=False,
            code="disk-failed",
        ) from error
