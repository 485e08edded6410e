"""Translates the ledger's events into the events of a run."""

from __future__ import annotations

from ledger.artifacts import Contract
from ledger.events import types as event_types
from ledger.events.types import LedgerEvent
from orchestrator.chain.run_interface import AnnouncementEvent, BanEvent, MoneyEvent, RunEvent, SeatEvent, WorkEvent
from orchestrator.domain.slots import SlotEvent

FOLLOWED: dict[Contract, tuple[type[LedgerEvent], ...]] = {
    Contract.WORK_LEDGER: (
        event_types.WorkSubmitted,
        event_types.VerdictGiven,
        event_types.WorkDisputed,
        event_types.WorkFinal,
        event_types.WorkExpired,
    ),
    Contract.CHECKPOINTS: (event_types.CheckpointAnnounced,),
    Contract.COMPUTE_POOLS: (
        event_types.MemberJoined,
        event_types.MemberLeft,
        event_types.ProviderBanned,
        event_types.EscrowFunded,
        event_types.WithdrawalAnnounced,
        event_types.EscrowWithdrawn,
    ),
    Contract.STAKE_MANAGER: (
        event_types.Staked,
        event_types.UnbondStarted,
        event_types.UnbondCancelled,
        event_types.Slashed,
        event_types.LocksChanged,
    ),
}


_EXPELLED = frozenset({event_types.Departure.EVICTED, event_types.Departure.BANNED})


def to_run_event(event: LedgerEvent, *, reverted: bool) -> RunEvent | None:
    """Converts a ledger event; None if it does not concern the run."""
    found: RunEvent | None = None
    match event:
        case event_types.WorkSubmitted():
            found = _work(
                event,
                SlotEvent.SUBMITTED,
                reverted=reverted,
                step=event.step,
                index=event.index,
                version=event.version,
                digest=event.checkpoint,
                sha256=event.sha256,
                units=event.units,
                groups=event.groups,
                max_units=event.max_units,
                beacon_block=event.beacon_block,
            )
        case event_types.VerdictGiven():
            found = _work(
                event,
                SlotEvent.DECIDED if event.decisive else SlotEvent.JUDGED,
                reverted=reverted,
                outcome=event.outcome,
                reason=event.reason,
                audit_hash=event.audit_hash,
                judge=event.validator,
            )
        case event_types.WorkDisputed():
            found = _work(event, SlotEvent.DISPUTED, reverted=reverted)
        case event_types.WorkFinal():
            found = _work(event, SlotEvent.FINAL, reverted=reverted, outcome=event.outcome)
        case event_types.WorkExpired():
            found = _work(event, SlotEvent.EXPIRED, reverted=reverted)
        case event_types.CheckpointAnnounced():
            found = AnnouncementEvent(version=event.version)
        case event_types.MemberJoined() | event_types.MemberLeft() | event_types.ProviderBanned():
            found = _membership(event, reverted=reverted)
        case event_types.EscrowFunded() | event_types.WithdrawalAnnounced() | event_types.EscrowWithdrawn():
            found = MoneyEvent(provider=None)
        case (
            event_types.Staked()
            | event_types.UnbondStarted()
            | event_types.UnbondCancelled()
            | event_types.Slashed()
            | event_types.LocksChanged()
        ):
            found = MoneyEvent(provider=event.provider)
        case _:
            pass
    return found


def _membership(
    event: event_types.MemberJoined | event_types.MemberLeft | event_types.ProviderBanned, *, reverted: bool
) -> RunEvent | None:
    match event:
        case event_types.MemberJoined():
            return SeatEvent(node=event.node)
        case event_types.MemberLeft():
            return SeatEvent(node=event.node, expelled=event.cause in _EXPELLED and not reverted)
        case event_types.ProviderBanned():
            return None if reverted else BanEvent(provider=event.provider)


def _work(
    event: event_types.WorkSubmitted
    | event_types.VerdictGiven
    | event_types.WorkDisputed
    | event_types.WorkFinal
    | event_types.WorkExpired,
    what: SlotEvent,
    **more: object,
) -> WorkEvent:
    return WorkEvent(
        what=what,
        key=event.key,
        node=event.node,
        block=event.log.block_number,
        transaction=event.log.transaction,
        **more,  # type: ignore[arg-type]  # named as the fields are, by the callers above
    )
