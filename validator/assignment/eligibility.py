"""Eligibility of this validator to judge a piece of work, from its state on the ledger. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from ledger.client.work import WorkRecord, WorkStatus
from protocol.identifiers import Address
from validator.domain.items import ItemKind
from validator.domain.submissions import SubmittedWork


class Next(StrEnum):
    """Action for a piece of work."""

    EXAMINE = "examine"
    DROP = "drop"
    """No verdict is needed."""
    LEAVE = "leave"
    """This validator may not judge it; another may."""


@dataclass(frozen=True, slots=True)
class Eligibility:
    """Action for a piece of work, with the reason."""

    next: Next
    why: str


GO = Eligibility(Next.EXAMINE, "")

_WANTED = {
    ItemKind.FIRST: WorkStatus.SUBMITTED,
    ItemKind.SECOND_LOOK: WorkStatus.PROVISIONAL,
    ItemKind.PAID_LOOK: WorkStatus.PROVISIONAL,
    ItemKind.DISPUTE: WorkStatus.DISPUTED,
}


def standing_of(
    work: WorkRecord | None, *, submitted: SubmittedWork, kind: ItemKind, me: Address, now: datetime
) -> Eligibility:
    """Decides what to do about a piece of work.

    Args:
        work: The work on the ledger; None if it is not there.
        submitted: The submission in the queue. After a reorg the ledger may have another one under the same key, and
            would refuse a verdict on this one.
        kind: Reason of the examination.
        me: This validator.
        now: The chain's time.
    """
    if work is None:
        return Eligibility(Next.DROP, "it is not on the ledger")
    if not submitted.matches(work):
        return Eligibility(Next.DROP, f"the ledger has {work.units} units in the file {work.sha256} there now")
    if work.status is not _WANTED[kind]:
        return Eligibility(Next.DROP, f"it is {work.status.name.lower()} already")
    if work.deadline is not None and now > work.deadline:
        return Eligibility(Next.DROP, "its time is over")
    if kind is ItemKind.PAID_LOOK and work.looker is not None:
        return Eligibility(Next.DROP, "another validator has confirmed it, and one look is paid")
    return _interest(work, kind=kind, me=me)


def _interest(work: WorkRecord, *, kind: ItemKind, me: Address) -> Eligibility:
    """Returns whether the ledger accepts a verdict of `me`."""
    if me in {work.node, work.provider}:
        return Eligibility(Next.LEAVE, "it is our own")
    if kind is not ItemKind.FIRST and me == work.judge:
        return Eligibility(Next.LEAVE, "we judged it ourselves")
    if kind is ItemKind.DISPUTE and me == work.disputer:
        return Eligibility(Next.LEAVE, "we disputed it ourselves")
    if kind is ItemKind.DISPUTE and me == work.looker:
        return Eligibility(Next.LEAVE, "we confirmed it ourselves")
    if kind is ItemKind.DISPUTE and me == work.juror:
        return Eligibility(Next.LEAVE, "we contradicted it already, and a second validator decides")
    return GO
