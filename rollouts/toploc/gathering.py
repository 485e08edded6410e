"""Rows as steps of an engine bring them, and as proofs want them: each sequence's own, in order, cut into intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(slots=True, eq=False)
class Growing:
    """A sequence that grows. The engine's thread writes the first half, the thread that builds the second.

    Args:
        number: Its own, never used again.
        rows: How many it got.
        tokens: How many of these count; None until it is finished.
        dropped: Whether nobody wants its proofs any more.
        ending: Whether all its rows are among those that are being gathered, or were.
        taken: How many rows were cut into intervals.
        proofs: Those of its intervals, in order.
        failure: Why one has none.
        complete: Whether it is finished and nothing is left to build.
    """

    number: int
    rows: int = 0
    tokens: int | None = None
    dropped: bool = False

    ending: bool = False
    taken: int = 0
    proofs: list[bytes] = field(default_factory=list)
    failure: Exception | None = None
    complete: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """One row for each of some sequences: (len(live), hidden)."""

    live: Sequence[Growing]
    rows: torch.Tensor


@dataclass(frozen=True, slots=True)
class Cut:
    """What can be built.

    Args:
        stretches: Chunks, as a codec takes them.
        owners: Whose each chunk is. A sequence's chunks stand in their order.
        rest: Rows that belong to no whole interval yet, each with its sequence.
    """

    stretches: list[torch.Tensor]
    owners: list[Growing]
    rest: Step | None


def gather(rest: Step | None, steps: Sequence[Step], *, interval: int, surplus: int) -> Cut:
    """Cuts the rest of earlier rows, and the rows of some steps, into intervals.

    A sequence that goes on keeps its last `surplus` rows and what makes no whole interval. One that ends leaves
    nothing, and its rows past `tokens` are forgotten.
    """
    parts = [part for part in (rest, _joined(steps)) if part]
    if not parts:
        return Cut([], [], None)
    live, rows = [one for part in parts for one in part.live], torch.cat([part.rows for part in parts])
    numbers = np.array([one.number for one in live])
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    whole: list[int] = []
    owners: list[Growing] = []
    ends: list[tuple[Growing, NDArray[np.intp]]] = []
    kept: list[NDArray[np.intp]] = []
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
        one = live[order[start]]
        if one.dropped:
            continue
        count = (one.tokens or 0) - one.taken if one.ending else max(0, end - start - surplus)
        cuts = range(start, start + count // interval * interval, interval)
        whole.extend(cuts)
        owners.extend([one] * len(cuts))
        left = start + len(cuts) * interval
        one.taken += len(cuts) * interval
        if not one.ending:
            kept.append(order[left:end])
        elif count % interval:
            ends.append((one, order[left : start + count]))
    stretches = [rows[torch.from_numpy(places)].reshape(1, -1) for _, places in ends]
    if whole:
        places = order[np.array(whole)[:, None] + np.arange(interval)]
        stretches.insert(0, rows[torch.from_numpy(places)].reshape(len(whole), -1))
    owners.extend(one for one, _ in ends)
    if not kept:
        return Cut(stretches, owners, None)
    places = np.concatenate(kept)
    return Cut(stretches, owners, Step([live[place] for place in places], rows[torch.from_numpy(places)]))


def _joined(steps: Sequence[Step]) -> Step | None:
    """All rows together, fetched at once. What types they had is no matter: bfloat16 is in all of them."""
    if not steps:
        return None
    rows = torch.cat([step.rows for step in steps]).to("cpu", torch.bfloat16)
    return Step([one for step in steps for one in step.live], rows)
