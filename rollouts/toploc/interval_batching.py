"""Regroups the rows of engine steps by sequence and cuts each sequence into the intervals of its proofs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from rollouts.toploc.points import SMALLEST_ROOM

Rows = NDArray[np.int16]
"""Bit patterns of bfloat16, (rows, hidden), as a numpy array: numpy moves rows several times faster than torch."""


@dataclass(slots=True, eq=False)
class Growing:
    """A sequence under generation.

    The engine's thread writes the first four fields, and the builder's thread writes the others.

    Args:
        rows: Number of rows received, except those of the current run of steps.
        since: Step at which the sequence joined the current run of steps.
        tokens: Number of rows that get proofs; None until the sequence is finished.
        dropped: Whether the sequence was discarded, so that it needs no proofs.
        ending: Whether all rows of the sequence were gathered or are being gathered.
        taken: Number of rows that were cut into intervals.
        proofs: Proofs of the sequence's intervals, in order.
        failure: Exception raised while building a proof.
        complete: Whether the sequence is finished and all its proofs are built.
        continues: Whether `left` is wanted, because another sequence may begin with these rows.
        left: Rows of the incomplete last interval, once the sequence is complete; None if there are none.
    """

    rows: int = 0
    since: int = 0
    tokens: int | None = None
    dropped: bool = False

    ending: bool = False
    taken: int = 0
    proofs: list[bytes] = field(default_factory=list)
    failure: Exception | None = None
    complete: bool = False
    continues: bool = False
    left: Rows | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive steps with the same sequences; a step is (len(live), hidden), and its row i belongs to `live[i]`."""

    live: tuple[Growing, ...]
    steps: list[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Rest:
    """Rows that do not fill a proof interval yet.

    The first `counts[0]` rows belong to `live[0]`, the next `counts[1]` to `live[1]`, and so on.
    """

    live: list[Growing]
    counts: list[int]
    rows: Rows

    @classmethod
    def of(cls, begun: Sequence[tuple[Growing, Rows]]) -> Rest:
        """Returns the rows with which sequences begin; there is at least one sequence."""
        live, rows = zip(*begun, strict=True)
        return cls([*live], [*map(len, rows)], np.concatenate(rows))

    def and_rows_of(self, other: Rest) -> Rest:
        """Returns these rows and those of other sequences."""
        rows = np.concatenate([self.rows, other.rows])
        return Rest([*self.live, *other.live], [*self.counts, *other.counts], rows)


@dataclass(frozen=True, slots=True)
class Cut:
    """Chunks of hidden states for which proofs can be built now, and the remaining rows.

    Args:
        stretches: Chunks, as for `PolynomialCodec.build`.
        sizes: Number of valid values in each chunk, as for `PolynomialCodec.build`.
        owners: The sequence of each chunk. A sequence's chunks are in order.
        rest: Rows kept for the next call.
    """

    stretches: list[torch.Tensor]
    sizes: list[list[int] | None]
    owners: list[Growing]
    rest: Rest | None


@dataclass(slots=True)
class _Places:
    """Row numbers in pieces; each piece belongs to one sequence."""

    pieces: list[NDArray[np.intp]] = field(default_factory=list)
    live: list[Growing] = field(default_factory=list)

    def add(self, one: Growing, piece: NDArray[np.intp]) -> None:
        self.pieces.append(piece)
        self.live.append(one)

    @property
    def counts(self) -> list[int]:
        return [len(piece) for piece in self.pieces]

    def of(self, rows: Rows) -> Rows:
        return rows.take(np.concatenate(self.pieces), axis=0)

    def leave(self, rows: Rows) -> None:
        """Gives each sequence that continues its own piece."""
        for one, piece in zip(self.live, self.pieces, strict=True):
            if one.continues:
                one.left = rows.take(piece, axis=0)

    def filled_up(self, rows: Rows, room: int) -> Rows:
        """Returns each piece, padded to `room` rows with the last of `rows`, which must be zero."""
        places = np.full((len(self.pieces), room), len(rows) - 1)
        places[np.arange(room) < np.array(self.counts)[:, None]] = np.concatenate(self.pieces)
        return rows.take(places.ravel(), axis=0)


class _Numbers(dict[Growing, int]):
    """Maps sequences to numbers, in order of first access."""

    def __missing__(self, one: Growing) -> int:
        self[one] = len(self)
        return self[one]


def gather(rest: Rest | None, runs: Sequence[Run], *, interval: int, surplus: int) -> Cut:
    """Cuts the rows kept from earlier calls, and the rows of some runs, into intervals.

    An unfinished sequence keeps its last `surplus` rows and any incomplete interval for the next call. A finished
    sequence keeps no rows, and its rows past `tokens` are dropped.
    """
    if rest is None and not runs:
        return Cut([], [], [], None)
    whole, ends, kept = _Places(), _Places(), _Places()
    for one, places in _sorted(rest, runs):
        if one.dropped:
            continue
        count = (one.tokens or 0) - one.taken if one.ending else max(0, len(places) - surplus)
        cut = count // interval * interval
        one.taken += cut
        if cut:
            whole.add(one, places[:cut])
        if not one.ending:
            kept.add(one, places[cut:])
        elif count > cut:
            ends.add(one, places[cut:count])
    rows = _rows(rest, runs)
    ends.leave(rows)
    hidden = rows.shape[1]
    stretches: list[torch.Tensor] = []
    sizes: list[list[int] | None] = []
    owners: list[Growing] = []
    if whole.live:
        stretches.append(_states(whole.of(rows)).view(-1, interval * hidden))
        sizes.append(None)
        owners.extend(
            one for one, count in zip(whole.live, whole.counts, strict=True) for _ in range(count // interval)
        )
    for room, some in _by_room(ends, interval, hidden).items():
        stretches.append(_states(some.filled_up(rows, room)).view(-1, room * hidden))
        sizes.append([count * hidden for count in some.counts])
        owners.extend(some.live)
    return Cut(stretches, sizes, owners, Rest(kept.live, kept.counts, kept.of(rows)) if kept.live else None)


def _by_room(ends: _Places, interval: int, hidden: int) -> dict[int, _Places]:
    """Groups incomplete last intervals by padded size.

    There are only a few padded sizes, so that the proofs of many intervals are built together.
    """
    least = -(-SMALLEST_ROOM // hidden)
    rooms: dict[int, _Places] = {}
    for one, piece in zip(ends.live, ends.pieces, strict=True):
        room = min(interval, max(least, 1 << (len(piece) - 1).bit_length()))
        rooms.setdefault(room, _Places()).add(one, piece)
    return rooms


def _sorted(rest: Rest | None, runs: Sequence[Run]) -> Iterable[tuple[Growing, NDArray[np.intp]]]:
    """Yields each sequence once, with the indices of its rows in the result of `_rows`, in step order."""
    numbers = _Numbers()
    number_of = numbers.__getitem__
    parts = []
    if rest:
        parts.append(np.repeat(np.array([*map(number_of, rest.live)], np.intp), rest.counts))
    for run in runs:
        parts.extend([np.array([*map(number_of, run.live)], np.intp)] * len(run.steps))
    owners = np.concatenate(parts)
    if len(numbers) <= 1 << 16:
        owners = owners.astype(np.uint16)  # numpy radix-sorts 16-bit integers
    order, begin = np.argsort(owners, kind="stable"), 0
    for one, end in zip(numbers, np.bincount(owners, minlength=len(numbers)).cumsum().tolist(), strict=True):
        yield one, order[begin:end]
        begin = end


def _rows(rest: Rest | None, runs: Sequence[Run]) -> Rows:
    """Returns all rows, rounded to bfloat16, followed by one zero row."""
    steps = [step for run in runs for step in run.steps]
    before = len(rest.rows) if rest else 0
    after = before + sum(len(run.live) * len(run.steps) for run in runs)
    hidden = steps[0].shape[1] if steps else rest.rows.shape[1] if rest else 0
    rows = torch.empty(after + 1, hidden, dtype=torch.bfloat16)
    every: Rows = rows.view(torch.int16).numpy()
    every[-1] = 0
    if rest:
        every[:before] = rest.rows
    if steps and steps[0].device.type == "cpu" and steps[0].dtype is torch.bfloat16:
        torch.cat(steps, out=rows[before:after])
    elif steps:
        rows[before:after].copy_(torch.cat(steps))
    return every


def _states(rows: Rows) -> torch.Tensor:
    return torch.from_numpy(rows).view(torch.bfloat16)
