"""Atomic writes, synced directories and locks of files on a local disk."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from protocol.errors import Conflict
from protocol.runtime.randomness import token_hex


class FileLocked(Conflict):
    """Another process holds the lock of a file."""

    code = "locked"


def write_atomically(path: Path, content: bytes | str | Iterable[bytes | memoryview], *, mode: int = 0o600) -> None:
    """Replaces a file atomically: a crash leaves the old or the new content. The file is synced on return.

    Args:
        path: Path of the file; its directory exists.
        content: Bytes, text that is written as UTF-8, or pieces that are consumed as they are written.
        mode: Permissions of the new file, whatever the umask is.

    Raises:
        OSError: The disk is full or refuses; the old content is unchanged.
    """
    with atomic_file(path, mode=mode) as file:
        if isinstance(content, str):
            file.write(content.encode())
        else:
            file.writelines([content] if isinstance(content, bytes) else content)


@contextmanager
def atomic_file(path: Path, *, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """Opens a temporary file that replaces `path` when the block ends without an exception.

    The file and its directory entry are on disk after the block. After an exception the temporary file is removed. The
    temporary file's name is always `.NAME.part`, so the next write replaces the leftover of a crash. One process at a
    time may write `path`.
    """
    partial = path.with_name(f".{path.name}.part")
    descriptor = _open_new(partial, os.O_TRUNC, mode=mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_directory(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def create_atomically(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Creates a file atomically: it appears with its whole content.

    Raises:
        FileExistsError: There is a file at `path`; it is unchanged.
        OSError: The disk is full or refuses.
    """
    partial = path.with_name(f".{path.name}.{token_hex(8)}.part")  # several processes may try at a time
    descriptor = _open_new(partial, os.O_EXCL, mode=mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, path)  # unlike a rename, this fails if the name is taken
        sync_directory(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Writes a directory's entries to disk, so that a file's new name survives a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Locks an open file without waiting (`flock`); returns False if another process holds it.

    The kernel releases the lock when the last copy of the descriptor is closed, also after a crash.

    Raises:
        OSError: The file system does not support locks.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            return False
        raise
    return True


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Creates a lock file if needed and holds it until the block or the process ends.

    The file stays where it is: removing it would let two processes lock two files of the same name.

    Raises:
        FileLocked: Another process holds the lock.
        OSError: The file can't be created.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not try_lock(descriptor):
            raise FileLocked(f"another process holds {path}", hint="stop it first, or use another directory")
        yield
    finally:
        os.close(descriptor)


def _open_new(path: Path, flags: int, *, mode: int) -> int:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flags, mode)
    try:
        os.fchmod(descriptor, mode)  # the umask applies to os.open, and an existing file keeps its mode
    except BaseException:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise
    return descriptor
