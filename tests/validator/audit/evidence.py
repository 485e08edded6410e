"""Audit files as validators write them, honest or not."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from protocol.identifiers import Address, Digest, digest
from protocol.verdicts import Outcome, ReasonCode
from protocol.wire.audits import AuditCheck, AuditDraw, AuditFile, AuditRow, CheckState
from validator.domain.submissions import SubmittedWork

TOKENS = 10


def audit_of(
    work: SubmittedWork,
    validator: Address,
    *,
    audited: Sequence[int],
    rows: int = 10,
    share: float = 1.0,
    epoch: int | None = None,
    block: int | None = None,
    outcome: Outcome = Outcome.ACCEPTED,
    reason: ReasonCode = ReasonCode.PASSED,
) -> AuditFile:
    """Returns the evidence of a verdict on a file of `rows` rows, some of which were recomputed."""
    listed = tuple(
        AuditRow(
            row=row,
            group=row // 2,
            sample=row,
            prompt_index=row,
            tokens=TOKENS,
            task=1.0,
            length_penalty=0.0,
            reward=1.0,
            audited=row in audited,
        )
        for row in range(rows)
    )
    draw = AuditDraw(epoch=epoch, block=block, share=share, why="a test", rows=tuple(audited)) if audited else None
    return AuditFile(
        pool_id=work.pool_id,
        key=work.key,
        validator=validator,
        judged_at_ms=0,
        muster="0",
        outcome=outcome,
        reason=int(reason),
        words="so it is",
        node=work.node,
        run=work.run,
        step=work.step,
        index=work.index,
        version=work.version,
        checkpoint=work.checkpoint,
        sha256=work.sha256,
        units=work.units,
        submitted_block=work.block,
        beacon_block=None,
        draw=draw,
        checks=(AuditCheck(name="format", state=CheckState.PASSED),),
        rows=listed,
    )


def hash_of(audit: AuditFile) -> Digest:
    """Returns the hash that the ledger stores."""
    return digest(hashlib.sha256(audit.encode()).digest())
