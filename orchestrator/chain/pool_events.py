"""Converts ledger events about work and money to events of the pool, which owners read and webhooks deliver."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ledger.amounts import format_amount
from ledger.events.types import (
    DisputeLost,
    LedgerEvent,
    RewardsClaimed,
    VerdictGiven,
    WorkDisputed,
    WorkExpired,
    WorkFinal,
)
from protocol.identifiers import Address, Digest
from protocol.verdicts import reason_name

LEDGER = "ledger"
"""Actor of events that no single account caused."""


@dataclass(frozen=True, slots=True)
class PoolEventText:
    """An event of the pool that a ledger event causes."""

    kind: str
    """Kind of the event, such as `verdict.forged`."""
    detail: str
    actor: str
    node: Address | None = None
    work: Digest | None = None
    """Key of the work item that the event is about."""
    provider: Address | None = None
    """Provider whose account the event changes, if the event names no work item."""
    amount: int = 0
    """Earned, claimed or slashed money, in 10⁻¹⁸ MUST."""

    @property
    def reverted_kind(self) -> str:
        """Kind of the event after a reorg has removed the ledger event, such as `verdict.reverted`."""
        return f"{self.kind.partition('.')[0]}.reverted"


def pool_events_of(event: LedgerEvent) -> Iterator[PoolEventText]:
    """Yields the events of the pool that a ledger event causes; none for most kinds of ledger events."""
    match event:
        case VerdictGiven():
            yield from _of_verdict(event)
        case WorkExpired():
            detail = f"work {event.key}: no validator judged it in time"
            yield PoolEventText("verdict.expired", detail, LEDGER, event.node, event.key)
        case WorkDisputed():
            yield PoolEventText("dispute.opened", f"work {event.key}", event.disputer, event.node, event.key)
        case DisputeLost():
            detail = f"work {event.key}: its rejection was upheld"
            yield PoolEventText("dispute.lost", detail, LEDGER, event.node, event.key)
            if event.taken:
                detail = f"{format_amount(event.taken)} MUST: the dispute of work {event.key} was lost"
                yield PoolEventText("slash.dispute", detail, LEDGER, event.node, event.key, amount=event.taken)
        case WorkFinal():
            if event.slashed:
                detail = f"{format_amount(event.slashed)} MUST: work {event.key} is forged"
                yield PoolEventText("slash.forgery", detail, LEDGER, event.node, event.key, amount=event.slashed)
            if event.paid:
                detail = f"{format_amount(event.paid)} MUST for work {event.key}"
                yield PoolEventText("payout.earned", detail, LEDGER, event.node, event.key, amount=event.paid)
        case RewardsClaimed():
            detail = f"{format_amount(event.amount)} MUST to {event.to}"
            yield PoolEventText("payout.claimed", detail, event.provider, provider=event.provider, amount=event.amount)


def _of_verdict(event: VerdictGiven) -> Iterator[PoolEventText]:
    outcome = event.outcome.name.lower()
    detail = f"work {event.key}: {reason_name(event.reason)}; audit file {event.audit_hash}"
    yield PoolEventText(f"verdict.{outcome}", detail, event.validator, event.node, event.key)
    if event.decisive:
        detail = f"work {event.key} is {outcome}"
        yield PoolEventText("dispute.decided", detail, event.validator, event.node, event.key)
