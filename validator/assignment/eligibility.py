"""Decides from a work record on the ledger if this validator may and should judge the work. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from ledger.client.work import WorkRecord, WorkStatus
from protocol.identifiers import Address
from validator.domain.items import ItemKind
from validator.domain.submissions import SubmittedWork


class Next(StrEnum):
    """Next action for a queue item."""

    EXAMINE = "examine"
    """This validator examines the work now."""
    DROP = "drop"
    """The ledger needs no verdict on the work, so the item is deleted."""
    LEAVE = "leave"
    """The ledger does not let this validator judge the work; another validator may."""


@dataclass(frozen=True, slots=True)
class Eligibility:
    """Next action for a queue item, with its reason as text; the text is empty if the work is examined."""

    next: Next
    why: str


GO = Eligibility(Next.EXAMINE, "")
"""Result if this validator may examine the work now."""

_WANTED = {
    ItemKind.FIRST: WorkStatus.SUBMITTED,
    ItemKind.SECOND_LOOK: WorkStatus.PROVISIONAL,
    ItemKind.PAID_LOOK: WorkStatus.PROVISIONAL,
    ItemKind.DISPUTE: WorkStatus.DISPUTED,
}
"""For each kind of queue item: status on the ledger in which the work needs an examination."""


def eligibility_of(
    work: WorkRecord | None, *, submitted: SubmittedWork, kind: ItemKind, me: Address, now: datetime
) -> Eligibility:
    """Decides whether this validator examines an item now, deletes it, or leaves it to others.

    Args:
        work: The work record on the ledger; None if the ledger has none.
        submitted: The submission in the queue. After a reorg the ledger may have another submission under the same key,
            and would refuse a verdict on the submission in the queue.
        kind: Reason for the examination.
        me: Address of this validator.
        now: The chain's time.
    """
    if work is None:
        return Eligibility(Next.DROP, "the work is not on the ledger")
    if not submitted.matches(work):
        why = f"the ledger now has another submission under this key: {work.units} units in the file {work.sha256}"
        return Eligibility(Next.DROP, why)
    if work.status is not _WANTED[kind]:
        return Eligibility(Next.DROP, f"the work is {work.status.name.lower()} already")
    if work.deadline is not None and now > work.deadline:
        return Eligibility(Next.DROP, "the deadline has passed")
    if kind is ItemKind.PAID_LOOK and work.looker is not None:
        why = "another validator has confirmed the verdict, and the pool pays for only one confirmation"
        return Eligibility(Next.DROP, why)
    return _without_conflict(work, kind=kind, me=me)


def _without_conflict(work: WorkRecord, *, kind: ItemKind, me: Address) -> Eligibility:
    """Returns `GO` if the ledger accepts a verdict from the validator `me`, else the conflict of interest."""
    if me in {work.node, work.provider}:
        return Eligibility(Next.LEAVE, "this validator's key is the work's node or provider")
    if kind is not ItemKind.FIRST and me == work.judge:
        return Eligibility(Next.LEAVE, "this validator gave the first verdict")
    if kind is ItemKind.DISPUTE and me == work.disputer:
        return Eligibility(Next.LEAVE, "this validator opened the dispute")
    if kind is ItemKind.DISPUTE and me == work.looker:
        return Eligibility(Next.LEAVE, "this validator confirmed the first verdict")
    if kind is ItemKind.DISPUTE and me == work.juror:
        return Eligibility(Next.LEAVE, "this validator contradicted the first verdict; another validator must decide")
    return GO
