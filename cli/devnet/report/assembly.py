"""Computes a run's report from its record; the same record always gives the same report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from cli.devnet.report.data import (
    Catch,
    Contributor,
    FailedCheck,
    NodeAccount,
    ReportedAnswer,
    ReportedEvaluation,
    ReportedSample,
    ReportedStep,
    ReportedVerdicts,
    RunRecord,
    RunReport,
)
from cli.devnet.report.pipeline import journey, stages, steps_before, timeline
from cli.devnet.report.work import WorkTimeline, latencies, work_timelines
from ledger.events.types import Departure, MemberLeft
from protocol.verdicts import Outcome, ReasonCode, reason_name
from protocol.wire.audits import AuditCheck, AuditFile, CheckState


def assemble(record: RunRecord) -> RunReport:
    """Returns the report; omits tables and values for which the record has no data."""
    work = work_timelines(record)
    # Times count from the first lease, or from the first submission if the leases are not known.
    known = [moment for one in work for moment in (one.leased, one.submitted) if moment is not None]
    began = min(known, default=record.began)
    return RunReport(
        about=record.about,
        wall_seconds=record.ended - record.began,
        steps=tuple(learned(record, began=began)),
        steps_before=steps_before(record),
        evaluations=tuple(evaluations(record)),
        stages=tuple(stages(record, work, began=began)),
        verdicts=tuple(_verdicts(work)),
        nodes=tuple(accounts(record, work)),
        catches=tuple(_catches(record, work)),
        samples=tuple(_samples(record)),
        machine=record.machine,
        finished_ms=int(record.ended * 1000),
        latencies=tuple(latencies(work)),
        journey=journey(record, work),
        timeline=tuple(timeline(record, work, began=began)),
        processes=tuple(record.processes),
    )


def _last_of(progress: Sequence[Mapping[str, Any]], kind: str, key: str) -> list[Mapping[str, Any]]:
    """Returns the lines of one kind, sorted by the number under `key`.

    If several lines have the same number, returns only the last of them.
    """
    found = {int(line[key]): line for line in progress if line.get("kind") == kind and key in line}
    return [found[number] for number in sorted(found)]


def learned(record: RunRecord, *, began: float) -> list[ReportedStep]:
    """Returns the steps that the trainer has learned, in order; their times count from `began`."""
    return [
        ReportedStep(
            step=int(line["step"]),
            at=float(line["at_ms"]) / 1000 - began,
            reward=float(line["reward"]),
            staleness={int(behind): int(groups) for behind, groups in (line.get("staleness") or {}).items()},
            distance=_number(line.get("distance")),
        )
        for line in _last_of(record.progress, "step", "step")
        if line.get("reward") is not None
    ]


def evaluations(record: RunRecord) -> list[ReportedEvaluation]:
    """Returns the evaluations in order of versions."""
    return [
        ReportedEvaluation(
            version=int(line["version"]),
            greedy=float(line["greedy"]),
            pass_at_1=_number((line.get("pass_at") or {}).get("1")),
            distance=_number(line.get("distance")),
            lengths={int(wanted): float(mean) for wanted, mean in (line.get("lengths") or {}).items()},
            answers=tuple(
                ReportedAnswer(
                    prompt=str(one["prompt"]),
                    answer=str(one["answer"]),
                    correct=bool(one["correct"]),
                    reward=_number(one.get("reward")),
                    turns=int(one.get("turns") or 0),
                )
                for one in line.get("examples") or ()
            ),
        )
        for line in _last_of(record.progress, "evaluation", "version")
    ]


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)


def _verdicts(work: Sequence[WorkTimeline]) -> list[ReportedVerdicts]:
    judged = [
        (one.outcome, reason_name(one.reason), bool(one.contributor.cheat)) for one in work if one.outcome is not None
    ]
    counts = Counter(judged)
    return [
        ReportedVerdicts(
            outcome=outcome,
            reason=reason,
            honest=counts[outcome, reason, False],
            cheating=counts[outcome, reason, True],
        )
        for outcome, reason in sorted({(outcome, reason) for outcome, reason, _ in judged})
    ]


def accounts(record: RunRecord, work: Sequence[WorkTimeline]) -> list[NodeAccount]:
    """Returns results and balance of every worker."""
    return [
        _account(record, one, [file for file in work if file.contributor.node == one.node])
        for one in record.contributors
    ]


def _account(record: RunRecord, contributor: Contributor, work: Sequence[WorkTimeline]) -> NodeAccount:
    outcomes = Counter(one.outcome for one in work)
    return NodeAccount(
        name=contributor.name,
        address=contributor.node,
        cheat=contributor.cheat,
        accepted=outcomes[Outcome.ACCEPTED],
        rejected=outcomes[Outcome.REJECTED],
        forged=outcomes[Outcome.FORGED],
        expired=sum(one.expired for one in work),
        open=sum(one.outcome is None and not one.expired for one in work),
        tokens=sum(one.units for one in work),
        stake_before=contributor.stake_before,
        stake_after=contributor.stake_after,
        earned=sum(one.paid for one in work),
        slashed=sum(one.slashed for one in work),
        evicted=_evicted(record, contributor),
        batch_idle=_batch_share(record, contributor, "batch-idle-seconds"),
        batch_under_half=_batch_share(record, contributor, "batch-under-half-seconds"),
    )


def _batch_share(record: RunRecord, contributor: Contributor, name: str) -> float | None:
    metrics = record.metrics.get(contributor.node, {})
    total = metrics.get("task.batch-seconds", 0.0)
    return metrics.get(f"task.{name}", 0.0) / total if total else None


def _evicted(record: RunRecord, contributor: Contributor) -> str:
    for event in record.events:
        if isinstance(event, MemberLeft) and event.node == contributor.node and event.cause is Departure.EVICTED:
            return event.reason or "forged work"
    return ""


def _catches(record: RunRecord, work: Sequence[WorkTimeline]) -> list[Catch]:
    """Returns the first verdict against each cheating node; a judgement of forgery precedes a rejection."""
    found = []
    for one in record.contributors:
        against = [
            file
            for outcome in (Outcome.FORGED, Outcome.REJECTED)
            for file in work
            if one.cheat and file.contributor.node == one.node and file.outcome is outcome
        ]
        if against:
            found.append(_catch(against[0], record.audits.get(against[0].key)))
    return found


def _catch(file: WorkTimeline, audit: AuditFile | None) -> Catch:
    took = None if file.judged is None or file.uploaded is None else file.judged - file.uploaded
    return Catch(
        node=file.contributor.name,
        cheat=file.contributor.cheat,
        key=file.key,
        step=file.step,
        index=file.index,
        outcome=file.outcome or Outcome.REJECTED,
        reason=reason_name(file.reason),
        why=ReasonCode(file.reason).words if file.reason in set(ReasonCode) else "",
        words="" if audit is None else audit.words,
        seconds=took,
        checks=() if audit is None else tuple(_failed(one) for one in audit.checks if one.state is CheckState.FAILED),
    )


def _failed(check: AuditCheck) -> FailedCheck:
    if not check.findings:
        return FailedCheck(name=check.name, found=check.found, what=check.note)
    first = check.findings[0]
    return FailedCheck(
        name=check.name,
        found=check.found,
        what=first.what,
        row=first.row,
        group=first.group,
        sample=first.sample,
        position=first.position,
    )


def _samples(record: RunRecord) -> list[ReportedSample]:
    return [
        ReportedSample(
            step=found.step,
            version=one.version,
            prompt=one.prompt,
            answer=one.answer,
            reward=one.reward,
            tokens=one.tokens,
        )
        for found in record.samples
        if found.step is not None
        for one in found.samples
    ]
