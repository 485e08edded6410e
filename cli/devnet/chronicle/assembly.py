"""The report of a run, made of its material: pure, so that the same material always tells the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cli.devnet.chronicle.data import Contributor, Material
from cli.devnet.chronicle.stages import stages
from cli.devnet.chronicle.timing import journey, lanes, latencies, steps_before
from cli.devnet.chronicle.work import WorkTimeline, all_work, of
from cli.devnet.report.model import NodeAccount, ReportedEvaluation, ReportedStep, ReportedVerdicts, RunReport
from ledger.events.types import Departure, MemberLeft
from protocol.verdicts import Outcome


def assemble(material: Material) -> RunReport:
    """The report; what is not known is left out of it."""
    work = all_work(material)
    began = run_began(material, work)
    return RunReport(
        about=material.about,
        wall_seconds=material.ended - material.began,
        steps=tuple(learned(material, began=began)),
        steps_before=steps_before(material),
        evaluations=tuple(evaluations(material)),
        stages=tuple(stages(material, work, began=began)),
        verdicts=tuple(_verdicts(work)),
        nodes=tuple(account(material, one, of(work, one)) for one in material.contributors),
        latencies=tuple(latencies(work)),
        journey=journey(material, work),
        lanes=tuple(lanes(material, work, began=began)),
        processes=tuple(material.processes),
    )


def run_began(material: Material, work: Sequence[WorkTimeline]) -> float:
    """The first lease, or what comes nearest to it; Unix time in seconds."""
    known = [moment for one in work for moment in (one.leased, one.submitted) if moment is not None]
    return min(known, default=material.began)


def _last_of(progress: Sequence[Mapping[str, Any]], kind: str, key: str) -> list[Mapping[str, Any]]:
    """Lines of one kind in the order of a number; of several with the same one the last counts."""
    found = {int(line[key]): line for line in progress if line.get("kind") == kind and key in line}
    return [found[number] for number in sorted(found)]


def learned(material: Material, *, began: float) -> list[ReportedStep]:
    """The steps of the trainer, in order."""
    return [
        ReportedStep(
            step=int(line["step"]),
            at=float(line["at_ms"]) / 1000 - began,
            reward=float(line["reward"]),
            staleness={int(behind): int(groups) for behind, groups in (line.get("staleness") or {}).items()},
            distance=_number(line.get("distance")),
        )
        for line in _last_of(material.progress, "step", "step")
        if line.get("reward") is not None
    ]


def evaluations(material: Material) -> list[ReportedEvaluation]:
    """Returns the evaluations in order of versions."""
    return [
        ReportedEvaluation(
            version=int(line["version"]),
            greedy=float(line["greedy"]),
            pass_at_1=_number((line.get("pass_at") or {}).get("1")),
            distance=_number(line.get("distance")),
            lengths={int(wanted): float(mean) for wanted, mean in (line.get("lengths") or {}).items()},
        )
        for line in _last_of(material.progress, "evaluation", "version")
    ]


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)


def _verdicts(work: Sequence[WorkTimeline]) -> list[ReportedVerdicts]:
    judged = [one for one in work if one.outcome is not None]
    kinds = Counter((one.outcome, one.reason_name, bool(one.contributor.cheat)) for one in judged)
    return [
        ReportedVerdicts(
            outcome=outcome,
            reason=reason,
            honest=kinds[outcome, reason, False],
            cheating=kinds[outcome, reason, True],
        )
        for outcome, reason in sorted({(one.outcome, one.reason_name) for one in judged if one.outcome is not None})
    ]


def account(material: Material, contributor: Contributor, work: Sequence[WorkTimeline]) -> NodeAccount:
    """Returns a contributor's work, and its money from it."""

    def count(wanted: Callable[[WorkTimeline], bool]) -> int:
        return sum(1 for one in work if wanted(one))

    return NodeAccount(
        name=contributor.name,
        address=contributor.node,
        cheat=contributor.cheat,
        accepted=count(lambda one: one.outcome is Outcome.ACCEPTED),
        rejected=count(lambda one: one.outcome is Outcome.REJECTED),
        forged=count(lambda one: one.outcome is Outcome.FORGED),
        expired=count(lambda one: one.expired),
        open=count(lambda one: one.outcome is None and not one.expired),
        tokens=sum(one.units for one in work),
        stake_before=contributor.stake_before,
        stake_after=contributor.stake_after,
        earned=sum(one.paid for one in work),
        slashed=sum(one.slashed for one in work),
        evicted=_evicted(material, contributor),
    )


def _evicted(material: Material, contributor: Contributor) -> str:
    for event in material.events:
        if isinstance(event, MemberLeft) and event.node == contributor.node and event.cause is Departure.EVICTED:
            return event.reason or "forged work"
    return ""
