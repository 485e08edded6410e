"""Builds the delta between two files.

The builder reads one segment at a time, and uses some tens of MiB of memory.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import zstandard

from shardcast.delta.errors import DeltaTooLarge
from shardcast.delta.layout import SpanPair, pairs, spans
from shardcast.delta.segments import HEADER, MAGIC, MOST_LENGTH, WORDS, Mode, Segment, Words, to_planes, zigzag

LEVEL: Final = 1
"""zstd compression level. Higher levels take several times as long and save about one percent."""

SPARSE_BELOW: Final = 0.5
"""Largest share of changed values with which a segment lists the positions of the changed values. Above this share, a
list with the change of every value is smaller."""


@dataclass(slots=True)
class BuiltDelta:
    """Summary of a delta that was built."""

    size: int = 0
    """Size of the delta in bytes."""
    target_size: int = 0
    """Size of the target in bytes."""
    sha256: str = ""
    """SHA-256 of the target as 64 hex digits."""
    values: int = 0
    """Number of values that were compared with the base; in a file of unknown format a value is a byte."""
    changed: int = 0
    """Number of compared values that differ."""
    modes: dict[Mode, int] = field(default_factory=lambda: dict.fromkeys(Mode, 0))
    """Number of segments of each mode."""


def build_delta(*, base: Path, target: Path, delta: Path, limit: int | None = None) -> BuiltDelta:
    """Writes the delta that turns `base` into `target`.

    Both files must not change during the call.

    Args:
        base: The old file, which readers have.
        target: The new file.
        delta: The file to write; an existing one is replaced. The function deletes the delta after an error.
        limit: Maximum size of the delta in bytes; None sets no limit.

    Raises:
        DeltaTooLarge: The delta would exceed `limit`.
        OSError: A file can't be read or written; the disk may be full.
    """
    try:
        with base.open("rb") as old, target.open("rb") as new, delta.open("wb") as out:
            return _Builder(old, new, out, limit=limit).build(base, target)
    except BaseException:
        delta.unlink(missing_ok=True)
        raise


class _Builder:
    def __init__(self, old: BinaryIO, new: BinaryIO, out: BinaryIO, *, limit: int | None) -> None:
        self._old, self._new, self._out = old.fileno(), new.fileno(), out
        self._limit = limit
        self._zstd = zstandard.ZstdCompressor(level=LEVEL, write_checksum=False, write_content_size=True)
        self._built = BuiltDelta()
        self._sha256 = hashlib.sha256()

    def build(self, base: Path, target: Path) -> BuiltDelta:
        base_size, target_size = os.fstat(self._old).st_size, os.fstat(self._new).st_size
        self._built.target_size = target_size
        self._write(HEADER.pack(MAGIC, base_size, target_size))
        for pair in pairs(spans(base, size=base_size), spans(target, size=target_size)):
            for piece in _pieces(pair):
                self._segment(piece)
        self._built.sha256 = self._sha256.hexdigest()
        return self._built

    def _segment(self, piece: SpanPair) -> None:
        new = _read(self._new, piece.start, piece.length)
        self._sha256.update(new)  # the pieces cover the target completely and in order
        if piece.base is None:
            self._emit(Mode.LITERAL, piece, to_planes(_words(new, piece.word), piece.word))
            return
        old = _read(self._old, piece.base, piece.length)
        self._built.values += piece.length // piece.word
        if old == new:
            self._emit(Mode.SAME, piece)
            return
        before, after = _words(old, piece.word), _words(new, piece.word)
        places = np.flatnonzero(before != after)
        self._built.changed += len(places)
        if len(places) > SPARSE_BELOW * len(after):
            self._emit(Mode.DENSE, piece, to_planes(zigzag(after - before), piece.word))
            return
        gaps = (np.diff(places, prepend=-1) - 1).astype(np.uint32)
        planes = max(1, (int(gaps.max()).bit_length() + 7) // 8)
        changes = zigzag(after[places] - before[places])
        payload = to_planes(gaps, planes) + to_planes(changes, piece.word)
        self._emit(Mode.SPARSE, piece, payload, planes=planes, changed=len(places))

    def _emit(self, mode: Mode, piece: SpanPair, payload: bytes = b"", *, planes: int = 0, changed: int = 0) -> None:
        packed = self._zstd.compress(payload) if payload else b""
        segment = Segment(
            mode=mode,
            word=piece.word,
            length=piece.length,
            offset=piece.base or 0,
            planes=planes,
            changed=changed,
            payload=len(packed),
        )
        self._built.modes[mode] += 1
        self._write(segment.pack() + packed)

    def _write(self, data: bytes) -> None:
        self._built.size += len(data)
        if self._limit is not None and self._built.size > self._limit:
            raise DeltaTooLarge(f"the delta has more than {self._limit} bytes")
        self._out.write(data)


def _pieces(pair: SpanPair) -> Iterator[SpanPair]:
    for at in range(0, pair.length, MOST_LENGTH):
        yield SpanPair(
            start=pair.start + at,
            length=min(MOST_LENGTH, pair.length - at),
            base=None if pair.base is None else pair.base + at,
            word=pair.word,
        )


def _read(descriptor: int, start: int, length: int) -> bytes:
    data = os.pread(descriptor, length, start)
    if len(data) != length:
        raise OSError(f"a file became shorter while its delta was built: {len(data)} of {length} bytes at {start}")
    return data


def _words(data: bytes, word: int) -> Words:
    return np.frombuffer(data, dtype=np.dtype(WORDS[word]).newbyteorder("<"))
