"""Wire format of a delta: a header, then segments until the target is complete.

All integers are little-endian. The header has three fields:

    8 bytes  `MUSTDLT1`
    u64      size of the base in bytes
    u64      size of the target in bytes

A word is one value of a tensor, as an unsigned integer. Each segment produces the next part of the target. A segment
begins with 24 bytes:

    u8   mode
    u8   word: bytes per word; 1, 2, 4 or 8
    u8   planes: bytes per gap in the payload; 0 unless the mode is SPARSE
    u8   reserved: always 0
    u32  length: bytes of the target that the segment produces
    u32  changed: number of changed words; 0 unless the mode is SPARSE
    u32  payload: size of the compressed payload in bytes
    u64  offset: position in the base of the bytes that the segment uses; 0 if the mode is LITERAL

The payload follows, as one zstd frame. The frame contains a list of numbers in byte planes:

    mode     payload                                                   produced bytes
    SAME     none                                                      the bytes of the base
    SPARSE   the gap before each changed word, then all changes        the words of the base, some of them changed
    DENSE    the change of every word                                  the words of the base, changed
    LITERAL  the words                                                 these words

A gap is the number of unchanged words before a changed word. A change is `new - old` modulo 2^bits, in zigzag encoding:
small changes in either direction become small numbers. For example, a change of +1 becomes 2, and a change of -1
becomes 1. Byte planes are the lowest bytes of all numbers, then their second bytes, and so on. The high planes are
nearly all zero, so zstd compresses them well.

A reader can apply a delta without knowing the format of the file, and holds one segment in memory at a time.
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
"""Maximum number of bytes that a segment produces. The number is part of the wire format, and bounds the memory that
publishers and readers use."""
MOST_PAYLOAD: Final = MOST_LENGTH + 64 * 1024
"""Maximum size of a compressed payload in bytes; zstd adds less than 64 KiB to data that it can't compress."""
MOST_PLANES: Final = 3
"""Maximum number of bytes per gap. Three bytes are enough, because a segment has at most 2^20 words."""

Bytes = NDArray[np.uint8]
Words = NDArray[np.unsignedinteger]
WORDS: Final[dict[int, type[np.unsignedinteger]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
"""NumPy type of a word for each number of bytes per word."""


class Mode(IntEnum):
    """Way in which a segment produces its part of the target; see the module's docstring."""

    SAME = 0
    SPARSE = 1
    DENSE = 2
    LITERAL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Header of a segment; the module's docstring describes the fields."""

    mode: Mode
    word: int
    length: int
    offset: int
    planes: int = 0
    changed: int = 0
    payload: int = 0

    def pack(self) -> bytes:
        """Encodes the header into its 24 bytes."""
        return SEGMENT.pack(self.mode, self.word, self.planes, 0, self.length, self.changed, self.payload, self.offset)

    @classmethod
    def unpack(cls, data: bytes, *, base_size: int, room: int) -> Self:
        """Decodes and checks an untrusted header, before any memory is allocated for its segment.

        Args:
            data: The 24 bytes of the header.
            base_size: Size of the base in bytes.
            room: Number of bytes that the target still needs.

        Raises:
            BadDelta: The header is malformed, or the segment would exceed the base or the target.
        """
        if len(data) != SEGMENT.size:
            raise BadDelta("the delta ends in the middle of a segment")
        number, word, planes, zero, length, changed, payload, offset = SEGMENT.unpack(data)
        if number not in list(Mode) or word not in WORDS or zero:
            raise BadDelta(f"unknown format of a segment: mode {number}, words of {word} bytes, reserved byte {zero}")
        mode = Mode(number)
        if not 0 < length <= min(MOST_LENGTH, room) or length % word:
            raise BadDelta(
                f"a segment of {length} bytes must be whole words of {word} bytes, "
                f"and have 1 to {min(MOST_LENGTH, room)} bytes"
            )
        needs_base = mode is not Mode.LITERAL
        if (needs_base and offset + length > base_size) or (not needs_base and offset):
            raise BadDelta(
                f"a segment of mode {mode.name} can't use {length} bytes at {offset} of a base of {base_size} bytes"
            )
        sparse = mode is Mode.SPARSE
        if (sparse and not (0 < changed <= length // word and 0 < planes <= MOST_PLANES)) or (
            not sparse and (changed or planes)
        ):
            raise BadDelta(
                f"a segment of mode {mode.name} with {length // word} words can't have "
                f"{changed} changes and {planes} planes of gaps"
            )
        if (payload == 0) != (mode is Mode.SAME) or payload > MOST_PAYLOAD:
            raise BadDelta(
                f"a segment of mode {mode.name} can't have a payload of {payload} bytes; the limit is {MOST_PAYLOAD}"
            )
        return cls(mode=mode, word=word, length=length, offset=offset, planes=planes, changed=changed, payload=payload)

    @property
    def unpacked(self) -> int:
        """Returns the size in bytes that the payload must have after decompression."""
        match self.mode:
            case Mode.SAME:
                return 0
            case Mode.SPARSE:
                return self.changed * (self.planes + self.word)
            case _:
                return self.length


def to_planes(words: Words, planes: int) -> bytes:
    """Converts words to byte planes.

    The planes are the lowest bytes of all words, then their second bytes, and so on.

    Args:
        words: The words.
        planes: Number of planes to keep; the higher bytes of all words must be zero.
    """
    table = words.astype(words.dtype.newbyteorder("<"), copy=False).view(np.uint8).reshape(len(words), -1)
    return np.ascontiguousarray(table[:, :planes].T).tobytes()


def from_planes(data: Bytes, *, word: int, planes: int) -> Words:
    """Converts byte planes to words; the inverse of `to_planes`.

    Args:
        data: The planes, one after another.
        word: Number of bytes per word.
        planes: Number of planes; the higher bytes of all words become zero.
    """
    count = len(data) // planes
    table = np.zeros((count, word), dtype=np.uint8)
    table[:, :planes] = data.reshape(planes, count).T
    words: Words = table.reshape(-1).view(np.dtype(WORDS[word]).newbyteorder("<"))
    return words


def zigzag(change: Words) -> Words:
    """Encodes the changes 0, -1, 1, -2, 2 … as 0, 1, 2, 3, 4 …; changes are words modulo 2^bits."""
    bits = change.dtype.itemsize * 8
    coded: Words = (change << 1) ^ np.negative(change >> (bits - 1))
    return coded


def unzigzag(coded: Words) -> Words:
    """Decodes changes that `zigzag` encoded."""
    change: Words = (coded >> 1) ^ np.negative(coded & 1)
    return change
