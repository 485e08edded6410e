"""Who delivers what it leases. An expired lease is no guilt, but who delivers little has to rest between leases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from orchestrator.runs.slots import SlotState
from protocol.verdicts import ReasonCode

COUNTS_FOR = frozenset({SlotState.SUBMITTED, SlotState.PROVISIONAL, SlotState.DISPUTED, SlotState.FINAL})
COUNTS_AGAINST = frozenset({SlotState.UNDELIVERED, SlotState.RELEASED})

OWN_CHOICE = frozenset({ReasonCode.BOUNDS_ARITHMETIC, ReasonCode.BOUNDS_ENVIRONMENT})
"""Verdicts on work that its node could know to be worth nothing before it began: the recipe names what is taken. Not
forged, but as good as not delivered; otherwise slots could be burnt at the pool's cost and with nothing at stake."""

IN_TIME = timedelta(seconds=30)
"""Before its lease's end: work that comes to the relayer later than this may well come too late for the next block. Who
hands in at the last moment, again and again, would hold a step up and answer for nothing."""

OWN_FAULT = frozenset({"StakeTooLow", "NotMember", "NotRegistered", "Banned", "UnitsOutOfRange", "NodeNotWilling"})
"""The ledger's errors that a node or its provider brings about. Others (an empty escrow, a pool that was stopped) are
not their doing."""


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
    """What became of a lease, when in Unix milliseconds, and the reason of its verdict if it has one."""

    state: SlotState
    ended_ms: int
    reason: int = 0

    @property
    def counts_against(self) -> bool:
        """Whether its node has not delivered, or nothing of use."""
        return self.state in COUNTS_AGAINST or (self.state in COUNTS_FOR and self.reason in OWN_CHOICE)


@dataclass(frozen=True, slots=True)
class Delivered:
    """How a node delivered of late."""

    delivered: int
    undelivered: int
    resting_until_ms: int | None
    on_trial: bool = False
    """Whether its share is too low, rested or not: it holds one slot at a time until the share is better."""


def tried_in_time(*, handed_in_ms: int, expiry_s: int, error: str) -> bool:
    """Whether work that was handed in and never carried is no failure of its node.

    Args:
        handed_in_ms: When, in Unix milliseconds.
        expiry_s: The end of its lease, in Unix seconds.
        error: The contract's error with which the ledger refused it; empty if there was none.
    """
    return handed_in_ms <= expiry_s * 1000 - IN_TIME.total_seconds() * 1000 and error not in OWN_FAULT


def judge_deliveries(leases: Sequence[PastLease], *, terms: DeliveryTerms, now_ms: int) -> Delivered:
    """Whether a node may lease.

    After its rest it may, one slot at a time, and the next lease that it does not deliver makes it rest again until its
    share is better.

    Args:
        leases: Newest first; those that are live or that nobody answers for are passed over.
        terms: The pool's.
        now_ms: Unix milliseconds.
    """
    over = [lease for lease in leases if lease.state in COUNTS_FOR or lease.state in COUNTS_AGAINST][: terms.newest]
    failed = [lease for lease in over if lease.counts_against]
    delivered = len(over) - len(failed)
    if not failed or len(over) < terms.least or delivered >= terms.threshold * len(over):
        return Delivered(delivered, len(failed), None)
    until = max(lease.ended_ms for lease in failed) + int(terms.rest.total_seconds() * 1000)
    return Delivered(delivered, len(failed), until if until > now_ms else None, on_trial=True)
