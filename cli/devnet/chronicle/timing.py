"""Durations: stages of the system, one rollout's full path, and a window that shows all parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cli.devnet.chronicle.data import Material
from cli.devnet.chronicle.work import WorkTimeline
from cli.devnet.report.model import Journey, Latency, Leg, TimelineRow, TimeSpan
from ledger.events.types import CheckpointAnnounced
from protocol.identifiers import Digest
from protocol.verdicts import Outcome

WINDOW = 10.0
"""Seconds of the run that are shown in full."""

_WAYS: tuple[tuple[str, Callable[[WorkTimeline], float | None], Callable[[WorkTimeline], float | None]], ...] = (
    ("upload to provisional verdict", lambda work: work.uploaded, lambda work: work.judged),
    ("lease to upload", lambda work: work.leased, lambda work: work.uploaded),
    ("upload to the ledger", lambda work: work.uploaded, lambda work: work.submitted),
    ("the ledger to a verdict", lambda work: work.submitted, lambda work: work.judged),
)


def latencies(work: Sequence[WorkTimeline]) -> list[Latency]:
    """The ways of files that went the whole of them."""
    found = []
    for name, begin, end in _WAYS:
        took = sorted(b - a for a, b in ((begin(one), end(one)) for one in work) if a is not None and b is not None)
        if took:
            found.append(Latency(name=name, count=len(took), p50=quantile(took, 0.5), p99=quantile(took, 0.99)))
    return found


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed; of at least one, ascending."""
    return ordered[max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))]


def announcements(material: Material) -> dict[int, tuple[Digest, float]]:
    """Digest and moment of each version that the ledger names."""
    return {
        event.version: (event.digest, material.blocks[event.log.block_number])
        for event in material.events
        if isinstance(event, CheckpointAnnounced) and event.log.block_number in material.blocks
    }


def learned_steps(material: Material) -> dict[int, Mapping[str, Any]]:
    """The trainer's line of each step that this devnet learned since it was started."""
    return {
        int(line["step"]): line
        for line in material.progress
        if line.get("kind") == "step" and float(line["at_ms"]) / 1000 >= material.began
    }


def steps_before(material: Material) -> int:
    """Number of steps that were learned before this start of the devnet."""
    all_steps = {int(line["step"]) for line in material.progress if line.get("kind") == "step"}
    return len(all_steps - learned_steps(material).keys())


def journey(material: Material, work: Sequence[WorkTimeline]) -> Journey | None:
    """The way of a file from the middle of the run whose every part is known."""
    steps, versions = learned_steps(material), announcements(material)
    whole = [one for one in work if _legs(material, one, steps, versions)]
    if not whole:
        return None
    middle = (min(one.step for one in whole) + max(one.step for one in whole)) // 2
    chosen = min(whole, key=lambda one: (abs(one.step - middle), one.step, one.contributor.name, one.index))
    legs = _legs(material, chosen, steps, versions)
    return Journey(node=chosen.contributor.name, step=chosen.step, index=chosen.index, legs=tuple(legs))


def _legs(
    material: Material,
    work: WorkTimeline,
    steps: Mapping[int, Mapping[str, Any]],
    versions: Mapping[int, tuple[Digest, float]],
) -> list[Leg]:
    line, announced = steps.get(work.step), versions.get(work.step + 1)
    if work.outcome is not Outcome.ACCEPTED or line is None or announced is None or work.leased is None:
        return []
    seconds = line.get("seconds") or {}
    written = float(line["at_ms"]) / 1000
    arrived = material.arrivals.get(announced[0], {})
    learned = written - float(seconds.get("write", 0))
    moments = (
        ("generated", work.generated, "generate"),
        ("uploaded", work.uploaded, "wait"),
        ("on the ledger", work.submitted, "wait"),
        ("verdict", work.judged, "verify"),
        ("waits for its step", learned - float(seconds.get("learn", 0)), "wait"),
        ("learned", learned, "learn"),
        ("written", written, "learn"),
        ("announced", announced[1], "broadcast"),
        ("on the first node", min(arrived.values(), default=None), "broadcast"),
    )
    legs, before = [], work.leased
    for name, moment, kind in moments:
        if moment is None:
            return []
        end = max(moment, before)  # a step may be called full before a verdict's block was seen here
        legs.append(Leg(name=name, begin=before - work.leased, end=end - work.leased, kind=kind))
        before = end
    return legs


def lanes(material: Material, work: Sequence[WorkTimeline], *, began: float) -> list[TimelineRow]:
    """A window from the middle of the run, in which everybody's spans are seen."""
    steps = sorted(float(line["at_ms"]) / 1000 for line in learned_steps(material).values())
    if not steps:
        return []
    first = steps[len(steps) // 2] - WINDOW / 2
    shown = [
        *[(one.name, _generated(work, one.name)) for one in material.contributors],
        ("verification", _verified(work)),
        ("trainer", _trained(material)),
        ("broadcast", _broadcast(material)),
    ]
    found = []
    for name, spans in shown:
        inside = [
            TimeSpan(
                begin=max(span.begin, first) - began,
                end=min(span.end, first + WINDOW) - began,
                kind=span.kind,
                label=span.label,
            )
            for span in spans
            if span.end > first and span.begin < first + WINDOW
        ]
        found.append(TimelineRow(name=name, spans=tuple(inside)))
    return found


def _generated(work: Sequence[WorkTimeline], name: str) -> list[TimeSpan]:
    return [
        TimeSpan(begin=one.leased, end=one.generated, kind="generate", label=f"step {one.step}, version {one.version}")
        for one in work
        if one.contributor.name == name and one.leased is not None and one.generated is not None
    ]


def _verified(work: Sequence[WorkTimeline]) -> list[TimeSpan]:
    return [
        TimeSpan(begin=one.submitted, end=one.judged, kind="verify", label=f"step {one.step} of {one.contributor.name}")
        for one in work
        if one.submitted is not None and one.judged is not None
    ]


def _trained(material: Material) -> list[TimeSpan]:
    spans = []
    for step, line in learned_steps(material).items():
        seconds, end = line.get("seconds") or {}, float(line["at_ms"]) / 1000
        busy = float(seconds.get("learn", 0)) + float(seconds.get("write", 0))
        begun = end - float(seconds.get("total", busy))
        spans.append(TimeSpan(begin=begun, end=end - busy, kind="wait", label=f"step {step}"))
        spans.append(TimeSpan(begin=end - busy, end=end, kind="learn", label=f"step {step}"))
    return spans


def _broadcast(material: Material) -> list[TimeSpan]:
    return [
        TimeSpan(begin=at, end=max(arrived.values()), kind="broadcast", label=f"version {version}")
        for version, (name, at) in announcements(material).items()
        if (arrived := material.arrivals.get(name)) and max(arrived.values()) > at
    ]
