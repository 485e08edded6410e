"""Metrics of a step's accepted files as nodes report them. They are unverified, and payment ignores them.

Means are weighted by groups, which the lease binds, and not by the samples that a node counted itself. What is far from
the median is left out, so that whoever has less than half of a step's groups can't push its means off the scale.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orchestrator.domain.slots import Counted
from orchestrator.domain.steps import StepCount
from orchestrator.store.run_rows import SlotRow
from orchestrator.store.runs import RunStore
from protocol.wire.listings import StepFigures

MOST_SLOTS = 2_000
"""Slots of one step that are looked at, in lease order."""
SLOTS_AT_ONCE = 500
LARGEST = 1e9
"""No reward and no length is beyond it; what is would hide everybody else's."""
DEVIATIONS = 5.0
"""Maximum distance from the median in median absolute deviations; at least the median itself, and 1."""
REMEMBERED_STEPS = 1_000


@dataclass(frozen=True, slots=True)
class ReportedMeans:
    """The means over some accepted files; None where nobody said."""

    files: int
    reward: float | None
    length: float | None


def told(rows: Iterable[SlotRow]) -> ReportedMeans:
    """The means over those of these files that are accepted."""
    accepted = [row for row in rows if row.slot.counted is Counted.ACCEPTED]
    return ReportedMeans(len(accepted), _mean(accepted, "reward"), _mean(accepted, "length"))


def _mean(rows: Sequence[SlotRow], name: str) -> float | None:
    said = [(row.figures[name], row.groups) for row in rows if abs(row.figures.get(name, LARGEST)) < LARGEST]
    if not said:
        return None
    middle = _median(said)
    deviation = _median([(abs(value - middle), groups) for value, groups in said])
    most = max(DEVIATIONS * deviation, abs(middle), 1.0)
    kept = [(value, groups) for value, groups in said if abs(value - middle) <= most]
    return sum(value * groups for value, groups in kept) / sum(groups for _, groups in kept)


def _median(weighted: Sequence[tuple[float, int]]) -> float:
    """The lower median of values with weights above 0."""
    half, below = sum(weight for _, weight in weighted) / 2, 0
    for value, weight in sorted(weighted):
        below += weight
        if below >= half:
            return value
    raise ValueError("there is no value")


class ReportedMetrics:
    """Figures by step. A step whose counts are what they were is not read again.

    Args:
        store: Where slots are kept.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._known: OrderedDict[int, tuple[StepCount, ReportedMeans]] = OrderedDict()

    async def of(self, steps: Sequence[int], *, floor: int) -> tuple[StepFigures, ...]:
        """Those of these steps that have accepted files, in the order of `steps`; below `floor` they are closed."""
        rows = await self._store.steps(steps)
        found = [(step, await self._told(step, row.count)) for step, row in rows.items() if row.count.accepted]
        return tuple(
            StepFigures(step=step, closed=step < floor, files=each.files, reward=each.reward, length=each.length)
            for step, each in found
            if each.files
        )

    async def _told(self, step: int, count: StepCount) -> ReportedMeans:
        known = self._known.get(step)
        if known is not None and known[0] == count:
            return known[1]
        new = told(await self._slots(step))
        self._known[step] = (count, new)
        self._known.move_to_end(step)
        if len(self._known) > REMEMBERED_STEPS:
            self._known.popitem(last=False)
        return new

    async def _slots(self, step: int) -> list[SlotRow]:
        found: list[SlotRow] = []
        after: tuple[int, str] | None = None
        while len(found) < MOST_SLOTS:
            page = await self._store.page(step, after=after, limit=SLOTS_AT_ONCE)
            found += page
            if len(page) < SLOTS_AT_ONCE:
                break
            after = (page[-1].expiry, page[-1].id)
        return found
