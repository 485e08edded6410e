"""Opens a file named by a task without ever leaving the task's data volume.

The path is opened one component at a time from the volume's descriptor with `O_NOFOLLOW`, so the file is inside the
volume even if the task changes paths meanwhile. Checking a path before opening it would let the task replace a
directory by a link in between.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from protocol.errors import InvalidInput, NotFound, TooLarge

LONGEST_PATH = 1024
_DEEPEST = 32
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking: opening a FIFO without a writer would hang the bridge.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class PathRefused(InvalidInput):
    """The path leaves the task's data volume or is not a regular file."""

    code = "path-refused"
    default_hint = "name a plain file inside MUSTER_DATA_DIR, relative to it, without '..' and links"


def names_of(path: str) -> tuple[str, ...]:
    """Returns the components of a relative path.

    Raises:
        PathRefused: The path is absolute, empty, too long or too deep, or contains `..`, `.`, `//` or NUL.
    """
    if not path or len(path.encode()) > LONGEST_PATH:
        raise PathRefused(f"a path has 1 to {LONGEST_PATH} bytes")
    names = tuple(path.split("/"))
    if path.startswith("/") or "\0" in path or any(name in {"", ".", ".."} for name in names):
        raise PathRefused(f"{path[:200]!r} is not a path inside the data volume")
    if len(names) > _DEEPEST:
        raise PathRefused(f"{path[:200]!r} is deeper than {_DEEPEST} directories")
    return names


@contextlib.contextmanager
def open_inside(volume: Path, path: str, *, most_bytes: int) -> Iterator[int]:
    """Yields a descriptor of the file, open for reading.

    Args:
        volume: The task's data volume.
        path: Path relative to the volume.
        most_bytes: Maximum size of the file.

    Raises:
        PathRefused: The path leaves the volume, goes through a link, or is not a regular file.
        NotFound: There is no such file.
        TooLarge: The file is longer than `most_bytes`.
    """
    names = names_of(path)
    descriptor = os.open(volume, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    device = os.fstat(descriptor).st_dev
    try:
        for position, name in enumerate(names):
            last = position == len(names) - 1
            inner = _open(name, _FILE if last else _DIRECTORY, descriptor, path)
            os.close(descriptor)
            descriptor = inner
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise PathRefused(f"{path[:200]!r} is not a plain file")
        if status.st_dev != device:
            raise PathRefused(f"{path[:200]!r} lies on another file system")
        if status.st_size > most_bytes:
            raise TooLarge(
                f"{path[:200]!r} has {status.st_size} bytes, the limit is {most_bytes}",
                hint="write several smaller files",
            )
        yield descriptor
    finally:
        os.close(descriptor)


def _open(name: str, flags: int, parent: int, path: str) -> int:
    try:
        return os.open(name, flags, dir_fd=parent)
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise NotFound(f"there is no file {path[:200]!r} in the data volume") from error
        if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.EMLINK}:
            raise PathRefused(f"{path[:200]!r} goes through a link or something that is not a directory") from error
        raise PathRefused(f"{path[:200]!r} can't be opened: {error.strerror}") from error
