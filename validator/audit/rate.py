"""Share of a node's rows that is recomputed: all rows at first, then fewer, never below the pool's audit floor.

The node's record and the validator's policy determine the share, without I/O. The share applies only to the checks that
recompute rows (checks 8 to 10); all other checks cover every row. A clean verdict is an acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from protocol.verdicts import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePolicy:
    """Policy by which the share of recomputed rows falls with a node's clean verdicts.

    Args:
        trial: Number of consecutive clean verdicts after which the share first falls below 1; at least 1.
        halved_after: Number of further clean verdicts from one halving of the share to the next, down to the floor; at
            least 1.
        trial_after_failure: Replaces `trial` for a node whose work was once rejected or judged forged, or whose
            provider has another node that forged work.
    """

    trial: int = 8
    halved_after: int = 8
    trial_after_failure: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """Summary of the verdicts on a node's work, which determines its next file's audit share.

    Args:
        clean: Number of consecutive clean verdicts since the last rejected or forged work.
        failed_at: Time of the node's last rejected or forged work; None if there is none.
        provider_forged_at: Time of the last forged work of another node of the same provider, if that is later than
            `failed_at`; `clean` then counts verdicts since that time. None otherwise.
    """

    clean: int = 0
    failed_at: datetime | None = None
    provider_forged_at: datetime | None = None


NEW = AuditRecord()
"""Record of a node without verdicts."""


def share_of(record: AuditRecord, *, floor: float, policy: RatePolicy) -> tuple[float, str]:
    """Returns the share of a file's rows to recompute, floor <= share <= 1, and the reason for it in one line.

    Args:
        record: Audit record of the node.
        floor: The pool's audit floor, 0 < floor <= 1 (`audit_floor_bps` of its terms, divided by 10000).
        policy: Policy of the validator.
    """
    failed_at = record.provider_forged_at or record.failed_at
    trial = policy.trial if failed_at is None else policy.trial_after_failure
    if record.clean < trial:
        if failed_at is None:
            return 1.0, f"a new node: {record.clean} of {trial} clean verdicts"
        what = "failed" if record.provider_forged_at is None else "another node of its provider forged work"
        return 1.0, f"{what} on {failed_at:%Y-%m-%d %H:%M} UTC: {record.clean} of {trial} clean verdicts since"
    halvings = min(64, 1 + (record.clean - trial) // max(1, policy.halved_after))
    share = 2.0**-halvings
    if share <= floor:
        return floor, f"a proven node: {record.clean} clean verdicts in a row, the pool's floor"
    return share, f"a node that proves itself: {record.clean} clean verdicts in a row"


def after(record: AuditRecord, outcome: Outcome, *, at: datetime) -> AuditRecord:
    """Returns the record after one more verdict; a verdict other than an acceptance resets the count.

    Args:
        record: Record before the verdict.
        outcome: Outcome of the verdict.
        at: Time of the verdict.
    """
    if outcome is Outcome.ACCEPTED:
        return replace(record, clean=record.clean + 1)
    return AuditRecord(failed_at=at)
