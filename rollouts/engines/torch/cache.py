"""Keys and values of the rows of a batch, each token's at the place of its position.

So there is no padding to get wrong: a row is seen up to its own position, wherever the others are, and what an earlier
answer left behind in it lies beyond that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache

_STRETCH = 64
"""Room grows by at least so many positions, and by half of itself."""
_SEEN = 16
"""Attention sees a multiple of so many places, which its kernels like; those past a row's position are masked."""

Layer = tuple[torch.Tensor, torch.Tensor]
"""Keys and values, [..., heads, positions, width]."""


def layers_of(cache: DynamicCache) -> list[Layer]:
    """Returns what a filled cache of transformers holds, [rows, heads, positions, width] each."""
    layers: Any = cache.layers  # of a class that has these two whenever attention filled it
    return [(layer.keys, layer.values) for layer in layers]


class CacheFull(MemoryError):
    """The cache would need more memory than it may take."""


class RowCache(Cache):
    """A cache for one token per row and step.

    Args:
        layers: For each layer, keys and values of any one token, [1, heads, 1, width] each: their shape and type count.
        rows: The most rows.
        budget: The most bytes that it may take.
    """

    def __init__(self, layers: Sequence[Layer], *, rows: int, budget: int) -> None:
        super().__init__(layers=[])
        self._pairs = [tuple(one.new_zeros(rows, one.shape[1], 0, one.shape[3]) for one in pair) for pair in layers]
        self._budget = budget
        self._room = 0
        self._seen = 0
        self._places = self._numbers = torch.empty(0, dtype=torch.int64)
        self._bytes_per_place = sum(
            rows * one.shape[1] * one.shape[3] * one.itemsize for pair in layers for one in pair
        )

    def aim(self, positions: torch.Tensor, *, furthest: int) -> torch.Tensor:
        """Says where the next step's tokens stand, and makes room for them.

        Args:
            positions: int64 [b]; row r's token is at `positions[r]`. Rows from b on are free.
            furthest: The largest of them.

        Returns:
            What each token sees, bool [b, 1, 1, s].

        Raises:
            NoRoom: More memory would be needed than the cache may take.
        """
        self.reserve(furthest + 1)
        self._seen = min(self._room, -(-(furthest + 1) // _SEEN) * _SEEN)
        self._places = positions
        self._numbers = torch.arange(len(positions), device=positions.device)
        places = torch.arange(self._seen, device=positions.device)
        return (places[None, :] <= positions[:, None])[:, None, None, :]

    def reserve(self, length: int) -> None:
        """Makes room for sequences of this length.

        Raises:
            NoRoom: More memory would be needed than the cache may take.
        """
        if length <= self._room:
            return
        room = -(-max(length, self._room * 3 // 2) // _STRETCH) * _STRETCH
        if room * self._bytes_per_place > self._budget:
            room = length
        if room * self._bytes_per_place > self._budget:
            raise CacheFull(f"{room} positions need {room * self._bytes_per_place >> 20} MiB of {self._budget >> 20}")
        for at, pair in enumerate(self._pairs):
            self._pairs[at] = tuple(_longer(one, room) for one in pair)
        self._room = room

    def put(self, rows: Sequence[int], layers: Sequence[Layer], *, length: int) -> None:
        """Copies a prompt's keys and values, [heads, positions, width], into rows; its first `length` positions."""
        self.reserve(length)
        for pair, given in zip(self._pairs, layers, strict=True):
            for ours, theirs in zip(pair, given, strict=True):
                ours[list(rows), :, :length] = theirs[:, :length]

    def move(self, source: int, target: int, *, length: int) -> None:
        """Copies the first `length` positions of a row over those of another."""
        for pair in self._pairs:
            for one in pair:
                one[target, :, :length] = one[source, :, :length]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> Layer:
        """Takes one token's keys and values for each row, [b, heads, 1, width]; returns all that the rows hold."""
        del args, kwargs  # some layers say more, for caches that need it
        keys, values = self._pairs[layer_idx]
        keys[self._numbers, :, self._places] = key_states[:, :, 0]
        values[self._numbers, :, self._places] = value_states[:, :, 0]
        rows = len(self._numbers)
        return keys[:rows, :, : self._seen], values[:rows, :, : self._seen]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """What models ask who do not use the positions and the mask that they are given."""
        del layer_idx  # all layers hold the same
        return self._seen


def _longer(one: torch.Tensor, room: int) -> torch.Tensor:
    """The same with more places, which are zero: a masked place counts nothing only if what it holds is finite."""
    longer = one.new_zeros(one.shape[0], one.shape[1], room, one.shape[3])
    longer[:, :, : one.shape[2]] = one
    return longer
