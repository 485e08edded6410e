"""Atomic writes, syncs and file locks on a local disk."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from protocol.errors import Conflict, InvalidInput
from protocol.runtime.randomness import token_hex


class FileLocked(Conflict):
    """Another process holds the lock of a file."""

    code = "locked"


class NewerFormat(Conflict):
    """A newer release wrote a file in a format that this release does not know."""

    code = "newer-format"


def check_format(found: object, *, known: int, what: str) -> int:
    """Checks the format's version that a file states, before anything is written; returns the version.

    Args:
        found: The stated version; None for a file of a release that stated none, which counts as version 0.
        known: Version of this release. Older ones are known, too.
        what: Name of the file in the error.

    Raises:
        NewerFormat: The version is newer, or is no number.
    """
    if found is None:
        return 0
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= known:
        raise NewerFormat(
            f"{what} has format {str(found)[:40]!r}, and this release reads formats up to {known}",
            hint="a newer release wrote it: start that release again; nothing was changed",
        )
    return found


def read_limited(path: Path, *, most: int, what: str, hint: str = "") -> bytes:
    """Returns the content of a file that should be small.

    Args:
        path: The file.
        most: Maximum number of bytes.
        what: Name of the file in errors.
        hint: Next step for the user in errors.

    Raises:
        InvalidInput: The file can't be read, or is longer.
    """
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise InvalidInput(f"{what} {path} can't be read: {error.strerror}", hint=hint) from error
    if len(data) > most:
        raise InvalidInput(f"{what} {path} has more than {most} bytes", hint=hint)
    return data


def write_atomically(path: Path, content: bytes | str | Iterable[bytes | memoryview], *, mode: int = 0o600) -> None:
    """Replaces a file atomically: a crash leaves the old or the new content.

    The file is synced to disk on return.

    Args:
        path: Path of the file. Its directory must exist.
        content: Bytes; text, which is written as UTF-8; or an iterable of pieces, which is consumed during the write.
        mode: Permissions of the new file. The umask does not apply.

    Raises:
        OSError: The disk is full, or the write failed. The old content is unchanged.
    """
    with atomic_file(path, mode=mode) as file:
        if isinstance(content, str):
            file.write(content.encode())
        else:
            file.writelines([content] if isinstance(content, bytes) else content)


@contextmanager
def atomic_file(path: Path, *, mode: int = 0o600, sync: bool = True) -> Iterator[IO[bytes]]:
    """Opens a temporary file that replaces `path` when the block ends without an exception.

    The file and its directory entry are synced to disk after the block. After an exception the temporary file is
    removed. Its name is always `.NAME.part`, so the next write replaces a temporary file that a crash has left, also
    for programs that have it open. Only one process at a time may write `path`.

    Args:
        path: Path of the file. Its directory must exist.
        mode: Permissions of the new file. The umask does not apply.
        sync: False if the caller syncs the disk itself, once for many files.
    """
    partial = path.with_name(f".{path.name}.part")
    partial.unlink(missing_ok=True)
    descriptor = _open_new(partial, os.O_EXCL, mode=mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
        if sync:
            sync_path(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def create_atomically(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """Creates a file atomically: it appears with its complete content or not at all.

    Raises:
        FileExistsError: A file exists at `path`; it is unchanged.
        OSError: The disk is full, or the write failed.
    """
    partial = path.with_name(f".{path.name}.{token_hex(8)}.part")  # several processes may try at the same time
    descriptor = _open_new(partial, os.O_EXCL, mode=mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(partial, path)  # unlike a rename, this fails if the name is taken
        sync_path(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def sync_path(path: Path) -> None:
    """Syncs a file or a directory to disk; a synced directory keeps its files' new names after a power failure."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Locks an open file with `flock` without waiting; returns whether it succeeded.

    It fails if another process holds the lock.

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
    """Holds a lock file until the block or the process ends; creates the file if necessary.

    The file is never removed. Otherwise a second process could hold a lock on the removed file while a third one locks
    a new file of the same name.

    Raises:
        FileLocked: Another process holds the lock.
        OSError: The lock file can't be created.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if not try_lock(descriptor):
            raise FileLocked(
                f"another process holds the lock {path}", hint="stop that process first, or use another directory"
            )
        yield
    finally:
        os.close(descriptor)


def _open_new(path: Path, flags: int, *, mode: int) -> int:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | flags, mode)
    try:
        os.fchmod(descriptor, mode)  # the umask applies to os.open
    except BaseException:
        os.close(descriptor)
        path.unlink(missing_ok=True)
        raise
    return descriptor
