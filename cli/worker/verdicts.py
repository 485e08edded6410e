"""`muster worker verdicts`: shows verdicts on a node's work with their findings."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated

import typer

from cli.connection import PoolOption, chosen_pool, open_ledger
from cli.keys import node_of
from cli.output.listing import listing
from cli.output.printing import JsonOption, note, say, show_json, show_table
from cli.output.tables import Column, Columns
from cli.pool.connection import Where
from cli.rollouts.audit_files import AuditFiles, open_audit_files
from ledger.amounts import format_amount
from ledger.client import Ledger
from ledger.client.work import WorkRecord, WorkStatus
from ledger.events.types import DisputeLost, VerdictGiven, WorkSubmitted
from protocol.errors import InvalidInput, MusterError
from protocol.identifiers import Address, digest
from protocol.verdicts import Outcome, ReasonCode, reason_name
from protocol.wire.audits import AuditFile

MOST_ROWS_SHOWN = 5
AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkReport:
    """One submission with its work record, verdict and audit file.

    Args:
        submitted: Event of the submission.
        work: Work record on the ledger.
        verdict: Newest verdict; None if there is none yet.
        audit: Audit file of the verdict; None if there is no verdict or no orchestrator, or the file can't be read.
        missing: Reason why the audit file can't be read; else empty.
        lost: Stake that a lost dispute has cost, in the token's smallest unit; 0 if no dispute was lost.
    """

    submitted: WorkSubmitted
    work: WorkRecord
    verdict: VerdictGiven | None
    audit: AuditFile | None
    missing: str
    lost: int

    @property
    def disputable(self) -> bool:
        """Returns whether the state of the work on the ledger allows a dispute."""
        return self.work.status is WorkStatus.PROVISIONAL


VERDICTS = Columns.of(
    "work",
    Column("step", drop=3),
    Column("slot", drop=3),
    Column("units", drop=4),
    "status",
    "verdict",
    Column("reason", drop=1, least=12),
    Column("money", least=16),
    Column("disputable_until", drop=2),
)


@listing(watch=True)
async def verdicts(
    context: typer.Context,
    *,
    node: Annotated[
        str | None,
        typer.Option(help="Address or key name of the node; default: the key in \\[worker] keystore."),
    ] = None,
    last: Annotated[int, typer.Option(min=1, max=1000, help="Number of newest submissions to show.")] = 20,
    work: Annotated[str | None, typer.Option(help="Key of a work; shows only this work, with all findings.")] = None,
    pool: PoolOption = None,
    where: Where = None,
    as_json: JsonOption = False,
) -> None:
    """Show verdicts on your node's work: reason, reward or penalty, and the end of the challenge period."""
    pool_id, address = chosen_pool(context.obj, pool), node_of(context.obj, node)
    key = None if work is None else digest(work)
    async with AsyncExitStack() as stack:
        ledger = await stack.enter_async_context(open_ledger(context.obj))
        files: AuditFiles | None = None
        try:
            files = await stack.enter_async_context(open_audit_files(context.obj, pool_id=pool_id, where=where))
        except InvalidInput:
            note("no orchestrator is configured, so only data from the ledger is shown; give --orchestrator URL")
        submitted = await ledger.history(WorkSubmitted, pool_id=pool_id, second=address, third=key)
        if not submitted and not as_json:
            note(f"{address} has not submitted this work" if key else f"{address} has submitted no work yet")
        found = await _reports(ledger, files, submitted[-last:], pool_id=pool_id, node=address)
    if as_json:
        show_json([_raw(each) for each in found])
        return
    show_table(VERDICTS, [_row(each) for each in found], empty="no work; --node shows another node's work")
    for each in found:
        if work is not None or (each.work.outcome is not None and each.work.outcome is not Outcome.ACCEPTED):
            _explain(each, rows=None if work is not None else MOST_ROWS_SHOWN)


async def _reports(
    ledger: Ledger, files: AuditFiles | None, submitted: Sequence[WorkSubmitted], *, pool_id: int, node: Address
) -> list[WorkReport]:
    given = {event.key: event for event in await ledger.history(VerdictGiven, pool_id=pool_id, second=node)}
    lost = {event.key: event.taken for event in await ledger.history(DisputeLost, pool_id=pool_id, second=node)}
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(event: WorkSubmitted) -> WorkReport | None:
        async with gate:
            work, verdict = await ledger.work.get(event.key), given.get(event.key)
            audit, missing = await _audit(files, verdict)
        if work is None:  # a reorg has just removed the submission
            return None
        return WorkReport(
            submitted=event, work=work, verdict=verdict, audit=audit, missing=missing, lost=lost.get(event.key, 0)
        )

    return [report for report in await asyncio.gather(*map(one, submitted)) if report is not None]


async def _audit(files: AuditFiles | None, verdict: VerdictGiven | None) -> tuple[AuditFile | None, str]:
    if files is None or verdict is None:
        return None, ""
    try:
        return await files.read(verdict.validator, verdict.audit_hash), ""
    except MusterError as error:
        return None, error.detail


