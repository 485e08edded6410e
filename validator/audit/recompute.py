"""Repeats the row draw of a past verdict from public data, and compares it with the audit file. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from protocol.identifiers import Address, Digest
from protocol.verdicts import Outcome, ReasonCode
from protocol.wire.audits import AuditDraw, AuditFile
from validator.audit.draw import BASIS_POINTS, RowDraw, draw_rows, row_seed
from validator.domain.submissions import SubmittedWork


class AuditComparison(StrEnum):
    """Result of comparing a verdict with the repeated draw."""

    AGREES = "agrees"
    """The validator recomputed the rows that the rules require."""
    DIFFERS = "differs"
    """The validator violated the rules of the draw, or its audit file belongs to another verdict."""
    UNKNOWN = "can't be recomputed"
    """Data is missing, so the draw can't be repeated; no violation is claimed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastVerdict:
    """A verdict on the ledger, with its work.

    Args:
        work: The submission.
        validator: Author of the verdict.
        outcome: Outcome of the verdict.
        reason: Reason code of the verdict; a validator with a newer release may have given a code that `ReasonCode`
            lacks.
        audit_hash: SHA-256 of the audit file.
        decisive: True if the verdict ended a dispute.
    """

    work: SubmittedWork
    validator: Address
    outcome: Outcome
    reason: int
    audit_hash: Digest
    decisive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PastEpoch:
    """Ledger data of one validator's past epoch.

    Args:
        epoch: Number of the epoch.
        secret: The revealed secret; None if it was not revealed.
    """

    epoch: int
    secret: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Result of comparing one verdict with the repeated draw.

    Args:
        finding: The result.
        why: Explanation of the result in one sentence.
        share: Share of drawn rows according to the audit file; None if the audit file has no draw.
        drawn: Number of recomputed rows, according to the audit file.
        rows: Number of all rows.
    """

    finding: AuditComparison
    why: str
    share: float | None = None
    drawn: int = 0
    rows: int = 0


def compare(
    verdict: PastVerdict, audit: AuditFile, *, epoch: PastEpoch, block_hash: Digest | None, floor: float
) -> Comparison:
    """Repeats a verdict's row draw and compares it with the audit file.

    Args:
        verdict: The verdict on the ledger.
        audit: The audit file whose hash the verdict names.
        epoch: The newest epoch of the verdict's author that was committed before the submission's block.
        block_hash: Hash of the block after the submission's block; None if the RPC endpoint does not have it.
        floor: The pool's audit floor, 0 < floor <= 1.
    """
    other = _contradiction(verdict, audit)
    if other:
        return Comparison(finding=AuditComparison.DIFFERS, why=other)
    if audit.draw is None:
        return _without_draw(verdict)
    found, why = _decided_without_draw(verdict, audit, audit.draw) or _compare_draw(
        verdict, audit.draw, rows=len(audit.rows), epoch=epoch, block_hash=block_hash, floor=floor
    )
    share, drawn = audit.draw.share, len(audit.draw.rows)
    return Comparison(finding=found, why=why, share=share, drawn=drawn, rows=len(audit.rows))


def _contradiction(verdict: PastVerdict, audit: AuditFile) -> str:
    """Describes the first contradiction between audit file and ledger; returns an empty text if there is none."""
    work = verdict.work
    pairs = {
        "work": (audit.key, work.key),
        "pool": (audit.pool_id, work.pool_id),
        "validator": (audit.validator, verdict.validator),
        "node": (audit.node, work.node),
        "file": (audit.sha256, work.sha256),
        "version": (audit.checkpoint, work.checkpoint),
        "units": (audit.units, work.units),
        "outcome": (audit.outcome, verdict.outcome),
        "reason": (audit.reason, verdict.reason),
    }
    for name, (says, is_) in pairs.items():
        if says != is_:
            return f"the audit file names another {name} than the ledger: {says}, not {is_}"
    numbers = [row.row for row in audit.rows]
    if numbers != list(range(len(numbers))):
        return "the audit file does not list every row once and in order"
    if verdict.outcome is Outcome.ACCEPTED and audit.rows and sum(row.tokens for row in audit.rows) < work.units:
        return f"the audit file lists fewer tokens than the {work.units} units that were paid: rows are missing"
    return ""


def _without_draw(verdict: PastVerdict) -> Comparison:
    if verdict.reason == ReasonCode.RESOLVED_BY_HAND:
        return Comparison(finding=AuditComparison.AGREES, why="a person decided, so no rows were drawn")
    if verdict.outcome is Outcome.ACCEPTED:
        return Comparison(finding=AuditComparison.DIFFERS, why="it was accepted although no row was computed again")
    return Comparison(
        finding=AuditComparison.AGREES, why="an earlier check failed, so that no row had to be computed again"
    )


def _decided_without_draw(
    verdict: PastVerdict, audit: AuditFile, draw: AuditDraw
) -> tuple[AuditComparison, str] | None:
    """Returns the result if the audit file alone determines the result; None if the draw has to be repeated."""
    if draw.rows != tuple(row.row for row in audit.rows if row.audited):
        return AuditComparison.DIFFERS, "the audit file contradicts itself about which rows were computed again"
    if len(draw.rows) == len(audit.rows):
        return AuditComparison.AGREES, f"every row was computed again: {draw.why}"
    if verdict.outcome is not Outcome.ACCEPTED:
        return AuditComparison.AGREES, "the rows that were computed again were enough to reject it"
    return None


def _compare_draw(
    verdict: PastVerdict,
    draw: AuditDraw,
    *,
    rows: int,
    epoch: PastEpoch,
    block_hash: Digest | None,
    floor: float,
) -> tuple[AuditComparison, str]:
    """Repeats the draw of an accepted submission, and compares it with the rows that the validator recomputed."""
    broken = _broken_rule(verdict, draw, rows=rows, epoch=epoch, floor=floor)
    if broken:
        return AuditComparison.DIFFERS, broken
    if epoch.secret is None:
        return AuditComparison.UNKNOWN, f"the secret of epoch {epoch.epoch} is not revealed yet"
    if block_hash is None:
        return AuditComparison.UNKNOWN, f"the RPC endpoint does not have block {verdict.work.block + 1}"
    seed = row_seed(epoch.secret, verdict.work.key, block_hash)
    missing = sorted(set(draw_rows(RowDraw(seed=seed, share=draw.share), rows)) - set(draw.rows))
    if missing:
        listed = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
        return AuditComparison.DIFFERS, f"rows {listed} were drawn, but were not computed again"
    return AuditComparison.AGREES, f"the secret of epoch {epoch.epoch} draws the same rows"


def _broken_rule(verdict: PastVerdict, draw: AuditDraw, *, rows: int, epoch: PastEpoch, floor: float) -> str:
    """Describes the first violated rule that can be checked without the secret; returns an empty text if there is none.

    Files of which all rows were recomputed don't reach this function.
    """
    block = verdict.work.block + 1
    if verdict.decisive:
        return f"a dispute must be decided on all rows, but {len(draw.rows)} of {rows} were computed again"
    if round(draw.share * BASIS_POINTS) < round(floor * BASIS_POINTS):
        return f"a share of {draw.share:.2%} is below the pool's floor of {floor:.2%}"
    if draw.share >= 1 or draw.epoch is None:
        return f"all rows had to be computed again, but only {len(draw.rows)} of {rows} were"
    if (draw.epoch, draw.block) != (epoch.epoch, block):
        used = f"epoch {draw.epoch} and block {draw.block}"
        return f"the rows were drawn with {used}, but had to be drawn with epoch {epoch.epoch} and block {block}"
    return ""
