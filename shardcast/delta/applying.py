"""Applies an untrusted delta to a file.

Every size in the delta is checked before it is used.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

import numpy as np
import zstandard

from shardcast.delta.errors import BadDelta
from shardcast.delta.segments import HEADER, MAGIC, SEGMENT, WORDS, Bytes, Mode, Segment, Words, from_planes, unzigzag

_MOST_WINDOW = 8 * 1024 * 1024
"""Maximum size of the zstd window in bytes, which bounds the decompressor's memory; segments need less."""


def apply_delta(*, base: Path, delta: Path, target: Path, size: int) -> str:
    """Applies `delta` to `base`, and writes the result to `target`.

    The delta is untrusted, so the caller must compare the returned SHA-256 with the target's signed SHA-256. The
    function uses some tens of MiB of memory, and writes at most `size` bytes.

    Args:
        base: The file that the delta was built on.
        delta: The delta.
        target: The file to write, which must not exist. The function deletes the target after an error.
        size: Size of the target in bytes, from the signed manifest.

    Returns:
        SHA-256 of the target as 64 hex digits.

    Raises:
        BadDelta: The bytes are not a delta of this base, or would produce a file of another size.
        FileExistsError: The target exists.
        OSError: A file can't be read or written. A full disk is detected before the first write.
    """
    with base.open("rb") as old, delta.open("rb") as changes, target.open("xb") as new:
        try:
            return _Application(old, changes, new, size=size).run()
        except BaseException:
            target.unlink()
            raise


class _Application:
    def __init__(self, old: BinaryIO, changes: BinaryIO, new: BinaryIO, *, size: int) -> None:
        self._old, self._changes, self._new = old.fileno(), changes, new
        self._base_size = os.fstat(self._old).st_size
        self._size = size
        self._zstd = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)

    def run(self) -> str:
        self._header()
        if self._size:
            os.posix_fallocate(self._new.fileno(), 0, self._size)
        sha256 = hashlib.sha256()
        missing = self._size
        while missing:
            segment = Segment.unpack(self._changes.read(SEGMENT.size), base_size=self._base_size, room=missing)
            made = self._make(segment)
            sha256.update(made)
            self._new.write(made)
            missing -= segment.length
        if self._changes.read(1):
            raise BadDelta("the delta continues after the target's end")
        return sha256.hexdigest()

    def _header(self) -> None:
        data = self._changes.read(HEADER.size)
        if len(data) != HEADER.size or not data.startswith(MAGIC):
            raise BadDelta("the bytes do not start with the header of a delta")
        _, base_size, size = HEADER.unpack(data)
        if base_size != self._base_size:
            raise BadDelta(f"the delta is for a base of {base_size} bytes, not of {self._base_size}")
        if size != self._size:
            raise BadDelta(f"the delta is for a target of {size} bytes, not of {self._size}")

    def _make(self, segment: Segment) -> memoryview:
        payload = self._payload(segment)
        if segment.mode is Mode.LITERAL:
            return _bytes_of(from_planes(payload, word=segment.word, planes=segment.word))
        before = os.pread(self._old, segment.length, segment.offset)
        if len(before) != segment.length:
            raise BadDelta("the base became shorter while the delta was applied")
        if segment.mode is Mode.SAME:
            return memoryview(before)
        words = np.frombuffer(before, dtype=np.dtype(WORDS[segment.word]).newbyteorder("<"))
        if segment.mode is Mode.DENSE:
            return _bytes_of(words + unzigzag(from_planes(payload, word=segment.word, planes=segment.word)))
        return _bytes_of(_changed(words.copy(), payload, segment))

    def _payload(self, segment: Segment) -> Bytes:
        packed = self._changes.read(segment.payload)
        if len(packed) != segment.payload:
            raise BadDelta("the delta ends in the middle of a payload")
        if not packed:
            return np.empty(0, dtype=np.uint8)
        try:
            # The size in the frame is checked first, because zstd allocates that much memory even if the size exceeds
            # `max_output_size`.
            if zstandard.frame_content_size(packed) != segment.unpacked:
                raise BadDelta(f"the header of a payload does not say that it will unpack to {segment.unpacked} bytes")
            unpacked = self._zstd.decompress(packed, max_output_size=segment.unpacked, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise BadDelta(f"zstd can't unpack a payload: {error}") from None
        if len(unpacked) != segment.unpacked:
            raise BadDelta(f"a payload does not unpack to {segment.unpacked} bytes")
        return np.frombuffer(unpacked, dtype=np.uint8)


def _changed(words: Words, payload: Bytes, segment: Segment) -> Words:
    """Applies the changes of a sparse segment to the words in place, and returns the words."""
    cut = segment.changed * segment.planes
    gaps = from_planes(payload[:cut], word=4, planes=segment.planes)
    places = np.cumsum(gaps + np.uint32(1), dtype=np.int64) - 1
    if places[-1] >= len(words):
        raise BadDelta(f"a segment changes word {places[-1]} of {len(words)}")
    words[places] += unzigzag(from_planes(payload[cut:], word=segment.word, planes=segment.word))
    return words


def _bytes_of(words: Words) -> memoryview:
    return np.ascontiguousarray(words).view(np.uint8).data
