"""Reservations of disk space for files in progress, so that a reserve stays free also under concurrent uploads."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import Unavailable


class DiskReserved(Unavailable):
    """A file does not fit on the disk beside the reserve and the files being written."""

    code = "disk-full"
    default_hint = "make room on that disk, or lower its reserve"


class DiskSpace:
    """Reserves disk space for files being written; for one event loop.

    `writing` reads the free space again for each piece, so that writes of other processes count.

    Args:
        directory: Any directory on the disk.
        reserve: Bytes that stay free.
    """

    def __init__(self, directory: Path, *, reserve: int) -> None:
        self._directory = directory
        self._reserve = reserve
        self._claimed = 0
        """Reserved bytes that are not written yet."""
        self._writing = 0
        """Bytes of writes in progress, by which the free space may have shrunk already."""

    @property
    def left(self) -> int:
        """Returns free bytes above the reserve, minus those claimed by files in progress."""
        return max(0, self._above_reserve() - self._claimed)

    def check(self, size: int) -> None:
        """Returns if a file could begin now.

        Raises:
            DiskReserved: The file does not fit.
        """
        if size > (left := self.left):
            raise DiskReserved(
                f"the file has {size} bytes, and {left} are left beside the reserve of {self._reserve} bytes and the "
                f"{self._claimed} bytes of files under way"
            )

    @contextmanager
    def claim(self, size: int) -> Iterator[DiskClaim]:
        """Reserves space for a file until the context ends.

        Raises:
            DiskReserved: The file does not fit.
        """
        self.check(size)
        claim = DiskClaim(self, size)
        self._claimed += size
        try:
            yield claim
        finally:
            self._claimed -= claim.remaining
            claim.remaining = 0

    @contextmanager
    def _piece(self, size: int) -> Iterator[None]:
        if size > (left := self._above_reserve() - self._writing):
            raise DiskReserved(f"the disk filled while the file was written: {max(0, left)} bytes are left")
        self._writing += size
        try:
            yield
        finally:
            self._writing -= size

    def _above_reserve(self) -> int:
        return shutil.disk_usage(self._directory).free - self._reserve


class DiskClaim:
    """Reserved space for one file; created by `DiskSpace.claim`.

    Args:
        space: The disk.
        size: Size of the whole file in bytes.
    """

    def __init__(self, space: DiskSpace, size: int) -> None:
        self._space = space
        self.remaining = size
        """Bytes that were not written yet."""

    @contextmanager
    def writing(self, size: int) -> Iterator[None]:
        """Context manager for writing the next `size` bytes; releases their reservation after success.

        Raises:
            DiskReserved: Other processes have filled the disk since the reservation; the caller must not write.
        """
        with self._space._piece(size):
            yield
        written = min(size, self.remaining)
        self.remaining -= written
        self._space._claimed -= written
