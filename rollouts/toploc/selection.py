"""The points of a proof: the k largest magnitudes among a chunk's bfloat16 values, ties to the lowest index.

Magnitudes compare as the lower 15 bits of the patterns, as integers. A chunk is folded into short lanes, the lanes'
maxima into groups; the k-th largest of the groups' maxima is a floor that at least k values reach, and few more do. So
a chunk is read once and written once, and only the lanes that reach the floor are looked at again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

Bits = NDArray[np.uint16]
Indices = NDArray[np.int64]

_MAGNITUDE = 0x7FFF
_INFINITY = 0x7F80
_NAN = 0x7FC0
_GROUPS_PER_POINT = 4
_LANES_PER_GROUP = 8
_BATCH = 1 << 18
"""Values that are selected from at a time: half a mebibyte of them, which stays in a core's second cache."""


def select(stretches: Sequence[torch.Tensor], k: int) -> tuple[Indices, Bits]:
    """The points of every chunk.

    Args:
        stretches: Chunks that lie together in memory, as (b, N) floating point values; N is the same throughout.
            float32 and float16 are rounded to bfloat16 first, to nearest, ties to even.
        k: Points per chunk, at most N.

    Returns:
        (B, k) indices into the chunks, by falling magnitude and then rising index, and (B, k) bit patterns of bfloat16,
        for all chunks in their order. NaNs are above infinity, and all of them are given as 0x7FC0.
    """
    size = stretches[0].shape[1]
    lanes = _GROUPS_PER_POINT * _LANES_PER_GROUP * k
    depth = -(-size // lanes)
    step = max(1, _BATCH // (depth * lanes))
    folded = np.full((min(step, sum(stretch.shape[0] for stretch in stretches)), depth, lanes), -1, np.int16)
    found = [_select(batch.view(torch.int16).numpy(), k, folded[: len(batch)]) for batch in _batches(stretches, step)]
    return np.concatenate([indices for indices, _ in found]), np.concatenate([bits for _, bits in found])


def _batches(stretches: Sequence[torch.Tensor], step: int) -> Iterator[torch.Tensor]:
    """At most `step` chunks at a time, in bfloat16. Stretches of less than half of that are copied together."""
    waiting: list[torch.Tensor] = []
    room = step
    for stretch in stretches:
        for start in range(0, stretch.shape[0], step):
            part = stretch[start : start + step].detach()
            if waiting and (part.shape[0] > room or 2 * room <= step):
                yield _together(waiting)
                waiting, room = [], step
            waiting.append(part.to("cpu", torch.bfloat16))
            room -= part.shape[0]
    if waiting:
        yield _together(waiting)


def _together(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return parts[0].contiguous() if len(parts) == 1 else torch.cat(list(parts))


def _select(bits: NDArray[np.int16], k: int, folded: NDArray[np.int16]) -> tuple[Indices, Bits]:
    """Selects, with room for the magnitudes as (B, depth, lanes), whose surplus places hold -1."""
    (count, size), lanes = bits.shape, folded.shape[2]
    magnitudes = folded.reshape(count, -1)[:, :size]
    np.bitwise_and(bits, _MAGNITUDE, out=magnitudes)
    peaks = folded.max(axis=1)
    if peaks.max() > _INFINITY:
        bits = np.where(magnitudes > _INFINITY, np.int16(_NAN), bits)
        np.bitwise_and(bits, _MAGNITUDE, out=magnitudes)
        peaks = folded.max(axis=1)
    tops = peaks.reshape(count, _LANES_PER_GROUP, -1).max(axis=1)
    floors = np.maximum(np.partition(tops, -k, axis=1)[:, -k], 0)
    chunk, lane = np.divmod(np.flatnonzero(peaks >= floors[:, None]), lanes)
    candidates = folded[chunk, :, lane]
    reaching = np.flatnonzero(candidates >= floors[chunk, None])
    which, row = np.divmod(reaching, candidates.shape[1])
    indices = _first_of_each(chunk[which], candidates.ravel()[reaching], row * lanes + lane[which], count, k)
    return indices, np.take_along_axis(bits, indices, axis=1).view(np.uint16)


def _first_of_each(
    chunk: NDArray[np.intp], magnitude: NDArray[np.int16], index: NDArray[np.intp], count: int, k: int
) -> Indices:
    """The k best candidates of each chunk, by one sort of keys that hold chunk, falling magnitude and rising index."""
    keys = chunk << 47 | (_MAGNITUDE - magnitude.astype(np.int64)) << 32 | index
    keys.sort()
    starts = np.searchsorted(keys, np.arange(count) << 47)
    best: Indices = keys[starts[:, None] + np.arange(k)] & 0xFFFFFFFF
    return best
