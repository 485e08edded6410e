"""Which answer stands in which row of vLLM's batch.

vLLM keeps its batch dense: who leaves is replaced by somebody from the end. It tells what changed before each step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One answer in the batch.

    Args:
        sample: Its number.
        drawn: vLLM's own list of its tokens so far, which vLLM extends after each step.
    """

    sample: int
    drawn: Sequence[int]


class BatchRows:
    """The rows as they are now."""

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
        """Follows one change of the batch; vLLM's order is removals, additions, moves.

        Args:
            removed: Rows that are free now.
            added: Who stands in which row, instead of whoever stood there; None for somebody that is not ours.
            moved: From where to where, and whether the two change places; if not, the first row is free then.
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
        """Returns who stands in the first `count` rows: the same tuple as the last time if nothing has changed since.

        Raises:
            LookupError: Not all of them are known.
        """
        if self._first is None or len(self._first) != count:
            self._first = tuple(self._rows[place] for place in range(count))
        return self._first

    def _put(self, place: int, row: Row | None) -> None:
        self._rows.pop(place, None)
        if row is not None:
            self._rows[place] = row
