"""Selects a proof's points: the k largest magnitudes among a chunk's bfloat16 values, ties to the lowest index.

Magnitudes are compared as integers, the lower 15 bits of the patterns. In a short chunk, each value becomes a distinct
integer key of magnitude and inverted index, and the k largest keys are the points. (Numpy partitions such integers with
AVX2 or AVX-512; on a processor without them, this is slower than folding.)

In a long chunk, partitioning keys would move the data too often. Instead the chunk is folded into short lanes, and the
lanes' maxima into groups. The k-th largest group maximum is called the floor. At least k values reach the floor,
because each of the k groups with the largest maxima contains such a value, and only few further values reach it. So the
chunk is read and written once, and only the values that reach the floor are examined again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

Bits = NDArray[np.uint16]
Indices = NDArray[np.int64]
Keys = NDArray[np.uint32]
"""15 bits of magnitude, then 17 bits of the inverted index (`_PLACES - 1 - index`)."""
Patterns = NDArray[np.int16]
"""Bit patterns of bfloat16 as signed integers; or the magnitudes of bfloat16 values, with -1 for padding."""

_MAGNITUDE = 0x7FFF
_INFINITY = 0x7F80
_NAN = 0x7FC0
_PLACES = 1 << 17
"""Number of indices that fit into a 32-bit key beside the magnitude."""
_SHORT = 1 << 14
"""Largest chunk whose points are selected by keys. For 8,192 values, selection by keys takes half the time of folding,
and for 28,672 values the same time."""
_GROUPS_PER_POINT = 4
_LANES_PER_GROUP = 8
_BATCH = 1 << 18
"""Values processed at a time: half a MiB of values, or one MiB of keys, stays in a core's L2 cache."""


