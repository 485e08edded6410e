"""Mean metrics of a step's accepted files, as nodes report them.

The metrics are not verified, and payment does not depend on them. Means are weighted by the number of groups in a file,
which the lease fixes, and not by numbers that the node reports. Values far from the median are left out. So nodes with
less than half of a step's groups can shift its means only by a bounded amount.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

from orchestrator.domain.steps import StepCount
from orchestrator.store.run_rows import ReportedFile
from orchestrator.store.runs import RunStore
from protocol.wire.listings import StepFigures

MOST_SLOTS = 2_000
"""Maximum number of slots of one step that are read, in the order of their leases."""
LARGEST = 1e9
"""Values with at least this absolute value are ignored; no honest reward or length is that large."""
DEVIATIONS = 5.0
"""A value is kept if its distance from the median is at most the largest of: 5 median absolute deviations, the absolute
value of the median, and 1."""


@dataclass(frozen=True, slots=True)
class ReportedMeans:
    """Means of the reported metrics over accepted files; None if no node reported the metric."""

    files: int
    reward: float | None
    length: float | None


def reported_means(accepted: Sequence[ReportedFile]) -> ReportedMeans:
    """Returns the means over accepted files."""
    return ReportedMeans(len(accepted), _mean(accepted, "reward"), _mean(accepted, "length"))


def _mean(rows: Sequence[ReportedFile], name: str) -> float | None:
    values = [(row.figures[name], row.groups) for row in rows if abs(row.figures.get(name, LARGEST)) < LARGEST]
    if not values:
        return None
    middle = _median(values)
    deviation = _median([(abs(value - middle), groups) for value, groups in values])
    most = max(DEVIATIONS * deviation, abs(middle), 1.0)
    kept = [(value, groups) for value, groups in values if abs(value - middle) <= most]
    return sum(value * groups for value, groups in kept) / sum(groups for _, groups in kept)


def _median(weighted: Sequence[tuple[float, int]]) -> float:
    """Returns the lower weighted median; weights are above 0."""
    half, below = sum(weight for _, weight in weighted) / 2, 0
    for value, weight in sorted(weighted):
        below += weight
        if below >= half:
            return value
    raise ValueError("the median needs at least one value")


class ReportedMetrics:
    """Reads the means of steps, and stores them in Redis until the step's counts change.

    Args:
        store: Store of the run.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store

    async def of(self, steps: Sequence[int], *, floor: int) -> tuple[StepFigures, ...]:
        """Returns the means of the steps that have accepted files, in the order of `steps`."""
        rows, stored = await self._store.steps(steps), await self._store.stored_means(steps)
        found = [(step, await self._means(step, row.count, stored)) for step, row in rows.items() if row.count.accepted]
        return tuple(
            StepFigures(step=step, closed=step < floor, files=each.files, reward=each.reward, length=each.length)
            for step, each in found
            if each.files
        )

    async def _means(self, step: int, count: StepCount, stored: Mapping[int, str]) -> ReportedMeans:
        counts = list(astuple(count))
        if step in stored:
            known, means = json.loads(stored[step])
            if known == counts:
                return ReportedMeans(*means)
        new = reported_means(await self._store.reports(step, limit=MOST_SLOTS))
        await self._store.store_means(step, json.dumps([counts, astuple(new)]))
        return new
