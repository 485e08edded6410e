"""What a proof is made of and compared with: the points of many chunks, in batches that are computed together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rollouts.toploc.selection import Bits, Indices, select

_BATCH = 32
"""Chunks that are computed together: enough to hide what a call costs, few enough to stay in the second cache."""


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
    starts = np.cumsum([0, *map(len, stretches)])
    by_size: dict[int, list[int]] = {}
    for number, stretch in enumerate(stretches):
        if len(stretch):
            by_size.setdefault(stretch.shape[1], []).append(number)
    by_count: dict[int, list[Points]] = {}
    for size, numbers in by_size.items():
        k = min(top_k, size)
        places = np.concatenate([np.arange(starts[number], starts[number + 1]) for number in numbers])
        indices, bits = select([stretches[number] for number in numbers], k)
        by_count.setdefault(k, []).append(Points(places, np.full(len(places), size), indices, bits))
    for parts in by_count.values():
        yield from _batches(parts)


def _batches(parts: Sequence[Points]) -> Iterator[Points]:
    places, sizes = np.concatenate([part.places for part in parts]), np.concatenate([part.sizes for part in parts])
    indices, bits = np.concatenate([part.indices for part in parts]), np.concatenate([part.bits for part in parts])
    for start in range(0, len(places), _BATCH):
        batch = slice(start, start + _BATCH)
        yield Points(places[batch], sizes[batch], indices[batch], bits[batch])
