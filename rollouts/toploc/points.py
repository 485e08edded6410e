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
    alike: dict[tuple[int, int], list[tuple[int, torch.Tensor]]] = {}
    for number, stretch in enumerate(stretches):
        if counts[number]:
            padded = _padded(stretch, top_k)
            alike.setdefault((min(top_k, stretch.shape[1]), padded.shape[1]), []).append((number, padded))
    by_count: dict[int, list[Points]] = {}
    for (k, _), numbered in alike.items():
        numbers = [number for number, _ in numbered]
        places = np.concatenate([np.arange(starts[number], starts[number] + counts[number]) for number in numbers])
        chunk_sizes = np.repeat(sizes[numbers], counts[numbers])
        by_count.setdefault(k, []).append(Points(places, chunk_sizes, *select([each for _, each in numbered], k)))
    for parts in by_count.values():
        yield from _batches(parts)


def _padded(stretch: torch.Tensor, top_k: int) -> torch.Tensor:
    """A chunk that stands alone, filled up with zeros to one of a few sizes, so that unlike ones are selected together.

    Zeros at the end are never selected before `top_k` values that are there: nothing is smaller, and ties go to the
    lowest index.
    """
    count, size = stretch.shape
    if count > 1 or size < top_k:
        return stretch
    room = max(_SMALLEST_ROOM, 1 << (size - 1).bit_length())
    return torch.nn.functional.pad(stretch.detach(), (0, room - size))


def _batches(parts: Sequence[Points]) -> Iterator[Points]:
    places, sizes = np.concatenate([part.places for part in parts]), np.concatenate([part.sizes for part in parts])
    indices, bits = np.concatenate([part.indices for part in parts]), np.concatenate([part.bits for part in parts])
    for start in range(0, len(places), _BATCH):
        batch = slice(start, start + _BATCH)
        yield Points(places[batch], sizes[batch], indices[batch], bits[batch])
