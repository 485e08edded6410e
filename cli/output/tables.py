"""Fits a table into the width of a terminal. Pure functions; `cli.output.printing` prints the lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

GAP = 2
"""Spaces between two columns."""
_LEAST = 3
"""Width to which every column may be shortened if nothing else makes the table fit."""
_HEX = re.compile(r"0x[0-9a-fA-F]{40,}")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a listing.

    Args:
        name: Name in JSON and in the first line of tab-separated output; the terminal shows spaces for underscores.
        drop: Rank for leaving the column out when the table is too wide: the highest goes first. 0: never.
        least: Width to which the column's texts may be shortened. 0: they are not shortened.
    """

    name: str
    drop: int = 0
    least: int = 0


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns of one listing, in order. Every listing declares its columns as a constant of its module."""

    columns: tuple[Column, ...]

    @classmethod
    def of(cls, *columns: Column | str) -> Columns:
        """Returns columns; a text stands for a column that is neither left out nor shortened."""
        return cls(tuple(Column(one) if isinstance(one, str) else one for one in columns))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(one.name for one in self.columns)


@dataclass(frozen=True, slots=True)
class Fitted:
    """A table as lines of text.

    Args:
        lines: The header and one line per row.
        dropped: Names of the columns that were left out, in order.
        cut: Whether a text was cut; shortened addresses and hashes do not count.
    """

    lines: list[str]
    dropped: tuple[str, ...]
    cut: bool


def fit(
    columns: Columns, rows: Sequence[Sequence[str]], *, numeric: Sequence[bool], width: int | None = None
) -> Fitted:
    """Returns the table's lines, none wider than `width` cells of the terminal.

    If the full table is too wide, addresses and hashes are shortened to `0x1234…abcd`, then texts down to the least
    width of their columns, and then columns are left out by their rank.

    Args:
        columns: The columns.
        rows: One text per column, without line breaks.
        numeric: Whether the column holds numbers, which are aligned to the right.
        width: Cells of the terminal; None for no limit.
    """
    titles = [name.replace("_", " ").upper() for name in columns.names]
    chosen = list(range(len(titles)))
    table = [titles, *map(list, rows)]
    widths = _widths(table)
    if width is not None and _total(widths, chosen) > width:
        table = [titles, *([short_hex(cell) for cell in row] for row in rows)]
        natural = _widths(table)
        widths, chosen = _narrowed(columns, natural, width)
    return Fitted(
        [_line(row, widths, chosen, numeric) for row in table],
        tuple(name for place, name in enumerate(columns.names) if place not in chosen),
        any(widths[place] < wide for place, wide in enumerate(_widths(table)) if place in chosen),
    )


def short_hex(text: str) -> str:
    """Shortens every address and hash in a text to `0x1234…abcd`."""
    return _HEX.sub(lambda found: f"{found[0][:6]}…{found[0][-4:]}", text)


def _narrowed(columns: Columns, natural: Sequence[int], width: int) -> tuple[list[int], list[int]]:
    """Returns the width of each column and the columns that stay."""
    chosen = list(range(len(natural)))
    while True:
        least = [
            min(wide, max(one.least, 1)) if one.least else wide
            for one, wide in zip(columns.columns, natural, strict=True)
        ]
        if _total(least, chosen) <= width:
            return _shrunk(natural, least, chosen, width), chosen
        rank = max(columns.columns[place].drop for place in chosen)
        if rank == 0 or len(chosen) == 1:
            return _shrunk(natural, [min(wide, _LEAST) for wide in natural], chosen, width), chosen
        chosen.remove(max(place for place in chosen if columns.columns[place].drop == rank))


def _shrunk(natural: Sequence[int], least: Sequence[int], chosen: Sequence[int], width: int) -> list[int]:
    """Takes cells from the widest column that may lose some until the table fits."""
    widths = list(natural)
    excess = _total(widths, chosen) - width
    while excess > 0:
        loosest = max(chosen, key=lambda place: (widths[place] > least[place], widths[place]))
        if widths[loosest] <= least[loosest]:
            break
        others = [widths[place] for place in chosen if place != loosest and widths[place] > least[place]]
        step = min(excess, widths[loosest] - max(least[loosest], min(max(others, default=0), widths[loosest] - 1)))
        widths[loosest] -= step
        excess -= step
    return widths


def _widths(table: Sequence[Sequence[str]]) -> list[int]:
    return [max(cell_len(cell) for cell in column) for column in zip(*table, strict=True)]


def _total(widths: Sequence[int], chosen: Sequence[int]) -> int:
    return sum(widths[place] for place in chosen) + GAP * (len(chosen) - 1)


def _line(row: Sequence[str], widths: Sequence[int], chosen: Sequence[int], numeric: Sequence[bool]) -> str:
    cells = []
    for place in chosen:
        cell, wide = row[place], widths[place]
        if cell_len(cell) > wide:
            cell = set_cell_size(cell, wide - 1).rstrip() + "…"
        padding = " " * (wide - cell_len(cell))
        cells.append(padding + cell if numeric[place] else cell + padding)
    return (" " * GAP).join(cells).rstrip()
