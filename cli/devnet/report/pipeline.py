"""Throughput, idle time and timeline of the pipeline's stages, and one rollout file's path.

The idle share of a stage is predicted from the mean times of all stages. The predicted time of a step is the largest
of three: generation divided by the number of nodes, the trainer's own work, and the latency of one step through the
system divided by the number of steps that may be in progress (`async_level` + 1; Little's law). A stage that works
for less than this time is idle for the remainder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cli.devnet.report.data import Journey, Leg, PipelineStage, RunRecord, TimelineRow, TimeSpan
from cli.devnet.report.work import WorkTimeline
from cli.output.quantities import counted
from ledger.events.types import CheckpointAnnounced
from protocol.identifiers import Digest
from protocol.verdicts import Outcome

WINDOW = 10.0
"""Seconds of the run that the timeline shows."""


def announcements(record: RunRecord) -> dict[int, tuple[Digest, float]]:
    """Returns digest and announcement time of each version on the ledger, by version number."""
    return {
        event.version: (event.digest, record.blocks[event.log.block_number])
        for event in record.events
        if isinstance(event, CheckpointAnnounced) and event.log.block_number in record.blocks
    }


def learned_steps(record: RunRecord) -> dict[int, Mapping[str, Any]]:
    """Returns the trainer's log line of each step since this start of the devnet, by step."""
    return {
        int(line["step"]): line
        for line in record.progress
        if line.get("kind") == "step" and float(line["at_ms"]) / 1000 >= record.began
    }


def steps_before(record: RunRecord) -> int:
    """Returns the number of steps that were learned before this start of the devnet."""
    all_steps = {int(line["step"]) for line in record.progress if line.get("kind") == "step"}
    return len(all_steps - learned_steps(record).keys())


def stages(record: RunRecord, work: Sequence[WorkTimeline], *, began: float) -> list[PipelineStage]:
    """Returns the throughput of each stage that did work; empty if no step was learned."""
    steps, versions = learned_steps(record), announcements(record)
    if not steps:
        return []
    seconds = max(max(_end(line) for line in steps.values()) - began, 1e-9)
    count, nodes = len(steps), max(1, len(record.contributors))
    generating = sum(
        _covered([(one.leased, one.generated) for one in work if one.contributor.node == each.node])
        for each in record.contributors
    )
    training = sum(_busy(line) for line in steps.values())
    leased = {step: [one.leased for one in work if one.step == step and one.leased is not None] for step in steps}
    paths = [versions[step + 1][1] - min(times) for step, times in leased.items() if times and step + 1 in versions]
    path = sum(paths) / len(paths) / record.steps_under_way if paths else 0.0
    step_seconds = max(generating / nodes / count, training / count, path)

    def predicted(busy: float) -> float | None:
        return 1 - busy / count / step_seconds if step_seconds else None

    tokens, learned = sum(one.units for one in work), sum(int(line.get("tokens") or 0) for line in steps.values())
    found = [
        PipelineStage(
            name="generation",
            amount=f"{tokens:,} tokens in {counted(len(work), 'file')}",
            rate=f"{tokens / seconds:,.0f} tokens/s",
            idle=1 - min(generating / nodes / seconds, 1),
            predicted_idle=predicted(generating / nodes),
        )
    ]
    judged = [one for one in work if one.judged is not None]
    if judged:
        found.append(
            PipelineStage(
                name="verification",
                amount=counted(len(judged), "file"),
                rate=f"{len(judged) / seconds:.1f} files/s",
                idle=1 - min(_covered([(one.submitted, one.judged) for one in judged]) / seconds, 1),
            )
        )
    found.append(
        PipelineStage(
            name="training",
            amount=f"{counted(count, 'step')}, {learned:,} tokens",
            rate=f"{learned / seconds:,.0f} tokens/s",
            idle=1 - min(training / seconds, 1),
            predicted_idle=predicted(training),
        )
    )
    spans = [(at, max(arrived.values())) for name, at in versions.values() if (arrived := record.arrivals.get(name))]
    if spans:
        arrivals = sum(len(arrived) for arrived in record.arrivals.values())
        found.append(
            PipelineStage(
                name="broadcast",
                amount=f"{counted(len(spans), 'version')} to {counted(arrivals, 'disk')}",
                rate=f"{arrivals / seconds:.1f} versions/s",
                idle=1 - min(_covered(spans) / seconds, 1),
            )
        )
    return found


