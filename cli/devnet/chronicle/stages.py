"""Work, speed and idle time of each part in a run, with the expected idle time.

A part's expected idle share follows from the times of all parts alone. A step takes as long as its slowest part needs
for it: generation divided by the nodes, verification by the validators, the trainer's own work, and the way of one
step through the whole system divided by the steps that may be under way (`async_level` + 1; Little's law). A part that
needs less of that time has nothing to do for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cli.devnet.chronicle.data import Material
from cli.devnet.chronicle.timing import announcements, learned_steps
from cli.devnet.chronicle.work import WorkTimeline
from cli.devnet.report.model import PipelineStage


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Seconds that one step costs each part, on average."""

    generation: float
    """On one node, if `nodes` share it."""
    training: float
    way: float
    """Time from a step's first lease to the announcement of its version, divided by the steps in progress."""

    @property
    def step(self) -> float:
        """Minimum time of a step."""
        return max(self.generation, self.training, self.way)


def stages(material: Material, work: Sequence[WorkTimeline], *, began: float) -> list[PipelineStage]:
    """One row for each part that did anything."""
    steps = learned_steps(material)
    ends = [float(line["at_ms"]) / 1000 for line in steps.values()]
    if not ends:
        return []
    seconds = max(max(ends) - began, 1e-9)
    times = _times(material, work)
    found = [_generation(material, work, seconds, times)]
    judged = [one for one in work if one.judged is not None]
    if judged:
        waiting = _covered([(one.submitted, one.judged) for one in judged if one.submitted is not None])
        found.append(
            PipelineStage(
                name="verification",
                did=f"{len(judged):,} files",
                rate=f"{len(judged) / seconds:.1f} files/s",
                idle=1 - min(waiting / seconds, 1),
            )
        )
    found.append(_training(material, seconds, times))
    broadcast = _broadcast(material, seconds)
    return [*found, broadcast] if broadcast is not None else found


def _times(material: Material, work: Sequence[WorkTimeline]) -> StageTimes:
    steps, versions = learned_steps(material), announcements(material)
    nodes = max(1, len(material.contributors))
    busy = sum(one.generated - one.leased for one in work if one.generated is not None and one.leased is not None)
    training = sum(_busy(line) for line in steps.values())
    ways = []
    for step in steps:
        leased = [one.leased for one in work if one.step == step and one.leased is not None]
        if leased and step + 1 in versions:
            ways.append(versions[step + 1][1] - min(leased))
    count = max(1, len(steps))
    way = sum(ways) / len(ways) / material.steps_under_way if ways else 0.0
    return StageTimes(generation=busy / nodes / count, training=training / count, way=way)


def _busy(line: Mapping[str, Any]) -> float:
    """Seconds of a step in which the trainer did not wait for rollouts."""
    seconds = line.get("seconds") or {}
    return float(seconds.get("learn", 0)) + float(seconds.get("write", 0))


def _generation(material: Material, work: Sequence[WorkTimeline], seconds: float, times: StageTimes) -> PipelineStage:
    tokens = sum(one.units for one in work)
    nodes = max(1, len(material.contributors))
    busy = sum(one.generated - one.leased for one in work if one.generated is not None and one.leased is not None)
    return PipelineStage(
        name="generation",
        did=f"{tokens:,} tokens in {len(work):,} files",
        rate=f"{tokens / seconds:,.0f} tokens/s",
        idle=1 - min(busy / nodes / seconds, 1),
        predicted_idle=1 - times.generation / times.step if times.step else None,
    )


def _training(material: Material, seconds: float, times: StageTimes) -> PipelineStage:
    steps = learned_steps(material)
    busy, tokens = (
        sum(_busy(line) for line in steps.values()),
        sum(int(line.get("tokens") or 0) for line in steps.values()),
    )
    return PipelineStage(
        name="training",
        did=f"{len(steps)} steps, {tokens:,} tokens",
        rate=f"{tokens / seconds:,.0f} tokens/s",
        idle=1 - min(busy / seconds, 1),
        predicted_idle=1 - times.training / times.step if times.step else None,
    )


def _broadcast(material: Material, seconds: float) -> PipelineStage | None:
    spans = [
        (at, max(arrived.values()))
        for digest, at in announcements(material).values()
        if (arrived := material.arrivals.get(digest))
    ]
    if not spans:
        return None
    arrivals = sum(len(arrived) for arrived in material.arrivals.values())
    return PipelineStage(
        name="broadcast",
        did=f"{len(spans)} versions to {arrivals} disks",
        rate=f"{arrivals / seconds:.1f} versions/s",
        idle=1 - min(_covered(spans) / seconds, 1),
    )


def _covered(spans: Sequence[tuple[float | None, float | None]]) -> float:
    """Seconds in which at least one of the spans was."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted((a, b) for a, b in spans if a is not None and b is not None):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total
