"""Each file's way through the system, put together from leases, the store, the ledger and the orchestrator's list."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cli.devnet.chronicle.data import Contributor, Material
from ledger.events.types import VerdictGiven, WorkExpired, WorkFinal, WorkSubmitted
from protocol.identifiers import Digest
from protocol.verdicts import Outcome, ReasonCode

SECONDS = "seconds"
"""The figure in which a task says how long it generated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTimeline:
    """One file. Times are Unix times in seconds; None where it did not come so far, or nobody saw it."""

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

    @property
    def reason_name(self) -> str:
        """The reason as the reports of verdicts write it."""
        try:
            return ReasonCode(self.reason).name.lower().replace("_", "-")
        except ValueError:
            return str(self.reason)


def all_work(material: Material) -> list[WorkTimeline]:
    """Every file that came to the ledger, in the order in which it did."""
    by_node = {one.node: one for one in material.contributors}
    leased = {
        (node, lease.step, lease.index): lease.granted_at_ms / 1000
        for node, leases in material.leases.items()
        for lease in leases
    }
    took = {item.key: item.figures[SECONDS] for item in material.rollouts if SECONDS in item.figures}
    found: dict[Digest, WorkTimeline] = {}
    for event in material.events:
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
                    uploaded=material.stored.get(event.sha256),
                    submitted=material.blocks.get(event.log.block_number),
                )
            case VerdictGiven() if event.key in found:
                before = found[event.key]
                judged = before.judged if before.judged is not None else material.blocks.get(event.log.block_number)
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


def of(work: Iterable[WorkTimeline], contributor: Contributor) -> list[WorkTimeline]:
    """The files of one contributor."""
    return [one for one in work if one.contributor.node == contributor.node]
