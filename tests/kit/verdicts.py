"""Gives a verdict on submitted work like a validator."""

from __future__ import annotations

from ledger.client import Ledger
from ledger.client.work import Verdict
from protocol.identifiers import Digest
from protocol.verdicts import Outcome, ReasonCode

AUDIT = Digest("0x" + "cd" * 32)


async def verdict_on(
    ledger: Ledger,
    key: Digest,
    outcome: Outcome,
    *,
    reason: int = ReasonCode.PASSED,
    audit_hash: Digest = AUDIT,
    decisive: bool = False,
) -> Verdict:
    """A verdict that names what the ledger has under the key."""
    work = await ledger.work.get(key)
    assert work is not None
    return Verdict(
        key=key,
        sha256=work.sha256,
        units=work.units,
        outcome=outcome,
        reason=reason,
        audit_hash=audit_hash,
        decisive=decisive,
    )