def _row(report: WorkReport) -> tuple[object, ...]:
    work, submitted = report.work, report.submitted
    return (
        submitted.key,
        submitted.step,
        submitted.index,
        submitted.units,
        work.status.name.lower(),
        "none yet" if work.outcome is None else work.outcome.name.lower(),
        None if work.outcome is None else reason_name(work.reason),
        _money(report),
        work.deadline if report.disputable else None,
    )


def _money(report: WorkReport) -> str:
    """Formats the reward or penalty under the newest verdict."""
    work = report.work
    if work.status is WorkStatus.EXPIRED:
        return "unpaid, no penalty"
    final = "" if work.status is WorkStatus.FINAL else " when final"
    match work.outcome:
        case None:
            return f"{format_amount(work.reward)} MUST if accepted"
        case Outcome.ACCEPTED:
            return f"pays {format_amount(work.reward)} MUST{final}"
        case Outcome.REJECTED:
            return f"unpaid, and {format_amount(report.lost)} MUST for a lost dispute" if report.lost else "unpaid"
        case Outcome.FORGED:
            return f"costs {format_amount(work.penalty)} MUST and the place in the pool{final}"


def _explain(report: WorkReport, *, rows: int | None) -> None:
    """Prints the verdict and its findings as sentences.

    Args:
        report: The submission with its verdict.
        rows: Maximum number of findings to print; None for all.
    """
    say("")
    say(f"{report.submitted.key} (step {report.submitted.step}, slot {report.submitted.index})")
    if report.verdict is not None:
        say(f"  {reason_words(report.work.reason)} Judged by {report.verdict.validator}.")
    for line in _other_validators(report):
        say(f"  {line}")
    if report.audit is None:
        if report.missing:
            say(f"  The evidence can't be read: {report.missing}")
        return
    say(f"  {report.audit.words}")
    if report.audit.draw is not None:
        drawn = f"{len(report.audit.draw.rows)} of {len(report.audit.rows)}"
        say(f"  {drawn} rows were computed again: {report.audit.draw.why}")
    findings = [(check.name, finding) for check in report.audit.checks for finding in check.findings]
    for name, finding in findings[:rows]:
        where = "" if finding.row is None else f"row {finding.row}: "
        say(f"  {name}: {where}{finding.what}")
    if len(findings) > len(findings[:rows]):
        say(f"  … and {len(findings) - len(findings[:rows])} more; --work {report.submitted.key} shows them")
    if report.disputable and report.work.deadline is not None:
        say(f"  Until {report.work.deadline:%Y-%m-%d %H:%M:%S} UTC: muster worker dispute {report.submitted.key}")
        if report.work.outcome is Outcome.REJECTED:
            say(f"  A dispute costs {format_amount(report.work.lost_dispute_cost)} MUST if the rejection is upheld.")


def _other_validators(report: WorkReport) -> list[str]:
    """Returns sentences about the verdicts of validators other than the first judge."""
    work, verdict, lines = report.work, report.verdict, []
    if work.looker is not None:
        lines.append(f"Confirmed by {work.looker}, which examined the work again.")
    if work.juror is not None and work.opinion is not None:
        lines.append(
            f"Contradicted by {work.juror}, which judged the work {work.opinion.name.lower()}: "
            + ("a second validator decides." if work.status is WorkStatus.DISPUTED else "a second validator decided.")
        )
    if work.status is WorkStatus.FINAL and verdict is not None and verdict.outcome != work.outcome:
        if verdict.decisive:
            lines.append("The outcome is the median of the three verdicts.")
        else:
            lines.append("The work was disputed and no validator decided in time, so the penalty was released.")
    return lines


def _raw(report: WorkReport) -> dict[str, object]:
    work, audit = report.work, report.audit
    return {
        "work": report.submitted.key,
        "step": report.submitted.step,
        "index": report.submitted.index,
        "units": report.submitted.units,
        "status": work.status.name.lower(),
        "verdict": None if work.outcome is None else work.outcome.name.lower(),
        "reason": None if work.outcome is None else reason_name(work.reason),
        "reason_code": None if work.outcome is None else work.reason,
        "reason_words": None if work.outcome is None else reason_words(work.reason),
        "pays": str(work.reward),
        "costs_if_forged": str(work.penalty),
        "costs_if_dispute_is_lost": str(work.lost_dispute_cost if work.outcome is Outcome.REJECTED else 0),
        "lost_by_dispute": str(report.lost),
        "disputable_until": work.deadline if report.disputable else None,
        "validator": None if report.verdict is None else report.verdict.validator,
        "confirmed_by": work.looker,
        "contradicted_by": work.juror,
        "contradiction": None if work.opinion is None else work.opinion.name.lower(),
        "audit_hash": None if report.verdict is None else report.verdict.audit_hash,
        "audit": audit,
        "audit_missing": report.missing or None,
    }


def reason_words(code: int) -> str:
    """Returns the sentence that explains a reason code."""
    if code in set(ReasonCode):
        return ReasonCode(code).words
    return f"Reason {code}; this release of muster has no description of it."
