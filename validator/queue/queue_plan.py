"""Computes the changes of the work queue for a batch of ledger events. No I/O."""

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
"""Event types that the intake loop reads, by contract."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Periods:
    """Durations of the pool's periods, from its terms."""

    judge: timedelta
    """Judge period: time after the submission in which a validator may give the first verdict."""
    challenge: timedelta
    """Challenge period: time after the first verdict in which the verdict can be disputed."""
    dispute: timedelta
    """Dispute period: time after the opening of a dispute in which validators may decide the dispute."""


@dataclass(slots=True)
class QueueChanges:
    """Changes of queue and deadlines that a batch of events causes.

    If a later event of the batch cancels an event, neither event adds an item; for example, if a reorg removes a
    submission of the same batch.
    """

    put: dict[Digest, SubmittedWork] = field(default_factory=dict)
    """Work to add for a first verdict, by work key, in the order of submission."""
    lost: dict[Digest, Address] = field(default_factory=dict)
    """Work to examine again, because a reorg removed its verdict: address of the node, by work key."""
    drop: set[ItemId] = field(default_factory=set)
    """Ids of the items to delete."""
    due: dict[Digest, int] = field(default_factory=dict)
    """Unix second from which the work may be finalised, by work key."""
    settled: set[Digest] = field(default_factory=set)
    """Keys of work that is final, or no longer on the ledger, and needs no further action."""
    heard: dict[Address, int] = field(default_factory=dict)
    """Unix time of each validator's last activity on the ledger, in seconds, by the validator's address."""


def plan_of(events: Iterable[ObservedEvent], *, pool_id: int, at: int, periods: Periods) -> QueueChanges:
    """Computes the changes of queue and deadlines for a batch of events.

    Args:
        events: Events in the order of the chain; removals by a reorg are marked as reverted.
        pool_id: Id of the validator's pool; events of other pools are skipped.
        at: Unix time of the first event's block in seconds, used for all events. No event is earlier, so the deadlines
            computed from this time are never later than those on the ledger.
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
                # Second looks end with the provisional verdict; `loops.second_looks` queues the dispute itself.
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
    elif event.decisive:  # a verdict that ends a dispute makes the work final
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
