"""Path of each rollout file through the network.

The path is joined from leases, the object store, the ledger and the orchestrator's list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from cli.devnet.report.data import Contributor, Latency, RunRecord
from ledger.events.types import VerdictGiven, WorkExpired, WorkFinal, WorkSubmitted
from protocol.identifiers import Digest
from protocol.verdicts import Outcome

_GENERATION_SECONDS = "seconds"
"""Name of the reported metric that holds the generation time of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTimeline:
    """The stages of one rollout file.

    Times are Unix times in seconds; None if the file did not reach the stage, or the time is unknown.
    """

    key: Digest
    contributor: Contributor
    step: int
    index: int
    version: int
    checkpoint: Digest
    units: int
    leased: float | None = None
    generated: float | None = None
    uploaded: float | None = None
    submitted: float | None = None
    judged: float | None = None
    outcome: Outcome | None = None
    reason: int = 0
    final: bool = False
    paid: int = 0
    slashed: int = 0
    expired: bool = False


def work_timelines(record: RunRecord) -> list[WorkTimeline]:
    """Returns every rollout file that the nodes submitted to the ledger, in ledger order."""
    by_node = {one.node: one for one in record.contributors}
    leased = {
        (node, lease.step, lease.index): lease.granted_at_ms / 1000
        for node, leases in record.leases.items()
        for lease in leases
    }
    took = {
        item.key: item.figures[_GENERATION_SECONDS] for item in record.rollouts if _GENERATION_SECONDS in item.figures
    }
    found: dict[Digest, WorkTimeline] = {}
    for event in record.events:
        match event:
            case WorkSubmitted() if event.node in by_node:
                begun = leased.get((event.node, event.step, event.index))
                found[event.key] = WorkTimeline(
                    key=event.key,
                    contributor=by_node[event.node],
                    step=event.step,
                    index=event.index,
                    version=event.version,
                    checkpoint=event.checkpoint,
                    units=event.units,
                    leased=begun,
                    generated=begun + took[event.key] if begun is not None and event.key in took else None,
                    uploaded=record.stored.get(event.sha256),
                    submitted=record.blocks.get(event.log.block_number),
                )
            case VerdictGiven() if event.key in found:
                before = found[event.key]
                judged = before.judged if before.judged is not None else record.blocks.get(event.log.block_number)
                found[event.key] = replace(before, judged=judged, outcome=event.outcome, reason=event.reason)
            case WorkFinal() if event.key in found:
                found[event.key] = replace(
                    found[event.key], final=True, outcome=event.outcome, paid=event.paid, slashed=event.slashed
                )
            case WorkExpired() if event.key in found:
                found[event.key] = replace(found[event.key], expired=True)
            case _:
                continue
    return list(found.values())


VERDICT_LATENCY = "upload to provisional verdict"
_PATHS: tuple[tuple[str, Callable[[WorkTimeline], float | None], Callable[[WorkTimeline], float | None]], ...] = (
    (VERDICT_LATENCY, lambda work: work.uploaded, lambda work: work.judged),
    ("lease to upload", lambda work: work.leased, lambda work: work.uploaded),
    ("upload to the ledger", lambda work: work.uploaded, lambda work: work.submitted),
    ("the ledger to a verdict", lambda work: work.submitted, lambda work: work.judged),
)


def latencies(work: Sequence[WorkTimeline]) -> list[Latency]:
    """Returns the latency of each path, over the files that completed it."""
    found = []
    for name, begin, end in _PATHS:
        took = sorted(b - a for a, b in ((begin(one), end(one)) for one in work) if a is not None and b is not None)
        if took:
            found.append(Latency(name=name, count=len(took), p50=quantile(took, 0.5), p99=quantile(took, 0.99)))
    return found


def quantile(ordered: Sequence[float], share: float) -> float:
    """Returns the smallest value that at least `share` of the values do not exceed.

    Args:
        ordered: Values in ascending order; at least one.
        share: Share of the values, 0 to 1.
    """
    return ordered[max(0, min(len(ordered) - 1, -int(-share * len(ordered) // 1) - 1))]
