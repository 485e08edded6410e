"""Reserves disk space for files in progress.

Concurrent uploads can't use up the reserve that must stay free.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import Unavailable


class DiskReserved(Unavailable):
    """A file does not fit on the disk.

    The reserve and the files in progress leave too little space.
    """

    code = "disk-full"
    default_hint = "free space on this disk, or lower the reserve in the settings"


class DiskSpace:
    """Reserves disk space for files in progress, within one event loop.

    `DiskClaim.writing` reads the free space again for each piece, because other processes may have filled the disk.

    Args:
        directory: Any directory on the disk.
        reserve: Number of bytes that must stay free.
    """

    def __init__(self, directory: Path, *, reserve: int) -> None:
        self._directory = directory
        self._reserve = reserve
        self._claimed = 0
        """Number of reserved bytes that are not written yet."""
        self._writing = 0
        """Number of bytes in writes in progress. The free space may have shrunk by these already."""

    @property
    def left(self) -> int:
        """Returns the bytes that new files may use.

        These are the free bytes minus the reserve and the unwritten bytes of files in progress.
        """
        return max(0, self._above_reserve() - self._claimed)

    def check(self, size: int) -> None:
        """Checks that a file of `size` bytes would fit now; reserves nothing.

        Raises:
            DiskReserved: The file does not fit.
        """
        if size > (left := self.left):
            raise DiskReserved(
                f"the file has {size} bytes, but only {left} are free beside the reserve of {self._reserve} bytes and "
                f"{self._claimed} bytes for files in progress"
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
            raise DiskReserved(
                f"the disk was filled while the file was written: {max(0, left)} bytes are left above the reserve"
            )
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
        space: The disk's space accounting.
        size: Size of the whole file in bytes.
    """

    def __init__(self, space: DiskSpace, size: int) -> None:
        self._space = space
        self.remaining = size
        """Number of reserved bytes that are not written yet."""

    @contextmanager
    def writing(self, size: int) -> Iterator[None]:
        """Context manager around the writing of the next `size` bytes.

        After success it releases their reservation, because the bytes now occupy the disk.

        Raises:
            DiskReserved: Other processes have filled the disk since the reservation; the caller must not write.
        """
        with self._space._piece(size):
            yield
        written = min(size, self.remaining)
        self.remaining -= written
        self._space._claimed -= written
