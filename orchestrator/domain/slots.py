"""The life of a slot, from its lease to the money, and under what it counts for its step: one table, no I/O.

Events of the ledger come at least once, so every one of them that is old news changes nothing. Submitted work counts as
pending only while the store has its file: anybody can submit a hash on the ledger without uploading anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from protocol.verdicts import Outcome


class SlotState(StrEnum):
    """State of a slot."""

    LEASED = "leased"
    UNDELIVERED = "undelivered"
    RELEASED = "released"
    LAPSED = "lapsed"
    SUBMITTED = "submitted"
    PROVISIONAL = "provisional"
    DISPUTED = "disputed"
    FINAL = "final"
    EXPIRED = "expired"
    """No validator judged its work in time."""

    @property
    def on_ledger(self) -> bool:
        """Returns whether its work was submitted."""
        return self in _ON_LEDGER


_ON_LEDGER = frozenset(
    {SlotState.SUBMITTED, SlotState.PROVISIONAL, SlotState.DISPUTED, SlotState.FINAL, SlotState.EXPIRED}
)


class Counted(StrEnum):
    """Under what a slot's groups count for its step."""

    LEASED = "leased"
    SPARE = "spare"
    """Leased, and its step does not wait for it: all of its groups are asked of others.

    So are slots past half of their lease, of nodes on trial, and of nodes that are no members any more. If their work
    comes all the same, it is taken and paid.
    """
    RETURNED = "returned"
    """Given up before its end: counts as nothing for its step and its node, but the node still has the signed lease, so
    escrow and stake answer for it until it expires."""
    PENDING = "pending"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    NOTHING = ""


class StoredFileState(StrEnum):
    """Presence of submitted work's file in the store."""

    UNKNOWN = ""
    """Not asked yet, or the store was down: the node is not blamed for that."""
    PRESENT = "present"
    ABSENT = "absent"


class SlotEvent(StrEnum):
    """Event of a slot."""

    LEASE_OVER = "lease-over"
    """It expired without work, as far as the ledger was read, or its node was put out for forged work."""
    WAIT_OVER = "wait-over"
    """Its step waits for it no longer: half of the lease is over, or its node is no member any more."""
    RELEASED = "released"
    """The node gave it up."""
    LAPSED = "lapsed"
    """It ended without work, and its node is not the reason: the ledger could not be reached in time, or the pool put
    the node out."""
    SUBMITTED = "submitted"
    FILE_PRESENT = "file-present"
    """The store has the file of submitted work."""
    FILE_ABSENT = "file-absent"
    """The store answered that it does not have it."""
    FILE_UNKNOWN = "file-unknown"
    """The store did not answer when it was asked for the last time."""
    PENDING_OVER = "pending-over"
    """No verdict for so long that the step waits for it no more."""
    JUDGED = "judged"
    DISPUTED = "disputed"
    DECIDED = "decided"
    """A second verdict."""
    FINAL = "final"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Slot:
    """State of a slot, and the counter of its step that it belongs to."""

    state: SlotState
    counted: Counted
    outcome: Outcome | None = None
    file: StoredFileState = StoredFileState.UNKNOWN

    @property
    def accused(self) -> bool:
        """Returns whether its work was judged forged and the verdict is not final."""
        return self.outcome is Outcome.FORGED and self.state in {SlotState.PROVISIONAL, SlotState.DISPUTED}


LEASED = Slot(SlotState.LEASED, Counted.LEASED)
SPARE = Slot(SlotState.LEASED, Counted.SPARE)

_UNSUBMITTED = (SlotState.LEASED, SlotState.UNDELIVERED, SlotState.RELEASED, SlotState.LAPSED)
_OPEN = (SlotState.SUBMITTED, SlotState.PROVISIONAL, SlotState.DISPUTED)
_LOOKS = (SlotEvent.FILE_PRESENT, SlotEvent.FILE_ABSENT, SlotEvent.FILE_UNKNOWN)

