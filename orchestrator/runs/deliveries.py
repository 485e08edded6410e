"""Who delivers what it leases. An expired lease is no guilt, but who delivers little has to rest between leases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from orchestrator.runs.slots import SlotState

COUNTS_FOR = frozenset({SlotState.SUBMITTED, SlotState.PROVISIONAL, SlotState.DISPUTED, SlotState.FINAL})
COUNTS_AGAINST = frozenset({SlotState.UNDELIVERED, SlotState.RELEASED})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryTerms:
    """What a pool expects.

    Args:
        newest: So many leases that are over are looked at.
        least: With fewer that are over nobody is judged.
        threshold: The delivered share below which a node rests.
        rest: How long after its newest undelivered lease.
    """

    newest: int
    least: int
    threshold: float
    rest: timedelta


@dataclass(frozen=True, slots=True)
class PastLease:
    """What became of a lease, and when in Unix milliseconds."""

    state: SlotState
    ended_ms: int


@dataclass(frozen=True, slots=True)
class Delivered:
    """How a node delivered of late."""

    delivered: int
    undelivered: int
    resting_until_ms: int | None


def judge_deliveries(leases: Sequence[PastLease], *, terms: DeliveryTerms, now_ms: int) -> Delivered:
    """Whether a node may lease.

    After its rest it may, and the next lease that it does not deliver makes it rest again until its share is better.

    Args:
        leases: Newest first; those that are live or that nobody answers for are passed over.
        terms: The pool's.
        now_ms: Unix milliseconds.
    """
    over = [lease for lease in leases if lease.state in COUNTS_FOR or lease.state in COUNTS_AGAINST][: terms.newest]
    failed = [lease for lease in over if lease.state in COUNTS_AGAINST]
    delivered = len(over) - len(failed)
    resting = None
    if failed and len(over) >= terms.least and delivered < terms.threshold * len(over):
        until = max(lease.ended_ms for lease in failed) + int(terms.rest.total_seconds() * 1000)
        resting = until if until > now_ms else None
    return Delivered(delivered, len(failed), resting)
