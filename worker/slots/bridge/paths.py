"""Opens a file that a task names, without ever leaving the task's data volume.

The worker opens the path one component at a time with `O_NOFOLLOW`, starting at the volume's descriptor. So the file is
inside the volume even if the task changes the path meanwhile. If the worker checked the path before opening it, the
task could replace a directory by a link in between.
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
"""Maximum length of a path, in bytes."""
_DEEPEST = 32
"""Maximum number of components of a path."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK, because opening a FIFO without a writer would block the bridge.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class PathRefused(InvalidInput):
    """The path leaves the task's data volume, or does not name a regular file."""

    code = "path-refused"
    default_hint = "name a regular file inside MUSTER_DATA_DIR by a path relative to it, without '..' and links"


def names_of(path: str) -> tuple[str, ...]:
    """Returns the components of a relative path.

    Raises:
        PathRefused: The path is absolute, empty, too long or too deep, or contains `..`, `.`, `//` or NUL.
    """
    if not path or len(path.encode()) > LONGEST_PATH:
        raise PathRefused(f"a path must have 1 to {LONGEST_PATH} bytes")
    names = tuple(path.split("/"))
    if path.startswith("/") or "\0" in path or any(name in {"", ".", ".."} for name in names):
        raise PathRefused(f"{path[:200]!r} is not a path inside the data volume")
    if len(names) > _DEEPEST:
        raise PathRefused(f"{path[:200]!r} has more than {_DEEPEST} components")
    return names


@contextlib.contextmanager
def open_inside(volume: Path, path: str, *, most_bytes: int) -> Iterator[int]:
    """Context manager that opens a file in the volume for reading; yields its descriptor.

    Args:
        volume: Directory of the task's data volume.
        path: Path of the file, relative to the volume.
        most_bytes: Maximum size of the file in bytes.

    Raises:
        PathRefused: The path leaves the volume, goes through a link, or does not name a regular file.
        NotFound: The file does not exist.
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
            raise PathRefused(f"{path[:200]!r} is not a regular file")
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
