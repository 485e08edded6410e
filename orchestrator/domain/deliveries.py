"""Delivery rate per node and per provider.

Nodes and providers below the threshold are throttled. Throttling only reduces the leases that a node gets; expired
leases and rejected work never cost stake here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Self

from orchestrator.domain.slots import Slot, SlotState, StoredFileState
from protocol.runtime.clock import milliseconds
from protocol.verdicts import Outcome, ReasonCode

JUDGED = frozenset({SlotState.PROVISIONAL, SlotState.DISPUTED, SlotState.FINAL})
"""States of slots whose work has a verdict."""

OWN_CHOICE = frozenset({ReasonCode.BOUNDS_ARITHMETIC, ReasonCode.BOUNDS_ENVIRONMENT})
"""Reason codes of work that the recipe does not allow, which the node could know before it generated the work.

Each such rejection counts as a failed lease; `DeliveryTerms.rejections` does not excuse it. Otherwise a node could
waste a few slots with such work without a consequence.
"""

IN_TIME = timedelta(seconds=30)
"""Work is submitted in time if the relayer received it at least this long before its lease's end.

A node that submitted its work in time is not blamed if the relayer never relayed the work, except after one of the
errors in `OWN_FAULT`. Without this rule, a node could submit all its work too late for the relayer, and delay steps
without a consequence.
"""

OWN_FAULT = frozenset({"StakeTooLow", "NotMember", "NotRegistered", "Banned", "UnitsOutOfRange", "NodeNotWilling"})
"""Ledger errors that a node or its provider causes. Other errors, such as an empty escrow, are not the node's fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryTerms:
    """Delivery rules of a pool.

    Args:
        newest: Number of newest finished leases that count.
        provider_newest: Number of newest finished leases that count for all nodes of a provider together.
        least: Minimum number of finished leases; a node with fewer is not throttled.
        threshold: Share of delivered leases below which a node is throttled, from 0 to 1.
        rejections: Number of rejections among `newest` leases that don't count as failures, because a few rejections
            of honest work are normal.
        pause: Time after its newest failure for which a throttled node gets no leases.
    """

    newest: int
    provider_newest: int
    least: int
    threshold: float
    rejections: int
    pause: timedelta

    def of_provider(self) -> Self:
        """Returns the rules for all nodes of a provider together.

        The rules consider more of the newest leases than those for one node, and ignore proportionally more rejections.
        """
        free = self.rejections * self.provider_newest // self.newest
        return replace(self, newest=self.provider_newest, rejections=free)


@dataclass(frozen=True, slots=True)
class PastLease:
    """A lease with its outcome so far.

    Args:
        slot: State of the slot, with the verdict on its work.
        ended_ms: Time of the lease's failure or delivery, in Unix milliseconds.
        reason: The verdict's reason code.
        late: True if the work arrived after the step had stopped waiting for it.
    """

    slot: Slot
    ended_ms: int
    reason: int = 0
    late: bool = False

    @property
    def counts(self) -> bool:
        """True if the lease counts in the delivery rate.

        A live or excused lease does not count. A lease whose work expired without a verdict counts only if it failed.
        """
        if self.slot.state is SlotState.EXPIRED:
            return self.failed
        return self.slot.state not in {SlotState.LEASED, SlotState.LAPSED}

    @property
    def failed(self) -> bool:
        """True if nothing useful was delivered in time."""
        if self.late and self.slot.state.on_ledger:
            return True
        match self.slot.state:
            case SlotState.UNDELIVERED | SlotState.RELEASED:
                return True
            case SlotState.SUBMITTED | SlotState.EXPIRED:
                return self.slot.file is StoredFileState.ABSENT
            case state:
                return state in JUDGED and self.reason in OWN_CHOICE

    @property
    def rejected(self) -> bool:
        """True if the work was rejected or judged forged, or if many of its rows took too long to score."""
        if self.failed or self.slot.state not in JUDGED:
            return False
        return self.slot.outcome in {Outcome.REJECTED, Outcome.FORGED} or self.reason == ReasonCode.PASSED_UNDECIDED


@dataclass(frozen=True, slots=True)
class Delivered:
    """The delivery record of a node, or of all nodes of a provider."""

    delivered: int
    """Number of finished leases with useful work."""
    undelivered: int
    """Number of finished leases that count as failures."""
    resting_until_ms: int | None
    """Time until which the node gets no leases, in Unix milliseconds; None if it gets leases now."""
    on_trial: bool = False
    """True if the delivered share is too low; the node then holds one slot at a time."""


def tried_in_time(*, handed_in_ms: int, expiry_s: int, error: str) -> bool:
    """Returns whether a lease is excused although its submitted work was never relayed.

    Args:
        handed_in_ms: Time of submission, Unix ms.
        expiry_s: End of the work's lease, Unix s.
        error: Name of the contract error with which the ledger refused the work; empty if there was none.
    """
    return handed_in_ms <= expiry_s * 1000 - IN_TIME.total_seconds() * 1000 and error not in OWN_FAULT


def judge_deliveries(leases: Sequence[PastLease], *, terms: DeliveryTerms, now_ms: int) -> Delivered:
    """Judges the delivery record of a node, or of all nodes of a provider together.

    Below the threshold, a node gets no leases for `terms.pause`, and then one slot at a time. The next failed lease
    begins another pause, unless the delivered share has reached the threshold by then.

    Args:
        leases: Newest first; live and excused leases are skipped.
        terms: The pool's rules.
        now_ms: Current time, Unix ms.
    """
    over = [lease for lease in leases if lease.counts][: terms.newest]
    rejected = [lease for lease in over if lease.rejected]
    failed = [lease for lease in over if lease.failed] + rejected[: max(0, len(rejected) - terms.rejections)]
    delivered = len(over) - len(failed)
    if not failed or len(over) < terms.least or delivered >= terms.threshold * len(over):
        return Delivered(delivered, len(failed), None)
    until = max(lease.ended_ms for lease in failed) + milliseconds(terms.pause)
    return Delivered(delivered, len(failed), until if until > now_ms else None, on_trial=True)