def _end(line: Mapping[str, Any]) -> float:
    """Returns the end of a step, Unix time in seconds."""
    return float(line["at_ms"]) / 1000


def _busy(line: Mapping[str, Any]) -> float:
    """Returns the seconds of a step in which the trainer did not wait for rollouts."""
    seconds = line.get("seconds") or {}
    return float(seconds.get("learn", 0)) + float(seconds.get("write", 0))


def _covered(spans: Sequence[tuple[float | None, float | None]]) -> float:
    """Returns the total length of the union of the spans; spans with an unknown end are skipped."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted((a, b) for a, b in spans if a is not None and b is not None):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def journey(record: RunRecord, work: Sequence[WorkTimeline]) -> Journey | None:
    """Returns the path of a file from the middle of the run.

    None if each file lacks at least one recorded time.
    """
    steps, versions = learned_steps(record), announcements(record)
    complete = [(one, legs) for one in work if (legs := _legs(record, one, steps, versions))]
    if not complete:
        return None
    middle = (min(one.step for one, _ in complete) + max(one.step for one, _ in complete)) // 2
    chosen, legs = min(
        complete, key=lambda pair: (abs(pair[0].step - middle), pair[0].step, pair[0].contributor.name, pair[0].index)
    )
    return Journey(node=chosen.contributor.name, step=chosen.step, index=chosen.index, legs=tuple(legs))


def _legs(
    record: RunRecord,
    work: WorkTimeline,
    steps: Mapping[int, Mapping[str, Any]],
    versions: Mapping[int, tuple[Digest, float]],
) -> list[Leg]:
    line, announced = steps.get(work.step), versions.get(work.step + 1)
    if work.outcome is not Outcome.ACCEPTED or line is None or announced is None or work.leased is None:
        return []
    seconds = line.get("seconds") or {}
    written = _end(line)
    arrived = record.arrivals.get(announced[0], {})
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
        # The trainer may count a step as full before this process has seen the block of the last verdict.
        end = max(moment, before)
        legs.append(Leg(name=name, begin=before - work.leased, end=end - work.leased, kind=kind))
        before = end
    return legs


def timeline(record: RunRecord, work: Sequence[WorkTimeline], *, began: float) -> list[TimelineRow]:
    """Returns each component's activity in the `WINDOW` seconds in the middle of the run."""
    ends = sorted(_end(line) for line in learned_steps(record).values())
    if not ends:
        return []
    first = ends[len(ends) // 2] - WINDOW / 2
    last = first + WINDOW
    rows = [
        *[(one.name, _generation(work, one.name)) for one in record.contributors],
        ("verification", _verification(work)),
        ("trainer", _training(record)),
        ("broadcast", _broadcast(record)),
    ]
    return [
        TimelineRow(
            name=name,
            spans=tuple(
                TimeSpan(
                    begin=max(span.begin, first) - began,
                    end=min(span.end, last) - began,
                    kind=span.kind,
                    label=span.label,
                )
                for span in spans
                if span.end > first and span.begin < last
            ),
        )
        for name, spans in rows
    ]


def _generation(work: Sequence[WorkTimeline], name: str) -> list[TimeSpan]:
    return [
        TimeSpan(begin=one.leased, end=one.generated, kind="generate", label=f"step {one.step}, version {one.version}")
        for one in work
        if one.contributor.name == name and one.leased is not None and one.generated is not None
    ]


def _verification(work: Sequence[WorkTimeline]) -> list[TimeSpan]:
    return [
        TimeSpan(begin=one.submitted, end=one.judged, kind="verify", label=f"step {one.step} of {one.contributor.name}")
        for one in work
        if one.submitted is not None and one.judged is not None
    ]


def _training(record: RunRecord) -> list[TimeSpan]:
    spans = []
    for step, line in learned_steps(record).items():
        end, busy = _end(line), _busy(line)
        begin = end - float((line.get("seconds") or {}).get("total", busy))
        spans.append(TimeSpan(begin=begin, end=end - busy, kind="wait", label=f"step {step}"))
        spans.append(TimeSpan(begin=end - busy, end=end, kind="learn", label=f"step {step}"))
    return spans


def _broadcast(record: RunRecord) -> list[TimeSpan]:
    return [
        TimeSpan(begin=at, end=max(arrived.values()), kind="broadcast", label=f"version {version}")
        for version, (name, at) in announcements(record).items()
        if (arrived := record.arrivals.get(name)) and max(arrived.values()) > at
    ]
