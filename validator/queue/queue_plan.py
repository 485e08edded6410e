"""Translates a batch of ledger events into queue changes. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from ledger.artifacts import Contract
from ledger.client.event_follower import ObservedEvent
from ledger.events.types import (
    LedgerEvent,
    SecretCommitted,
    VerdictConfirmed,
    VerdictContradicted,
    VerdictGiven,
    WorkDisputed,
    WorkExpired,
    WorkFinal,
    WorkSubmitted,
)
from protocol.identifiers import Address, Digest
from validator.domain.items import LOOKS, ItemId, ItemKind, item_id
from validator.domain.submissions import SubmittedWork

FOLLOWED: dict[Contract, tuple[type[LedgerEvent], ...]] = {
    Contract.WORK_LEDGER: (
        WorkSubmitted,
        VerdictGiven,
        VerdictContradicted,
        VerdictConfirmed,
        WorkDisputed,
        WorkFinal,
        WorkExpired,
    ),
    Contract.AUDIT_SECRETS: (SecretCommitted,),
}
"""Events that are read, by contract."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Periods:
    """Durations of the pool's judge, dispute and decision periods."""

    judge: timedelta
    challenge: timedelta
    dispute: timedelta


@dataclass(slots=True)
class QueueChanges:
    """Queue changes of a batch of events; events reverted within the batch are left out."""

    put: dict[Digest, SubmittedWork] = field(default_factory=dict)
    """Work without a verdict, by key, in the order of submission."""
    lost: dict[Digest, Address] = field(default_factory=dict)
    """Work whose verdict a reorg removed, with its node."""
    drop: set[ItemId] = field(default_factory=set)
    due: dict[Digest, int] = field(default_factory=dict)
    """Unix second from which work can be finalised."""
    settled: set[Digest] = field(default_factory=set)
    """Work that needs no further action."""
    heard: dict[Address, int] = field(default_factory=dict)
    """Validators with an event in the batch, with its Unix second."""


def plan_of(events: Iterable[ObservedEvent], *, pool_id: int, at: int, periods: Periods) -> QueueChanges:
    """Computes the queue changes of a batch of events.

    Args:
        events: Events in the order of the chain.
        pool_id: The validator's pool; events of other pools are skipped.
        at: Unix time of the first event's block. It is a lower bound for all events, so that no deadline is too late.
        periods: The pool's periods.
    """
    plan = QueueChanges()
    for observed in events:
        event, reverted = observed.event, observed.reverted
        if getattr(event, "pool_id", pool_id) != pool_id:
            continue
        match event:
            case WorkSubmitted():
                _submitted(plan, event, reverted=reverted, until=at + _seconds(periods.judge))
            case VerdictGiven():
                plan.heard[event.validator] = at
                _judged(plan, event, reverted=reverted, until=at + _seconds(periods.challenge))
            case VerdictContradicted() | VerdictConfirmed():
                plan.heard[event.validator] = at
            case WorkDisputed():
                plan.drop.update(item_id(event.key, kind) for kind in LOOKS)
                plan.due[event.key] = at if reverted else at + _seconds(periods.dispute)
            case WorkFinal() | WorkExpired():
                _over(plan, event.key, at=at, reverted=reverted)
            case SecretCommitted():
                plan.heard[event.validator] = at
            case _:
                pass
    return plan


def _submitted(plan: QueueChanges, event: WorkSubmitted, *, reverted: bool, until: int) -> None:
    if reverted:
        plan.put.pop(event.key, None)
        plan.lost.pop(event.key, None)
        _forget(plan, event.key)
        return
    plan.put[event.key] = SubmittedWork.of(event)
    plan.settled.discard(event.key)
    plan.due[event.key] = until


def _judged(plan: QueueChanges, event: VerdictGiven, *, reverted: bool, until: int) -> None:
    if reverted:
        plan.due[event.key] = until
        plan.settled.discard(event.key)
        plan.lost[event.key] = event.node
    elif event.decisive:
        _forget(plan, event.key)
    else:
        plan.put.pop(event.key, None)
        plan.lost.pop(event.key, None)
        plan.drop.add(item_id(event.key, ItemKind.FIRST))
        plan.due[event.key] = until


def _over(plan: QueueChanges, key: Digest, *, at: int, reverted: bool) -> None:
    if reverted:
        plan.due[key] = at
        plan.settled.discard(key)
        return
    plan.put.pop(key, None)
    plan.lost.pop(key, None)
    _forget(plan, key)


def _forget(plan: QueueChanges, key: Digest) -> None:
    plan.drop.update(item_id(key, kind) for kind in ItemKind)
    plan.due.pop(key, None)
    plan.settled.add(key)


def _seconds(period: timedelta) -> int:
    return int(period.total_seconds())
