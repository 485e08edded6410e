"""Computes the points of many chunks in batches, for building and comparing proofs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rollouts.toploc.selection import Bits, Indices, select

_BATCH = 128
"""Number of chunks computed together: enough to amortise the cost of a call, few enough for the core's cache."""

SMALLEST_ROOM = 4096
"""A stretch with a single chunk is padded to at least this many values. So single chunks of different sizes share one
call, which costs less than a call for each size."""


@dataclass(frozen=True, slots=True)
class Points:
    """The points of B chunks, with k points of each chunk.

    Args:
        places: (B,) positions of these chunks among all chunks.
        sizes: (B,) number of values in each chunk.
        indices: (B, k) indices of the points in their chunks, from 0.
        bits: (B, k) bit patterns of bfloat16.
    """

    places: NDArray[np.intp]
    sizes: NDArray[np.intp]
    indices: Indices
    bits: Bits


@dataclass(frozen=True, slots=True)
class _PointBatch:
    """A stretch, each chunk's position among all chunks, and each chunk's number of valid values."""

    stretch: torch.Tensor
    places: NDArray[np.intp]
    sizes: NDArray[np.intp]


def points_of(
    stretches: Sequence[torch.Tensor], top_k: int, *, sizes: Sequence[Sequence[int] | None] | None = None
) -> Iterator[Points]:
    """Yields the points of every chunk of the (b, N) stretches: `top_k` of each, or all values if there are fewer.

    Args:
        stretches: As for `PolynomialCodec.build`.
        top_k: Points per chunk.
        sizes: As for `PolynomialCodec.build`.
    """
    alike: dict[tuple[int, int], list[_PointBatch]] = {}
    for part in _parts(stretches, sizes, top_k):
        count, size = part.stretch.shape
        alike.setdefault((min(top_k, size), _room(count, size, top_k)), []).append(part)
    by_count: dict[int, list[Points]] = {}
    for (k, room), parts in alike.items():
        places, of_chunks = (
            np.concatenate(each) for each in zip(*((one.places, one.sizes) for one in parts), strict=True)
        )
        selected = select([part.stretch for part in parts], k, room=room)
        by_count.setdefault(k, []).append(Points(places, of_chunks, *selected))
    for points in by_count.values():
        yield from _batches(points)


def _parts(
    stretches: Sequence[torch.Tensor], sizes: Sequence[Sequence[int] | None] | None, top_k: int
) -> Iterator[_PointBatch]:
    """Yields non-empty stretches; yields padded chunks with fewer than `top_k` values separately, without padding."""
    begin = 0
    for number, stretch in enumerate(stretches):
        count, size = stretch.shape
        places, begin = np.arange(begin, begin + count), begin + count
        given = None if sizes is None else sizes[number]
        of_chunks = np.full(count, size) if given is None else np.array(given, np.intp)
        if (of_chunks < min(top_k, size)).any():
            for at, own in enumerate(of_chunks.tolist()):
                yield _PointBatch(stretch[at : at + 1, :own], places[at : at + 1], of_chunks[at : at + 1])
        elif count:
            yield _PointBatch(stretch, places, of_chunks)


def _room(count: int, size: int, top_k: int) -> int:
    """Returns the size to which chunks are padded.

    Single chunks have one of a few padded sizes, so that chunks of different sizes share one selection.
    """
    return size if count > 1 or size < top_k else max(SMALLEST_ROOM, 1 << (size - 1).bit_length())


def _batches(parts: Sequence[Points]) -> Iterator[Points]:
    places, sizes = np.concatenate([part.places for part in parts]), np.concatenate([part.sizes for part in parts])
    indices, bits = np.concatenate([part.indices for part in parts]), np.concatenate([part.bits for part in parts])
    step = -(
        -len(places) // -(-len(places) // _BATCH)
    )  # equal batches: a small one costs nearly as much as a large one
    for start in range(0, len(places), step):
        batch = slice(start, start + step)
        yield Points(places[batch], sizes[batch], indices[batch], bits[batch])
