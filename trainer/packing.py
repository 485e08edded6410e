"""Several sequences in one row, without a view of each other.

Short sequences waste most of a padded batch. Here they stand one behind another in rows of a bounded length; positions
begin anew with each, and the mask lets a token see its own sequence's earlier tokens and nothing else, so that a packed
sequence has the states it would have alone. Nothing here loads torch.

Shapes: R rows, T tokens of the longest row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.errors import InvalidInput

NOTHING = -1
"""Segment id of padding."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Position of a sequence: `tokens[row, start : start + length]`."""

    row: int
    start: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedRows:
    """Sequences in rows.

    Args:
        tokens: int64 [R, T]; 0 where nothing is.
        positions: int64 [R, T], of each token in its own sequence; 0 where nothing is.
        sequences: int64 [R, T], the number of the sequence that each token is of; `NOTHING` where nothing is.
        places: Of each sequence, in the order in which they were given.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    sequences: NDArray[np.int64]
    places: tuple[Placed, ...]

    @property
    def mask(self) -> NDArray[np.bool_]:
        """Returns the attention mask, [R, T, T]: earlier tokens of the same sequence."""
        same = self.sequences[:, :, None] == self.sequences[:, None, :]
        return np.tril(same)


def pack(sequences: Sequence[Sequence[int]], *, row_tokens: int) -> PackedRows:
    """Puts sequences into as few rows as first-fit-decreasing finds; equal sequences are always packed alike.

    Args:
        sequences: Tokens, at least one each.
        row_tokens: The most tokens of a row. Rows are as long as the longest one needs.

    Raises:
        InvalidInput: There is no sequence, or one that is empty or longer than a row.
    """
    lengths = [len(sequence) for sequence in sequences]
    if not lengths or min(lengths) < 1 or max(lengths) > row_tokens:
        raise InvalidInput(
            f"{len(lengths)} sequences of {min(lengths, default=0)} to {max(lengths, default=0)} tokens for rows of "
            f"{row_tokens}",
            hint="give longer rows, or leave longer sequences out",
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
    """First-fit-decreasing: the longest first, each into the first row with room. No length is above `row_tokens`."""
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
