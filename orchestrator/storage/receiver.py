"""Receives an upload into a file: limits its size, verifies its hash, publishes it.

Each object has one temporary file, which the writer locks, also against other processes. So concurrent uploads of one
object can't take more disk space than its announced size. If a crash left the temporary file, the next upload of the
object deletes it. A complete file becomes the object atomically.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from pathlib import Path

from orchestrator.storage.interface import StorageFull, StorageUnavailable
from protocol.errors import Conflict, TooLarge, Unprocessable
from protocol.runtime.files import sync_path, try_lock

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_TRIES = 8
"""Maximum number of attempts to lock a temporary file that other processes create and delete at the same time."""
_DIRECTORIES = 5
"""Number of directories above an object's file, up to the store's root; the upload may have created each of them."""


class OtherBytes(Unprocessable):
    """The size or the SHA-256 of the received bytes differs from the announced one."""

    code = "other-bytes"


class UploadReceiver:
    """One upload in progress. All methods block; the caller must call `close` at the end.

    Args:
        place: Path of the temporary file.
        target: Path of the object's file.
        size: Announced size in bytes.
        sha256: Announced SHA-256 in hex.

    Raises:
        Conflict: Another upload of the same object is in progress.
        StorageFull: The disk is full.
    """

    def __init__(self, place: Path, target: Path, *, size: int, sha256: str) -> None:
        self._place, self._target = place, target
        self._size, self._sha256 = size, sha256
        self._hash = hashlib.sha256()
        self._received = 0
        self._descriptor = -1
        self._there = target.exists()
        if not self._there:
            try:
                self._descriptor = _locked(place)
            except OSError as error:
                raise storage_error(error) from error

    @property
    def size(self) -> int:
        """Announced size in bytes."""
        return self._size

    @property
    def received(self) -> int:
        """Bytes received so far."""
        return self._received

    @property
    def is_there(self) -> bool:
        """True if the object is stored already; the bytes are then verified but not written."""
        return self._there

    def write(self, data: bytes) -> None:
        """Writes the next bytes.

        Raises:
            TooLarge: More bytes arrived than were announced.
            StorageFull: The disk is full.
        """
        self._received += len(data)
        if self._received > self._size:
            raise TooLarge(f"more than the announced {self._size} bytes came", hint="announce the file's real size")
        self._hash.update(data)
        if self._there:  # the bytes of an object that is stored already are only hashed
            return
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError as error:
            raise storage_error(error) from error

    def finish(self) -> None:
        """Checks size and hash, and moves the object to its final path.

        Raises:
            OtherBytes: The size or the SHA-256 differs from the announced one.
            StorageFull: The disk is full.
        """
        if self._received != self._size:
            raise OtherBytes(
                f"{self._received} of the announced {self._size} bytes came", hint="send the whole file again"
            )
        if self._hash.hexdigest() != self._sha256:
            raise OtherBytes(
                f"the bytes have the SHA-256 {self._hash.hexdigest()}, announced was {self._sha256}",
                hint="the file was changed or damaged after it was hashed; announce it anew",
            )
        if self._there:
            return
        try:
            os.fsync(self._descriptor)
            self._target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                os.link(self._place, self._target)
            except FileExistsError:
                return  # another upload stored the same bytes meanwhile: the file's name is their hash
            _sync_directories(self._target)
        except OSError as error:
            raise storage_error(error) from error

    def close(self) -> None:
        """Removes the temporary file and releases the lock."""
        if self._descriptor >= 0:
            self._place.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


def sweep(places: Path, *, older_than_s: float) -> int:
    """Deletes temporary files that crashed processes left; returns the number of deleted files."""
    removed = 0
    for place in places.iterdir():
        try:
            if time.time() - place.stat().st_mtime > older_than_s:
                os.close(_locked(place))
                place.unlink()
                removed += 1
        except (OSError, Conflict):
            continue
    return removed


def storage_error(error: OSError) -> StorageFull | StorageUnavailable:
    """Converts an error of the disk into the error that the uploader receives."""
    if error.errno in _NO_ROOM:
        return StorageFull("the pool's store has no room for this file")
    return StorageUnavailable(f"the pool's store failed: {error.strerror}")


def _locked(place: Path) -> int:
    """Creates or opens an empty file, locks it, and returns its descriptor.

    After the lock it checks that the path still leads to the locked file.
    """
    for _ in range(_TRIES):
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if not try_lock(descriptor):
                os.close(descriptor)
                raise _busy()
            status = os.fstat(descriptor)
            # The previous holder of the lock may have deleted the path after this process opened the file.
            if status.st_ino == place.stat().st_ino:
                if status.st_size == 0 and status.st_nlink == 1:
                    return descriptor
                # A crashed process left this file. The file may be linked as an object already, so it must not be
                # written.
                place.unlink()
        except FileNotFoundError:
            pass
        os.close(descriptor)
    raise _busy()


def _busy() -> Conflict:
    return Conflict(
        "another client is sending the same object",
        hint="wait until that upload has ended, and try again",
        code="being-uploaded",
        retryable=True,
    )


def _sync_directories(target: Path) -> None:
    """Syncs the directories above the object, because the upload may have created them."""
    for directory in target.parents[:_DIRECTORIES]:
        sync_path(directory)
