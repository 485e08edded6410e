"""Packs several sequences into one row, with a mask that separates them.

In a batch of short sequences, most positions would be padding. Packed rows have a bounded length. Positions restart
with each sequence, and a token attends only to earlier tokens of its own sequence, so the hidden states are the same as
without packing. This module does not import torch.

Shapes: R rows, T tokens of the longest row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.errors import InvalidInput

NOTHING = -1
"""Sequence number of unused positions."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Location of a sequence: `tokens[row, start : start + length]`."""

    row: int
    start: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedRows:
    """Packed sequences.

    Args:
        tokens: int64 [R, T]; 0 at unused positions.
        positions: int64 [R, T], position of each token in its sequence; 0 at unused positions.
        sequences: int64 [R, T], sequence number of each token; `NOTHING` at unused positions.
        places: Location of each sequence, in the order of the input.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    sequences: NDArray[np.int64]
    places: tuple[Placed, ...]

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Attention mask [R, T, T]: tokens of the same sequence up to the token itself."""
        same = self.sequences[:, :, None] == self.sequences[:, None, :]
        return np.tril(same)


def pack(sequences: Sequence[Sequence[int]], *, row_tokens: int) -> PackedRows:
    """Packs sequences by first-fit-decreasing; the result is deterministic.

    Args:
        sequences: Token sequences, none empty.
        row_tokens: Maximum tokens of a row; the actual length of all rows is that of the fullest row.

    Raises:
        InvalidInput: There is no sequence, or a sequence is empty or longer than a row.
    """
    lengths = [len(sequence) for sequence in sequences]
    if not lengths or min(lengths) < 1 or max(lengths) > row_tokens:
        raise InvalidInput(
            f"there are {len(lengths)} sequences of {min(lengths, default=0)} to {max(lengths, default=0)} tokens, and "
            f"rows of {row_tokens}",
            hint="give longer rows, or leave out sequences that are empty or longer than a row",
        )
    places = place(lengths, row_tokens)
    shape = (1 + max(spot.row for spot in places), max(spot.start + spot.length for spot in places))
    tokens, positions = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    numbers = np.full(shape, NOTHING, dtype=np.int64)
    for number, (sequence, spot) in enumerate(zip(sequences, places, strict=True)):
        span = slice(spot.start, spot.start + spot.length)
        tokens[spot.row, span] = sequence
        positions[spot.row, span] = np.arange(spot.length)
        numbers[spot.row, span] = number
    return PackedRows(tokens=tokens, positions=positions, sequences=numbers, places=tuple(places))


def place(lengths: Sequence[int], row_tokens: int) -> list[Placed]:
    """Places the longest sequences first, each in the first row with room. No length may exceed `row_tokens`."""
    used: list[int] = []
    places: dict[int, Placed] = {}
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        length = lengths[number]
        row = next((row for row, taken in enumerate(used) if taken + length <= row_tokens), len(used))
        if row == len(used):
            used.append(0)
        places[number] = Placed(row, used[row], length)
        used[row] += length
    return [places[number] for number in range(len(lengths))]
