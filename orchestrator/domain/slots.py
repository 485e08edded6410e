"""State machine of a slot, from its lease to payment. No I/O.

The state machine also determines in which counter of its step a slot counts. Ledger events are delivered at least once,
so repeated and outdated ones change nothing. Submitted work stops counting as pending when the object store answers
that the store lacks the file, because a node can submit a hash to the ledger without an upload.
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
    """The lease ended without work, which counts against the node."""
    RELEASED = "released"
    """The node gave the slot back before the lease's end, which counts against the node."""
    LAPSED = "lapsed"
    """The lease ended without work, and the node is excused."""
    SUBMITTED = "submitted"
    PROVISIONAL = "provisional"
    DISPUTED = "disputed"
    FINAL = "final"
    EXPIRED = "expired"
    """No validator judged the slot's work in time."""

    @property
    def on_ledger(self) -> bool:
        """Whether the slot's work was submitted to the ledger."""
        return self in _ON_LEDGER


_ON_LEDGER = frozenset(
    {SlotState.SUBMITTED, SlotState.PROVISIONAL, SlotState.DISPUTED, SlotState.FINAL, SlotState.EXPIRED}
)


class Counted(StrEnum):
    """Counter in which a step counts the groups of a slot."""

    LEASED = "leased"
    SPARE = "spare"
    """The slot is leased, but its step does not wait for it: its groups are leased to other nodes, too.

    A slot becomes spare when half of its lease is over, or if its node is on trial or left the pool. Work that still
    arrives is accepted and paid.
    """
    RETURNED = "returned"
    """The slot was released before its lease's end. The step does not wait for it. The node could still submit
    work under the signed lease, so escrow and stake stay reserved until the lease expires."""
    PENDING = "pending"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    NOTHING = ""
    """The step does not count the slot's groups."""


class StoredFileState(StrEnum):
    """Whether the object store has the file of submitted work."""

    UNKNOWN = ""
    """The file was not looked up yet, or the store was down. The node is not penalised for either."""
    PRESENT = "present"
    ABSENT = "absent"


class SlotEvent(StrEnum):
    """Event of a slot."""

    LEASE_OVER = "lease-over"
    """The lease expired without work on the ledger, or the node was evicted for forged work."""
    WAIT_OVER = "wait-over"
    """The step stops waiting for the slot: half of the lease is over, or the node left the pool."""
    RELEASED = "released"
    """The node released the slot."""
    GIVEN_BACK = "given-back"
    """The node released the slot and is excused: the pool removed it, or the run is a serving run without clients."""
    LAPSED = "lapsed"
    """The lease ended without work for a reason that is not the node's: the ledger was unreachable, or the pool removed
    the node."""
    SUBMITTED = "submitted"
    FILE_PRESENT = "file-present"
    """The store has the file of submitted work."""
    FILE_ABSENT = "file-absent"
    """The store answered that it does not have the file."""
    FILE_UNKNOWN = "file-unknown"
    """The store did not answer the last check."""
    PENDING_OVER = "pending-over"
    """No verdict came within the time that the step waits for one."""
    JUDGED = "judged"
    DISPUTED = "disputed"
    DECIDED = "decided"
    """A second verdict decided the dispute."""
    FINAL = "final"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Slot:
    """State of a slot, and the counter in which its step counts the slot's groups."""

    state: SlotState
    counted: Counted
    outcome: Outcome | None = None
    file: StoredFileState = StoredFileState.UNKNOWN

    @property
    def accused(self) -> bool:
        """Whether the slot's work was judged forged and the verdict is not final."""
        return self.outcome is Outcome.FORGED and self.state in {SlotState.PROVISIONAL, SlotState.DISPUTED}


LEASED = Slot(SlotState.LEASED, Counted.LEASED)
SPARE = Slot(SlotState.LEASED, Counted.SPARE)