TABLE: Mapping[tuple[SlotEvent, SlotState], SlotState] = {
    (SlotEvent.LEASE_OVER, SlotState.LEASED): SlotState.UNDELIVERED,
    (SlotEvent.WAIT_OVER, SlotState.LEASED): SlotState.LEASED,
    (SlotEvent.RELEASED, SlotState.LEASED): SlotState.RELEASED,
    (SlotEvent.LEASE_OVER, SlotState.RELEASED): SlotState.RELEASED,
    (SlotEvent.LAPSED, SlotState.LEASED): SlotState.LAPSED,
    # Also of a lease that counted as undelivered: the word of the ledger came late.
    **{(SlotEvent.SUBMITTED, state): SlotState.SUBMITTED for state in _UNSUBMITTED},
    (SlotEvent.PENDING_OVER, SlotState.SUBMITTED): SlotState.SUBMITTED,
    **{(what, SlotState.SUBMITTED): SlotState.SUBMITTED for what in _LOOKS},
    (SlotEvent.JUDGED, SlotState.SUBMITTED): SlotState.PROVISIONAL,
    (SlotEvent.DISPUTED, SlotState.PROVISIONAL): SlotState.DISPUTED,
    (SlotEvent.DECIDED, SlotState.DISPUTED): SlotState.DISPUTED,
    **{(SlotEvent.FINAL, state): SlotState.FINAL for state in _OPEN},
    **{(SlotEvent.EXPIRED, state): SlotState.EXPIRED for state in _OPEN},
}
"""Transition table. Events that are missing here are outdated and change nothing."""

_FIXED: Mapping[SlotEvent, Slot] = {
    SlotEvent.WAIT_OVER: SPARE,
    SlotEvent.RELEASED: Slot(SlotState.RELEASED, Counted.RETURNED),
    SlotEvent.SUBMITTED: Slot(SlotState.SUBMITTED, Counted.PENDING),
    SlotEvent.FILE_PRESENT: Slot(SlotState.SUBMITTED, Counted.PENDING, file=StoredFileState.PRESENT),
    SlotEvent.FILE_ABSENT: Slot(SlotState.SUBMITTED, Counted.NOTHING, file=StoredFileState.ABSENT),
    SlotEvent.FILE_UNKNOWN: Slot(SlotState.SUBMITTED, Counted.PENDING),
}
"""Events after which a slot is the same whatever it counted for before. Work whose file is found when the step has
waited long enough counts for nothing again by `PENDING_OVER`."""

_JUDGES = frozenset({SlotEvent.JUDGED, SlotEvent.DECIDED, SlotEvent.FINAL})


def after(slot: Slot, event: SlotEvent, outcome: Outcome | None = None) -> Slot:
    """Returns the slot after an event; unchanged if the event is outdated.

    Args:
        slot: Before the event.
        event: The event.
        outcome: Of a verdict, and of work that is final.
    """
    state = TABLE.get((event, slot.state))
    if state is None:
        return slot
    if event is SlotEvent.DISPUTED:  # nothing is decided yet
        return replace(slot, state=state)
    if event in _JUDGES:
        return Slot(state, counted_as(outcome), outcome, slot.file)
    return _FIXED.get(event) or Slot(state, Counted.NOTHING, file=slot.file)


def as_on_ledger(state: SlotState, outcome: Outcome | None) -> Slot:
    """A slot as the ledger shows it now: after a reorg, only that is true."""
    if state is SlotState.SUBMITTED:
        return Slot(state, Counted.PENDING)
    if state is SlotState.EXPIRED:
        return Slot(state, Counted.NOTHING)
    return Slot(state, counted_as(outcome), outcome)


def counted_as(outcome: Outcome | None) -> Counted:
    """Accepted counts, everything else was in vain."""
    return Counted.ACCEPTED if outcome is Outcome.ACCEPTED else Counted.REJECTED
