"""Receives an upload: limits its size, verifies its hash, syncs it to disk, and publishes it atomically.

Each object has one temporary file, which the writer locks, also against other processes. So uploads in progress never
take more disk than was announced. The next upload of the object deletes a temporary file that a crash left.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from pathlib import Path

from orchestrator.storage.interface import StorageFull, StorageUnavailable
from protocol.errors import Conflict, TooLarge, Unprocessable
from protocol.runtime.files import sync_directory, try_lock

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_TRIES = 8
_DIRECTORIES = 5
"""Number of directories above an object, up to the store's root; each may be new."""


class OtherBytes(Unprocessable):
    """The received bytes differ from the announced ones."""

    code = "other-bytes"


class UploadReceiver:
    """One upload in progress. All methods block; the caller must call `close` at the end.

    Args:
        place: Path of the temporary file.
        target: Final path.
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
        """True if the object is stored already; the received bytes are then only verified."""
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
        if self._there:  # the stored object stays; these bytes are only hashed
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
            OtherBytes: The bytes differ from the announced ones.
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
                return  # another upload stored the object, whose name is its hash
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
    """Deletes old temporary files that crashes left; returns their number."""
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
    """Converts a disk error into the error for the uploader."""
    if error.errno in _NO_ROOM:
        return StorageFull("the pool's store has no room for this file")
    return StorageUnavailable(f"the pool's store failed: {error.strerror}")


def _locked(place: Path) -> int:
    """Opens and locks an empty file, and checks that the locked file is still the one at this path."""
    for _ in range(_TRIES):
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if not try_lock(descriptor):
                os.close(descriptor)
                raise _busy()
            status = os.fstat(descriptor)
            # The previous holder may have removed the name between our open and our lock.
            if status.st_ino == place.stat().st_ino:
                if status.st_size == 0 and status.st_nlink == 1:
                    return descriptor
                # A crashed process left this file. It may be linked as an object already, so it is not written again.
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
    """Syncs the directory entries of the object and of directories that may be new."""
    for directory in target.parents[:_DIRECTORIES]:
        sync_directory(directory)
