"""What the ledger's word on a piece of work means for who is about to examine it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from ledger.client.work import Work, WorkStatus
from protocol.identifiers import Address
from validator.items import Kind
from validator.submissions import SubmittedWork


class Next(StrEnum):
    """What to do about it."""

    EXAMINE = "examine"
    DROP = "drop"
    """Nobody has to, any more."""
    LEAVE = "leave"
    """This validator may not; another may."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What to do, and why."""

    next: Next
    why: str


GO = Standing(Next.EXAMINE, "")

_WANTED = {
    Kind.FIRST: WorkStatus.SUBMITTED,
    Kind.SECOND_LOOK: WorkStatus.PROVISIONAL,
    Kind.PAID_LOOK: WorkStatus.PROVISIONAL,
    Kind.DISPUTE: WorkStatus.DISPUTED,
}


def standing_of(work: Work | None, *, submitted: SubmittedWork, kind: Kind, me: Address, now: datetime) -> Standing:
    """What to do about a piece of work.

    Args:
        work: As the ledger has it; None if it does not.
        submitted: What the queue names. A reorganisation may have put another submission under the same key; the ledger
            would refuse a verdict on this one.
        kind: Why it is to be examined.
        me: Who would judge.
        now: The chain's time.
    """
    if work is None:
        return Standing(Next.DROP, "it is not on the ledger")
    if not submitted.is_what(work):
        return Standing(Next.DROP, f"the ledger has {work.units} units in the file {work.sha256} there now")
    if work.status is not _WANTED[kind]:
        return Standing(Next.DROP, f"it is {work.status.name.lower()} already")
    if work.deadline is not None and now > work.deadline:
        return Standing(Next.DROP, "its time is over")
    if kind is Kind.PAID_LOOK and work.looker is not None:
        return Standing(Next.DROP, "another validator has confirmed it, and one look is paid")
    return _interest(work, kind=kind, me=me)


def _interest(work: Work, *, kind: Kind, me: Address) -> Standing:
    """Whether the ledger lets `me` judge it."""
    if me in {work.node, work.provider}:
        return Standing(Next.LEAVE, "it is our own")
    if kind is not Kind.FIRST and me == work.judge:
        return Standing(Next.LEAVE, "we judged it ourselves")
    if kind is Kind.DISPUTE and me == work.disputer:
        return Standing(Next.LEAVE, "we disputed it ourselves")
    if kind is Kind.DISPUTE and me == work.looker:
        return Standing(Next.LEAVE, "we confirmed it ourselves")
    if kind is Kind.DISPUTE and me == work.juror:
        return Standing(Next.LEAVE, "we contradicted it already, and a second validator decides")
    return GO
