"""Builds the audit file of a verdict from the queue item and the conclusion of its examination. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.verdicts import ReasonCode
from protocol.versions import release
from protocol.wire.audits import AuditDraw, AuditFile
from validator.audit.draw import RowDraw
from validator.domain.items import Item, ItemKind, Resolution
from validator.examination.interface import Conclusion

_LONGEST_WORDS = 2000
"""Maximum length of the verdict's text, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRows:
    """Selection of the rows to recompute, with its origin for the audit file.

    Args:
        draw: Seed and share, for the examiner.
        epoch: Epoch of the secret in the seed; None if all rows are recomputed without a seed.
        block: Number of the block whose hash is in the seed; None without a seed.
        why: Reason for the share, in one line.
    """

    draw: RowDraw
    epoch: int | None = None
    block: int | None = None
    why: str


def audit_file(
    item: Item, conclusion: Conclusion, *, drawn: DrawnRows | None, validator: Address, at: datetime
) -> AuditFile:
    """Builds the audit file with all findings about one submission.

    Args:
        item: The examined item.
        conclusion: Conclusion of the examination.
        drawn: Selection of the rows to recompute; None if a person decided.
        validator: Address of the validator that reached the conclusion.
        at: Chain time of the conclusion.
    """
    work = item.work
    return AuditFile(
        pool_id=work.pool_id,
        key=work.key,
        validator=validator,
        judged_at_ms=unix_ms(at),
        muster=release(),
        outcome=conclusion.outcome,
        reason=int(conclusion.reason),
        words=conclusion.words[:_LONGEST_WORDS],
        node=work.node,
        run=work.run,
        step=work.step,
        index=work.index,
        version=work.version,
        checkpoint=work.checkpoint,
        sha256=work.sha256,
        units=work.units,
        submitted_block=work.block,
        beacon_block=work.beacon_block,
        environment=conclusion.environment,
        environment_version=conclusion.environment_version,
        engine=conclusion.engine,
        dtype=conclusion.dtype,
        verifier_engine=conclusion.verifier_engine,
        verifier_dtype=conclusion.verifier_dtype,
        limits=conclusion.limits,
        draw=_draw(conclusion, drawn),
        checks=conclusion.checks,
        rows=conclusion.rows,
        second_look=item.kind is not ItemKind.FIRST,
    )


def by_hand(resolution: Resolution) -> Conclusion:
    """Returns a person's decision about parked work as a conclusion without checks."""
    return Conclusion(
        outcome=resolution.outcome,
        reason=ReasonCode.RESOLVED_BY_HAND,
        words=f"decided by {resolution.by}: {resolution.words}",
        checks=(),
    )


def _draw(conclusion: Conclusion, drawn: DrawnRows | None) -> AuditDraw | None:
    if drawn is None or not conclusion.audited:
        return None
    return AuditDraw(
        epoch=drawn.epoch, block=drawn.block, share=drawn.draw.share, why=drawn.why, rows=conclusion.audited
    )
