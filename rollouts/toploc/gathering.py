"""Rows as steps of an engine bring them, and as proofs want them: each sequence's own, in order, cut into intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

Rows = NDArray[np.int16]
"""Bit patterns of bfloat16, (rows, hidden); numpy moves whole rows several times faster than torch does."""


@dataclass(slots=True, eq=False)
class Growing:
    """A sequence that grows. The engine's thread writes the first half, the thread that builds the second.

    Args:
        rows: How many it got, but for those since it joined the steps that go on.
        since: The step at which it joined them.
        tokens: How many of these count; None until it is finished.
        dropped: Whether nobody wants its proofs any more.
        ending: Whether all its rows are among those that are being gathered, or were.
        taken: How many rows were cut into intervals.
        proofs: Those of its intervals, in order.
        failure: Why one has none.
        complete: Whether it is finished and nothing is left to build.
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


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive steps of the same sequences: each step's rows are (len(live), hidden), row i of `live[i]`."""

    live: tuple[Growing, ...]
    steps: list[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Rest:
    """Rows that belong to no whole interval yet: `counts[i]` of them for `live[i]`, one sequence after the other."""

    live: list[Growing]
    counts: list[int]
    rows: Rows


@dataclass(frozen=True, slots=True)
class Cut:
    """What can be built.

    Args:
        stretches: Chunks, as a codec takes them.
        owners: Whose each chunk is. A sequence's chunks stand in their order.
        rest: What is kept for the next time.
    """

    stretches: list[torch.Tensor]
    owners: list[Growing]
    rest: Rest | None


@dataclass(slots=True)
class _Places:
    """Where rows stand that belong together: piece after piece, each of one sequence."""

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


def gather(rest: Rest | None, runs: Sequence[Run], *, interval: int, surplus: int) -> Cut:
    """Cuts the rest of earlier rows, and the rows of some runs, into intervals.

    A sequence that goes on keeps its last `surplus` rows and what makes no whole interval. One that ends leaves
    nothing, and its rows past `tokens` are forgotten.
    """
    if rest is None and not runs:
        return Cut([], [], None)
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
    owners = [one for one, count in zip(whole.live, whole.counts, strict=True) for _ in range(count // interval)]
    stretches = _stretches(whole, ends, rows, interval)
    return Cut(stretches, owners + ends.live, Rest(kept.live, kept.counts, kept.of(rows)) if kept.live else None)


def _sorted(rest: Rest | None, runs: Sequence[Run]) -> Iterable[tuple[Growing, NDArray[np.intp]]]:
    """Each sequence once, and the places of its rows among all rows, in order."""
    numbers: dict[Growing, int] = {one: number for number, one in enumerate(rest.live)} if rest else {}
    parts = [np.repeat(np.arange(len(rest.live)), rest.counts)] if rest else []
    for run in runs:
        of_step = [numbers.setdefault(one, len(numbers)) for one in run.live]
        parts.append(np.tile(np.array(of_step, np.intp), len(run.steps)))
    owners = np.concatenate(parts)
    if len(numbers) <= 1 << 16:
        owners = owners.astype(np.uint16)  # which numpy sorts in one pass over them
    counts = np.bincount(owners, minlength=len(numbers))
    return zip(numbers, np.split(np.argsort(owners, kind="stable"), np.cumsum(counts)[:-1]), strict=True)


def _rows(rest: Rest | None, runs: Sequence[Run]) -> Rows:
    """All rows. What types they had is no matter: bfloat16 is in all of them."""
    steps = [step for run in runs for step in run.steps]
    if not steps:
        return rest.rows if rest else np.empty((0, 0), np.int16)
    before = len(rest.rows) if rest else 0
    rows = torch.empty(before + sum(map(len, steps)), steps[0].shape[1], dtype=torch.bfloat16)
    if steps[0].device.type == "cpu":
        torch.cat(steps, out=rows[before:])
    else:
        rows[before:].copy_(torch.cat(steps))
    every: Rows = rows.view(torch.int16).numpy()
    if rest:
        every[:before] = rest.rows
    return every


def _stretches(whole: _Places, ends: _Places, rows: Rows, interval: int) -> list[torch.Tensor]:
    stretches = []
    if whole.live:
        stretches.append(_states(whole.of(rows)).view(-1, interval * rows.shape[1]))
    if ends.live:
        flat, sizes = _states(ends.of(rows)).view(1, -1), [count * rows.shape[1] for count in ends.counts]
        stretches.extend(flat.split(sizes, dim=1))
    return stretches


def _states(rows: Rows) -> torch.Tensor:
    return torch.from_numpy(rows).view(torch.bfloat16)
