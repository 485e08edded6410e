"""Wire format of a delta: a header, then segments until the target is complete.

Little-endian throughout. The header is `MUSTDLT1`, the base's size (u64) and the target's (u64). A segment is 24 bytes
and a payload: mode (u8), word (u8: bytes of a value, 1, 2, 4 or 8), planes (u8: bytes of a gap), zero (u8), length
(u32: bytes of target that it makes), changed (u32), payload's size (u32), offset in the base (u64).

    mode     payload, as one zstd frame                                target
    SAME     none                                                      the base's bytes
    SPARSE   planes of the gaps, planes of the changes                 the base's words, some changed
    DENSE    planes of the change of every word                        the base's words, all changed
    LITERAL  planes of the words                                       these words

A gap is the number of unchanged words before a changed one. A change is `new - old` modulo 2^bits, zigzag-coded so
that small changes in either direction are small numbers: the next bf16 value up or down is a 2 or a 1. Planes hold the
lowest bytes of all words, then their second bytes, and so on. High planes are nearly all zero, which zstd compresses to
almost nothing.

Applying a delta needs no knowledge of the files' format, and holds one segment in memory at a time.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from shardcast.delta.errors import BadDelta

MAGIC: Final = b"MUSTDLT1"
HEADER: Final = struct.Struct("<8sQQ")
SEGMENT: Final = struct.Struct("<BBBBIIIQ")

MOST_LENGTH: Final = 1 * 1024 * 1024
"""Most target bytes of a segment, which bounds the memory of both ends. Part of the format."""
MOST_PAYLOAD: Final = MOST_LENGTH + 64 * 1024
"""zstd adds less than 64 KiB to data that it can't compress."""
MOST_PLANES: Final = 3
"""Most bytes of a gap: a segment has at most 2^20 words."""

Bytes = NDArray[np.uint8]
Words = NDArray[np.unsignedinteger]
WORDS: Final[dict[int, type[np.unsignedinteger]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


class Mode(IntEnum):
    """Way in which a segment produces its part of the target."""

    SAME = 0
    SPARSE = 1
    DENSE = 2
    LITERAL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Header of a segment, 24 bytes."""

    mode: Mode
    word: int
    length: int
    offset: int
    planes: int = 0
    changed: int = 0
    payload: int = 0

    def pack(self) -> bytes:
        """Returns the 24 bytes."""
        return SEGMENT.pack(self.mode, self.word, self.planes, 0, self.length, self.changed, self.payload, self.offset)

    @classmethod
    def unpack(cls, data: bytes, *, base_size: int, room: int) -> Self:
        """Decodes and checks a header, before anything is allocated for its segment.

        Args:
            data: The 24 bytes.
            base_size: Size of the base in bytes.
            room: Bytes that the target still lacks.

        Raises:
            BadDelta: It is malformed, or exceeds the base or the target.
        """
        if len(data) != SEGMENT.size:
            raise BadDelta("the delta ends in the middle of a segment")
        number, word, planes, zero, length, changed, payload, offset = SEGMENT.unpack(data)
        if number not in list(Mode) or word not in WORDS or zero:
            raise BadDelta(f"a segment of mode {number} and words of {word} bytes")
        mode = Mode(number)
        if not 0 < length <= min(MOST_LENGTH, room) or length % word:
            raise BadDelta(f"a segment of {length} bytes where at most {min(MOST_LENGTH, room)} fit")
        needs_base = mode is not Mode.LITERAL
        if (needs_base and offset + length > base_size) or (not needs_base and offset):
            raise BadDelta(f"a segment of {length} bytes at {offset} of a base of {base_size}")
        sparse = mode is Mode.SPARSE
        if (sparse and not (0 < changed <= length // word and 0 < planes <= MOST_PLANES)) or (
            not sparse and (changed or planes)
        ):
            raise BadDelta(f"a segment with {changed} changes and {planes} planes of gaps")
        if (payload == 0) != (mode is Mode.SAME) or payload > MOST_PAYLOAD:
            raise BadDelta(f"a payload of {payload} bytes")
        return cls(mode=mode, word=word, length=length, offset=offset, planes=planes, changed=changed, payload=payload)

    @property
    def unpacked(self) -> int:
        """Returns the size of the decompressed payload in bytes."""
        match self.mode:
            case Mode.SAME:
                return 0
            case Mode.SPARSE:
                return self.changed * (self.planes + self.word)
            case _:
                return self.length


def to_planes(words: Words, planes: int) -> bytes:
    """Returns the lowest bytes of all words, then the second bytes, up to `planes`; higher ones must be zero."""
    table = words.astype(words.dtype.newbyteorder("<"), copy=False).view(np.uint8).reshape(len(words), -1)
    return np.ascontiguousarray(table[:, :planes].T).tobytes()


def from_planes(data: Bytes, *, word: int, planes: int) -> Words:
    """Returns the words of `planes` byte planes: the inverse of `to_planes`."""
    count = len(data) // planes
    table = np.zeros((count, word), dtype=np.uint8)
    table[:, :planes] = data.reshape(planes, count).T
    words: Words = table.reshape(-1).view(np.dtype(WORDS[word]).newbyteorder("<"))
    return words


def zigzag(change: Words) -> Words:
    """Encodes 0, -1, 1, -2, 2 … as 0, 1, 2, 3, 4 …, modulo the word's size."""
    bits = change.dtype.itemsize * 8
    coded: Words = (change << 1) ^ np.negative(change >> (bits - 1))
    return coded


def unzigzag(coded: Words) -> Words:
    """Decodes `zigzag`."""
    change: Words = (coded >> 1) ^ np.negative(coded & 1)
    return change