_UNSUBMITTED = (SlotState.LEASED, SlotState.UNDELIVERED, SlotState.RELEASED, SlotState.LAPSED)
_OPEN = (SlotState.SUBMITTED, SlotState.PROVISIONAL, SlotState.DISPUTED)
_FILE_CHECKS = (SlotEvent.FILE_PRESENT, SlotEvent.FILE_ABSENT, SlotEvent.FILE_UNKNOWN)

TABLE: Mapping[tuple[SlotEvent, SlotState], SlotState] = {
    (SlotEvent.LEASE_OVER, SlotState.LEASED): SlotState.UNDELIVERED,
    (SlotEvent.WAIT_OVER, SlotState.LEASED): SlotState.LEASED,
    (SlotEvent.RELEASED, SlotState.LEASED): SlotState.RELEASED,
    (SlotEvent.LEASE_OVER, SlotState.RELEASED): SlotState.RELEASED,
    (SlotEvent.GIVEN_BACK, SlotState.LEASED): SlotState.LAPSED,
    (SlotEvent.LEASE_OVER, SlotState.LAPSED): SlotState.LAPSED,
    (SlotEvent.LAPSED, SlotState.LEASED): SlotState.LAPSED,
    # Allowed from `undelivered` and other ends, too: the event may be read from the ledger after the lease ended here.
    **{(SlotEvent.SUBMITTED, state): SlotState.SUBMITTED for state in _UNSUBMITTED},
    (SlotEvent.PENDING_OVER, SlotState.SUBMITTED): SlotState.SUBMITTED,
    **{(check, SlotState.SUBMITTED): SlotState.SUBMITTED for check in _FILE_CHECKS},
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
    SlotEvent.GIVEN_BACK: Slot(SlotState.LAPSED, Counted.RETURNED),
    SlotEvent.SUBMITTED: Slot(SlotState.SUBMITTED, Counted.PENDING),
    SlotEvent.FILE_PRESENT: Slot(SlotState.SUBMITTED, Counted.PENDING, file=StoredFileState.PRESENT),
    SlotEvent.FILE_ABSENT: Slot(SlotState.SUBMITTED, Counted.NOTHING, file=StoredFileState.ABSENT),
    SlotEvent.FILE_UNKNOWN: Slot(SlotState.SUBMITTED, Counted.PENDING),
}
"""Slot after each event whose result does not depend on the previous counter. If a file is found after the step stopped
waiting for a verdict, the slot counts as pending until the next `PENDING_OVER`."""

_JUDGES = frozenset({SlotEvent.JUDGED, SlotEvent.DECIDED, SlotEvent.FINAL})


def after(slot: Slot, event: SlotEvent, outcome: Outcome | None = None) -> Slot:
    """Returns the slot after an event; unchanged if the event is outdated.

    Args:
        slot: The slot before the event.
        event: The event.
        outcome: Outcome of a verdict or of final work.
    """
    state = TABLE.get((event, slot.state))
    if state is None:
        return slot
    if event is SlotEvent.DISPUTED:  # the counter changes only with a verdict
        return replace(slot, state=state)
    if event in _JUDGES:
        return Slot(state, counted_as(outcome), outcome, slot.file)
    return _FIXED.get(event) or Slot(state, Counted.NOTHING, file=slot.file)


def as_on_ledger(state: SlotState, outcome: Outcome | None) -> Slot:
    """Returns the slot that corresponds to a work record on the ledger.

    It is used after a reorg, when the events that led to the slot's present state are void.
    """
    if state is SlotState.SUBMITTED:
        return Slot(state, Counted.PENDING)
    if state is SlotState.EXPIRED:
        return Slot(state, Counted.NOTHING)
    return Slot(state, counted_as(outcome), outcome)


def counted_as(outcome: Outcome | None) -> Counted:
    """Returns the counter for work with this outcome."""
    return Counted.ACCEPTED if outcome is Outcome.ACCEPTED else Counted.REJECTED
