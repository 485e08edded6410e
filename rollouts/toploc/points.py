"""What a proof is made of and compared with: the points of many chunks, in batches that are computed together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rollouts.toploc.selection import Bits, Indices, select

_BATCH = 64
"""Chunks that are computed together: enough to hide what a call costs, few enough to stay in the second cache."""

_SMALLEST_ROOM = 4096
"""Below it a chunk's values cost less than a call."""


@dataclass(frozen=True, slots=True)
class Points:
    """The points of B chunks, k of each.

    Args:
        places: (B,) which of all chunks these are.
        sizes: (B,) how many values each chunk has, its points and others.
        indices: (B, k) places of the points in their chunks, from 0.
        bits: (B, k) bit patterns of bfloat16.
    """

    places: NDArray[np.intp]
    sizes: NDArray[np.intp]
    indices: Indices
    bits: Bits


def points_of(stretches: Sequence[torch.Tensor], top_k: int) -> Iterator[Points]:
    """The points of every chunk of the (b, N) stretches: `top_k` of each, or all its values if it has fewer."""
    counts, sizes = np.array([stretch.shape for stretch in stretches], np.intp).reshape(-1, 2).T
    starts = np.cumsum(counts) - counts
    alike: dict[tuple[int, int], list[int]] = {}
    for number, (count, size) in enumerate(zip(counts.tolist(), sizes.tolist(), strict=True)):
        if count:
            alike.setdefault((min(top_k, size), _room(count, size, top_k)), []).append(number)
    by_count: dict[int, list[Points]] = {}
    for (k, room), numbers in alike.items():
        places = np.concatenate([np.arange(starts[number], starts[number] + counts[number]) for number in numbers])
        selected = select([stretches[number] for number in numbers], k, room=room)
        by_count.setdefault(k, []).append(Points(places, np.repeat(sizes[numbers], counts[numbers]), *selected))
    for parts in by_count.values():
        yield from _batches(parts)


def _room(count: int, size: int, top_k: int) -> int:
    """Chunks that stand alone are filled up to one of a few sizes, so that unlike ones are selected together."""
    return size if count > 1 or size < top_k else max(_SMALLEST_ROOM, 1 << (size - 1).bit_length())


def _batches(parts: Sequence[Points]) -> Iterator[Points]:
    places, sizes = np.concatenate([part.places for part in parts]), np.concatenate([part.sizes for part in parts])
    indices, bits = np.concatenate([part.indices for part in parts]), np.concatenate([part.bits for part in parts])
    for start in range(0, len(places), _BATCH):
        batch = slice(start, start + _BATCH)
        yield Points(places[batch], sizes[batch], indices[batch], bits[batch])
