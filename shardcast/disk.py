"""Writes to files from worker threads, with reserved room and disk errors that carry a hint."""

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
"""Bytes per `pwrite`. On virtual machines writes of 1 MiB cost the kernel about a third more (measured; probably
because each goes to one large page, which the host must allocate first). It may not matter elsewhere."""


class Writer:
    """Opens a file for writing at its first use, creating its folders; closes it on exit.

    Args:
        path: The file. A symbolic link in its place is refused.
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
            VersionDiskFull: There is no room for them.
        """
        with disk_errors(self._path):
            os.posix_fallocate(self._open(), start, end - start)

    def write(self, data: memoryview, *, at: int) -> None:
        """Writes bytes at an offset.

        Raises:
            VersionDiskFull: There is no room for them.
        """
        with disk_errors(self._path):
            descriptor = self._open()
            while data:
                written = os.pwrite(descriptor, data[:WRITE_BYTES], at)
                data, at = data[written:], at + written

    def truncate(self, size: int) -> None:
        """Sets the file's exact length; creates an empty file.

        Raises:
            VersionDiskFull: There is no room for the file's entry.
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
    """Converts disk errors into errors with a hint.

    Raises:
        VersionDiskFull: There is no room left.
        Unavailable: Any other disk error.
    """
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise VersionDiskFull(f"there is no room for {path.name} in {path.parent}: {error.strerror}") from error
        raise Unavailable(
            f"{path}: {error.strerror or error}",
            hint="check that disk and the permissions of the folder",
            retryable=False,
            code="disk-failed",
        ) from error
