"""Key-value cache of a batch, which stores each token at the index of its position.

So the cache contains no padding. A row's attention sees only positions up to the row's newest token. Keys and values
that an earlier answer left in the row lie beyond that position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache

_STRETCH = 64
"""If the memory budget allows, the cache grows by at least half of its size, to a multiple of this many positions."""
_SEEN = 16
"""Attention sees a multiple of this many positions, because its kernels are faster with such lengths; positions beyond
a row's newest token are masked.
"""

Layer = tuple[torch.Tensor, torch.Tensor]
"""Keys and values, [..., heads, positions, width]."""


def layers_of(cache: DynamicCache) -> list[Layer]:
    """Returns the layers of a filled transformers cache, [rows, heads, positions, width] each."""
    layers: Any = cache.layers  # Any: `keys` and `values` exist only once attention has filled the layer
    return [(layer.keys, layer.values) for layer in layers]


class CacheFull(MemoryError):
    """The cache would exceed its memory budget."""


class RowCache(Cache):
    """A cache for one token per row and step.

    Args:
        layers: For each layer, keys and values of any token, [1, heads, 1, width] each; they define shapes and types.
        rows: Maximum rows; the cache has as many as were used at once, or fewer if memory is short.
        budget: Maximum bytes.
    """

    def __init__(self, layers: Sequence[Layer], *, rows: int, budget: int) -> None:
        super().__init__(layers=[])
        self._pairs = [tuple(one.new_zeros(0, one.shape[1], 0, one.shape[3]) for one in pair) for pair in layers]
        self._budget = budget
        self._most_rows = rows
        self._rows = self._room = 0
        self._seen = 0
        self._places = self._numbers = torch.empty(0, dtype=torch.int64)
        self._bytes_per_place = sum(one.shape[1] * one.shape[3] * one.itemsize for pair in layers for one in pair)

    @property
    def most_positions(self) -> int:
        """Maximum number of positions of a sequence that has the cache alone."""
        return self._budget // self._bytes_per_place

    def aim(self, positions: torch.Tensor, *, furthest: int) -> torch.Tensor:
        """Sets the positions of the next step's tokens, and grows the cache if needed.

        Args:
            positions: int64 [b]; row r's token is at `positions[r]`. Rows b and above are unused.
            furthest: The largest position.

        Returns:
            The mask of positions that each token sees, bool [b, 1, 1, s].

        Raises:
            CacheFull: The cache would exceed its memory budget.
        """
        self.reserve(furthest + 1, rows=len(positions))
        self._seen = min(self._room, -(-(furthest + 1) // _SEEN) * _SEEN)
        self._places = positions
        self._numbers = torch.arange(len(positions), device=positions.device)
        places = torch.arange(self._seen, device=positions.device)
        return (places[None, :] <= positions[:, None])[:, None, None, :]

    def reserve(self, length: int, *, rows: int) -> None:
        """Resizes the cache for this many sequences of this length.

        Raises:
            CacheFull: The cache would exceed its memory budget.
        """
        if length <= self._room and rows <= self._rows:
            return
        more_rows = self._rows if rows <= self._rows else min(self._most_rows, max(rows, 2 * self._rows))
        more_room = self._room
        if length > self._room:
            more_room = -(-max(length, self._room * 3 // 2) // _STRETCH) * _STRETCH
        if self._size(more_rows, more_room) > self._budget:
            more_rows, more_room = rows, max(length, self._room)  # rows that are not in use any more are dropped
        if (size := self._size(more_rows, more_room)) > self._budget:
            raise CacheFull(
                f"{more_room} positions need {size >> 20} MiB for {more_rows} answers, "
                f"but the cache may use {self._budget >> 20} MiB"
            )
        for at, pair in enumerate(self._pairs):
            self._pairs[at] = tuple(_resized(one, more_rows, more_room) for one in pair)
        self._rows, self._room = more_rows, more_room

    def _size(self, rows: int, room: int) -> int:
        return rows * room * self._bytes_per_place

    def put(self, row: int, layers: Sequence[Layer], *, length: int) -> None:
        """Copies the first `length` positions of a prompt's keys and values, [heads, positions, width], into a row.

        Raises:
            CacheFull: The cache would exceed its memory budget.
        """
        self.reserve(length, rows=row + 1)
        for pair, given in zip(self._pairs, layers, strict=True):
            for ours, theirs in zip(pair, given, strict=True):
                ours[row, :, :length] = theirs[:, :length]

    def move(self, source: int, target: int, *, length: int) -> None:
        """Copies the first `length` positions of one row to another."""
        for pair in self._pairs:
            for one in pair:
                one[target, :, :length] = one[source, :, :length]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> Layer:
        """Stores one token's keys and values for each row, [b, heads, 1, width]; returns all visible positions."""
        del args, kwargs  # some layers pass extra arguments for other kinds of cache
        keys, values = self._pairs[layer_idx]
        keys[self._numbers, :, self._places] = key_states[:, :, 0]
        values[self._numbers, :, self._places] = value_states[:, :, 0]
        rows = len(self._numbers)
        return keys[:rows, :, : self._seen], values[:rows, :, : self._seen]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns the number of visible positions, for models that ignore the given positions and the given mask."""
        del layer_idx  # all layers hold the same positions
        return self._seen


def _resized(one: torch.Tensor, rows: int, room: int) -> torch.Tensor:
    """Returns a copy with more or fewer rows, and with as many positions or more.

    The new positions are zero, because attention becomes NaN if the values at masked positions are not finite.
    """
    resized = one.new_zeros(rows, one.shape[1], room, one.shape[3])
    resized[: one.shape[0], :, : one.shape[2]] = one[:rows]
    return resized
