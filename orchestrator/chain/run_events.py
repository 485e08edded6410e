"""Ledger events that matter for a run, and the slot transition that each of them causes."""

from __future__ import annotations

from typing import TypeAlias

from ledger.artifacts import Contract
from ledger.client.work import WorkStatus
from ledger.events.types import (
    CheckpointAnnounced,
    Departure,
    DisputeLost,
    EscrowFunded,
    EscrowWithdrawn,
    LedgerEvent,
    LocksChanged,
    MemberJoined,
    MemberLeft,
    ProviderBanned,
    RewardsClaimed,
    Slashed,
    Staked,
    UnbondCancelled,
    UnbondStarted,
    VerdictGiven,
    WithdrawalAnnounced,
    WorkDisputed,
    WorkExpired,
    WorkFinal,
    WorkSubmitted,
)
from orchestrator.domain.slots import SlotEvent, SlotState

WorkEvent: TypeAlias = WorkSubmitted | VerdictGiven | WorkDisputed | WorkFinal | WorkExpired
EscrowEvent: TypeAlias = EscrowFunded | WithdrawalAnnounced | EscrowWithdrawn
StakeEvent: TypeAlias = Staked | UnbondStarted | UnbondCancelled | Slashed | LocksChanged

FOLLOWED: dict[Contract, tuple[type[LedgerEvent], ...]] = {
    Contract.WORK_LEDGER: (
        WorkSubmitted,
        VerdictGiven,
        WorkDisputed,
        DisputeLost,
        WorkFinal,
        WorkExpired,
        RewardsClaimed,
    ),
    Contract.CHECKPOINTS: (CheckpointAnnounced,),
    Contract.COMPUTE_POOLS: (
        MemberJoined,
        MemberLeft,
        ProviderBanned,
        EscrowFunded,
        WithdrawalAnnounced,
        EscrowWithdrawn,
    ),
    Contract.STAKE_MANAGER: (Staked, UnbondStarted, UnbondCancelled, Slashed, LocksChanged),
}
"""Events that are read, by contract."""

REMOVED_BY_POOL = frozenset({Departure.EVICTED, Departure.BANNED})
"""Departures after which missing deliveries are excused, because the pool and not the node ended the membership."""

SLOT_STATES = {
    WorkStatus.SUBMITTED: SlotState.SUBMITTED,
    WorkStatus.PROVISIONAL: SlotState.PROVISIONAL,
    WorkStatus.DISPUTED: SlotState.DISPUTED,
    WorkStatus.FINAL: SlotState.FINAL,
    WorkStatus.EXPIRED: SlotState.EXPIRED,
}
"""State of a slot by the status of its work record."""


ENDED = frozenset({WorkStatus.FINAL, WorkStatus.EXPIRED})
"""Statuses of work that can't change any more."""


def slot_event_of(event: WorkEvent) -> SlotEvent:
    """Returns the transition that an event causes in its slot."""
    match event:
        case WorkSubmitted():
            return SlotEvent.SUBMITTED
        case VerdictGiven():
            return SlotEvent.DECIDED if event.decisive else SlotEvent.JUDGED
        case WorkDisputed():
            return SlotEvent.DISPUTED
        case WorkFinal():
            return SlotEvent.FINAL
        case WorkExpired():
            return SlotEvent.EXPIRED
