"""Tracks which answer occupies which row of vLLM's batch.

vLLM keeps its batch dense: it moves an answer from the end into a freed row. vLLM reports these changes before each
step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class Row:
    """An answer in the batch.

    Args:
        ticket: Identifies the answer.
        drawn: vLLM's own list of the answer's tokens, which vLLM extends after each step.
    """

    ticket: int
    drawn: Sequence[int]


class Drawing(Protocol):
    """Chooses the next token of every row."""

    def draw(self, rows: Sequence[Row], states_bh: torch.Tensor, logits_bv: torch.Tensor) -> torch.Tensor:
        """Returns a token for each row, int64 [b].

        Args:
            rows: The answers of the rows.
            states_bh: Input of the output layer.
            logits_bv: Output of the output layer.
        """


class BatchRows:
    """The current rows of vLLM's batch."""

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}
        self._first: tuple[Row, ...] | None = None

    def update(
        self,
        *,
        removed: Iterable[int],
        added: Iterable[tuple[int, Row | None]],
        moved: Iterable[tuple[int, int, bool]],
    ) -> None:
        """Applies one change of the batch; vLLM's order is removals, additions, moves.

        Args:
            removed: Freed rows.
            added: New occupant of each row; None for a request that this engine did not make.
            moved: Source row, target row, and whether the two are swapped. Otherwise the source row is freed.
        """
        self._first = None
        for place in removed:
            self._rows.pop(place, None)
        for place, row in added:
            self._put(place, row)
        for source, target, swap in moved:
            going, coming = self._rows.pop(source, None), self._rows.pop(target, None)
            self._put(target, going)
            if swap:
                self._put(source, coming)

    def first(self, count: int) -> tuple[Row, ...]:
        """Returns the answers in the first `count` rows; the same tuple object if nothing has changed.

        Raises:
            LookupError: One of the rows is unknown.
        """
        if self._first is None or len(self._first) != count:
            self._first = tuple(self._rows[place] for place in range(count))
        return self._first

    def _put(self, place: int, row: Row | None) -> None:
        self._rows.pop(place, None)
        if row is not None:
            self._rows[place] = row
