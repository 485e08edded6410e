"""The ledger's events in a run's own words."""

from __future__ import annotations

from ledger.artifacts import Contract
from ledger.events import types as happened
from ledger.events.types import LedgerEvent
from orchestrator.chain.run_interface import AnnouncementEvent, BanEvent, MoneyEvent, RunEvent, SeatEvent, WorkEvent
from orchestrator.domain.slots import SlotEvent

FOLLOWED: dict[Contract, tuple[type[LedgerEvent], ...]] = {
    Contract.WORK_LEDGER: (
        happened.WorkSubmitted,
        happened.VerdictGiven,
        happened.WorkDisputed,
        happened.WorkFinal,
        happened.WorkExpired,
    ),
    Contract.CHECKPOINTS: (happened.CheckpointAnnounced,),
    Contract.COMPUTE_POOLS: (
        happened.MemberJoined,
        happened.MemberLeft,
        happened.ProviderBanned,
        happened.EscrowFunded,
        happened.WithdrawalAnnounced,
        happened.EscrowWithdrawn,
    ),
    Contract.STAKE_MANAGER: (
        happened.Staked,
        happened.UnbondStarted,
        happened.UnbondCancelled,
        happened.Slashed,
        happened.LocksChanged,
    ),
}


_PUT_OUT = frozenset({happened.Departure.EVICTED, happened.Departure.BANNED})


def told(event: LedgerEvent, *, reverted: bool) -> RunEvent | None:
    """Translates a ledger event for the run; None if it is irrelevant."""
    found: RunEvent | None = None
    match event:
        case happened.WorkSubmitted():
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
        case happened.VerdictGiven():
            found = _work(
                event,
                SlotEvent.DECIDED if event.decisive else SlotEvent.JUDGED,
                reverted=reverted,
                outcome=event.outcome,
                reason=event.reason,
                audit_hash=event.audit_hash,
                judge=event.validator,
            )
        case happened.WorkDisputed():
            found = _work(event, SlotEvent.DISPUTED, reverted=reverted)
        case happened.WorkFinal():
            found = _work(event, SlotEvent.FINAL, reverted=reverted, outcome=event.outcome)
        case happened.WorkExpired():
            found = _work(event, SlotEvent.EXPIRED, reverted=reverted)
        case happened.CheckpointAnnounced():
            found = AnnouncementEvent(version=event.version)
        case happened.MemberJoined() | happened.MemberLeft() | happened.ProviderBanned():
            found = _membership(event, reverted=reverted)
        case happened.EscrowFunded() | happened.WithdrawalAnnounced() | happened.EscrowWithdrawn():
            found = MoneyEvent(provider=None)
        case (
            happened.Staked()
            | happened.UnbondStarted()
            | happened.UnbondCancelled()
            | happened.Slashed()
            | happened.LocksChanged()
        ):
            found = MoneyEvent(provider=event.provider)
        case _:
            pass
    return found


def _membership(
    event: happened.MemberJoined | happened.MemberLeft | happened.ProviderBanned, *, reverted: bool
) -> RunEvent | None:
    match event:
        case happened.MemberJoined():
            return SeatEvent(node=event.node)
        case happened.MemberLeft():
            return SeatEvent(node=event.node, put_out=event.cause in _PUT_OUT and not reverted)
        case happened.ProviderBanned():
            return None if reverted else BanEvent(provider=event.provider)


def _work(
    event: happened.WorkSubmitted
    | happened.VerdictGiven
    | happened.WorkDisputed
    | happened.WorkFinal
    | happened.WorkExpired,
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
