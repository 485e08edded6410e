"""Opening a file that a task names, without being led out of the task's own volume.

The path is walked one name at a time from the volume's own descriptor, and no link is followed at any of them: what is
opened is in the volume whatever the task changes meanwhile. Checking a path first and opening it afterwards would leave
a moment to swap a directory for a link.
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
# Non-blocking, or opening a FIFO that nobody writes to would hang the bridge.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class PathRefused(InvalidInput):
    """The path leaves the task's data volume, or names something that is not a plain file."""

    code = "path-refused"
    default_hint = "name a plain file inside MUSTER_DATA_DIR, relative to it, without '..' and links"


def names_of(path: str) -> tuple[str, ...]:
    """The names along a relative path.

    Raises:
        PathRefused: It is absolute, empty, too long or too deep, or has `..`, `.`, an empty name or NUL in it.
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
    """Gives a descriptor of the file, open for reading.

    Args:
        volume: The task's data volume.
        path: Relative to it.
        most_bytes: The file's limit.

    Raises:
        PathRefused: The path escapes, goes through a link, or names no plain file.
        NotFound: There is no such file.
        TooLarge: It is longer than `most_bytes`.
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
            raise PathRefused(f"{path[:200]!r} goes through a link or something that is no directory") from error
        raise PathRefused(f"{path[:200]!r} can't be opened: {error.strerror}") from error