def select(stretches: Sequence[torch.Tensor], k: int, *, room: int | None = None) -> tuple[Indices, Bits]:
    """Selects the points of every chunk.

    Args:
        stretches: Contiguous chunks, as (b, N) floating point values. float32 and float16 are first rounded to
            bfloat16, to nearest, ties to even.
        k: Points per chunk, at most N.
        room: The largest N, if N differs between stretches. Smaller chunks are padded with zeros at the end. Padding
            is never selected: zero is the smallest magnitude, and ties go to the lowest index.

    Returns:
        (B, k) indices into the chunks, by falling magnitude and then rising index, and (B, k) bit patterns of bfloat16,
        for all chunks in order. NaNs rank above infinity, and every NaN is returned as 0x7FC0.
    """
    size, count = room or stretches[0].shape[1], sum(stretch.shape[0] for stretch in stretches)
    if size <= _SHORT:
        most = min(max(1, _BATCH // size), count)
        keys = np.empty((most, size), np.uint32)
        found = [_by_keys(bits, k, keys[: len(bits)]) for bits in _batches(stretches, most, size)]
    else:
        lanes = _GROUPS_PER_POINT * _LANES_PER_GROUP * k
        depth = -(-size // lanes)
        most = min(max(1, _BATCH // (depth * lanes)), count)
        folded = np.full((most, depth, lanes), -1, np.int16)
        found = [_by_folding(bits, k, folded[: len(bits)]) for bits in _batches(stretches, most, size)]
    return np.concatenate([indices for indices, _ in found]), np.concatenate([bits for _, bits in found])


def _batches(stretches: Sequence[torch.Tensor], most: int, size: int) -> Iterator[Patterns]:
    """Yields at most `most` chunks at a time, as (B, size) patterns that are valid until the next iteration."""
    patterns = torch.empty(most, size, dtype=torch.bfloat16)
    filled = 0
    for stretch in stretches:
        for start in range(0, stretch.shape[0], most):
            part = stretch[start : start + most].detach()
            if filled and filled + len(part) > most:
                yield _as_integers(patterns[:filled])
                filled = 0
            if 2 * len(part) > most and part.shape[1] == size and _is_as_wanted(part):
                if filled:
                    yield _as_integers(patterns[:filled])
                    filled = 0
                yield _as_integers(part)
                continue
            patterns[filled : filled + len(part), : part.shape[1]].copy_(part)
            patterns[filled : filled + len(part), part.shape[1] :].zero_()
            filled += len(part)
    if filled:
        yield _as_integers(patterns[:filled])


def _is_as_wanted(part: torch.Tensor) -> bool:
    return part.dtype is torch.bfloat16 and part.device.type == "cpu" and part.is_contiguous()


def _as_integers(patterns: torch.Tensor) -> Patterns:
    integers: Patterns = patterns.view(torch.int16).numpy()
    return integers


def _by_keys(bits: Patterns, k: int, keys: Keys) -> tuple[Indices, Bits]:
    """Selects the k largest values of each short chunk by integer keys; `keys`, (B, size), is scratch space."""
    best = _largest_keys(bits, k, keys)
    if best.max() >= (_INFINITY + 1) * _PLACES:
        bits = np.where(bits & _MAGNITUDE > _INFINITY, np.int16(_NAN), bits)
        best = _largest_keys(bits, k, keys)
    indices = (_PLACES - 1 - (best & _PLACES - 1)).astype(np.int64)
    return indices, np.take_along_axis(bits, indices, axis=1).view(np.uint16)


def _largest_keys(bits: Patterns, k: int, keys: Keys) -> Keys:
    """Returns the k largest keys of each chunk in falling order; (B, k)."""
    size = bits.shape[1]
    np.copyto(keys, bits.view(np.uint16))
    keys <<= 32 - 15  # shifts the sign bit out
    keys |= np.arange(_PLACES - 1, _PLACES - 1 - size, -1, dtype=np.uint32)
    keys.partition(size - k, axis=1)
    return np.sort(keys[:, size - k :], axis=1)[:, ::-1]


def _by_folding(bits: Patterns, k: int, folded: Patterns) -> tuple[Indices, Bits]:
    """Selects from long chunks; `folded`, (B, depth, lanes), is scratch space with -1 as padding."""
    count, size = bits.shape
    magnitudes = folded.reshape(count, -1)[:, :size]
    np.bitwise_and(bits, _MAGNITUDE, out=magnitudes)
    peaks = _peaks(folded)
    tops = peaks.max(axis=1)
    if tops.max() > _INFINITY:
        bits = np.where(magnitudes > _INFINITY, np.int16(_NAN), bits)
        np.bitwise_and(bits, _MAGNITUDE, out=magnitudes)
        peaks = _peaks(folded)
        tops = peaks.max(axis=1)
    floors = np.maximum(np.partition(tops, -k, axis=1)[:, -k], 0)
    indices = _first_of_each(*_reaching(folded, peaks, floors), count, k)
    return indices, np.take_along_axis(bits, indices, axis=1).view(np.uint16)


def _peaks(folded: Patterns) -> Patterns:
    """Returns the maximum of each lane, (B, lanes per group, groups)."""
    peaks: Patterns = (folded.max(axis=1) if folded.shape[1] > 1 else folded).reshape(len(folded), _LANES_PER_GROUP, -1)
    return peaks


def _reaching(folded: Patterns, peaks: Patterns, floors: NDArray[np.int16]) -> tuple[Indices, Indices, Patterns]:
    """Returns chunk, index and magnitude of all values that reach their chunk's floor."""
    lanes = folded.shape[2]
    chunk, lane = np.divmod(np.flatnonzero(peaks.reshape(len(folded), lanes) >= floors[:, None]), lanes)
    magnitudes = folded[chunk, :, lane]
    reaching = np.flatnonzero(magnitudes >= floors[chunk, None])
    which, row = np.divmod(reaching, magnitudes.shape[1])
    return chunk[which], row * lanes + lane[which], magnitudes.ravel()[reaching]


def _first_of_each(chunk: Indices, index: Indices, magnitude: Patterns, count: int, k: int) -> Indices:
    """Returns the indices of the k largest candidates of each chunk, by falling magnitude, then rising index."""
    keys = chunk << 47 | (_MAGNITUDE - magnitude.astype(np.int64)) << 32 | index
    keys.sort()
    starts = np.searchsorted(keys, np.arange(count) << 47)
    best: Indices = keys[starts[:, None] + np.arange(k)] & 0xFFFFFFFF
    return best
