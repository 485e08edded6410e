"""The life of a slot, from its lease to the money, and under what it counts for its step: one table, no I/O.

Events of the ledger come at least once, so every one of them that is old news changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from protocol.verdicts import Outcome


class SlotState(StrEnum):
    """Where a slot is."""

    LEASED = "leased"
    UNDELIVERED = "undelivered"
    RELEASED = "released"
    LAPSED = "lapsed"
    SUBMITTED = "submitted"
    PROVISIONAL = "provisional"
    DISPUTED = "disputed"
    FINAL = "final"
    EXPIRED = "expired"
    """Nobody judged its work in time."""

    @property
    def on_ledger(self) -> bool:
        """Whether its work was submitted."""
        return self in _ON_LEDGER


_ON_LEDGER = frozenset(
    {SlotState.SUBMITTED, SlotState.PROVISIONAL, SlotState.DISPUTED, SlotState.FINAL, SlotState.EXPIRED}
)


class Counted(StrEnum):
    """Under what a slot's groups count for its step."""

    LEASED = "leased"
    PENDING = "pending"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    NOTHING = ""


class Happening(StrEnum):
    """What can happen to a slot."""

    LEASE_OVER = "lease-over"
    """It expired without work, as far as the ledger was read."""
    RELEASED = "released"
    """The node gave it up."""
    LAPSED = "lapsed"
    """Its work was handed in to be carried, and the ledger could not be reached in time."""
    SUBMITTED = "submitted"
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
    """Where a slot is, and what it counts for."""

    state: SlotState
    counted: Counted
    outcome: Outcome | None = None


LEASED = Slot(SlotState.LEASED, Counted.LEASED)

_UNSUBMITTED = (SlotState.LEASED, SlotState.UNDELIVERED, SlotState.RELEASED, SlotState.LAPSED)
_OPEN = (SlotState.SUBMITTED, SlotState.PROVISIONAL, SlotState.DISPUTED)

TABLE: Mapping[tuple[Happening, SlotState], SlotState] = {
    (Happening.LEASE_OVER, SlotState.LEASED): SlotState.UNDELIVERED,
    (Happening.RELEASED, SlotState.LEASED): SlotState.RELEASED,
    (Happening.LAPSED, SlotState.LEASED): SlotState.LAPSED,
    # Also of a lease that counted as undelivered: the word of the ledger came late.
    **{(Happening.SUBMITTED, state): SlotState.SUBMITTED for state in _UNSUBMITTED},
    (Happening.PENDING_OVER, SlotState.SUBMITTED): SlotState.SUBMITTED,
    (Happening.JUDGED, SlotState.SUBMITTED): SlotState.PROVISIONAL,
    (Happening.DISPUTED, SlotState.PROVISIONAL): SlotState.DISPUTED,
    (Happening.DECIDED, SlotState.DISPUTED): SlotState.DISPUTED,
    **{(Happening.FINAL, state): SlotState.FINAL for state in _OPEN},
    **{(Happening.EXPIRED, state): SlotState.EXPIRED for state in _OPEN},
}
"""What leads where. Whatever does not stand here is old news and changes nothing."""

_JUDGES = frozenset({Happening.JUDGED, Happening.DECIDED, Happening.FINAL})


def after(slot: Slot, event: Happening, outcome: Outcome | None = None) -> Slot:
    """Where a slot is after something happened; the same slot if that is old news.

    Args:
        slot: Where it was.
        event: What happened.
        outcome: Of a verdict, and of work that is final.
    """
    state = TABLE.get((event, slot.state))
    if state is None:
        return slot
    if event is Happening.DISPUTED:  # nothing is decided yet
        return replace(slot, state=state)
    if event in _JUDGES:
        return Slot(state, counted_as(outcome), outcome)
    return Slot(state, Counted.PENDING if event is Happening.SUBMITTED else Counted.NOTHING)


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
