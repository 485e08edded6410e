"""Rules for the time for which an orchestrator keeps objects and records. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from orchestrator.domain.slots import Slot, SlotState
from protocol.verdicts import Outcome

_OPEN = frozenset({SlotState.LEASED, SlotState.SUBMITTED, SlotState.PROVISIONAL, SlotState.DISPUTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Minimum times for which objects and records are kept; zero: they are never deleted because of their age.

    Args:
        files: Files of nodes, from their upload.
        audits: Audit files of validators, from their upload.
        tasks: Completed and failed tasks, from their end.
        events: Events of the pool.
        nodes: Nodes without membership, from the last time that a discovery service listed them.
    """

    files: timedelta
    audits: timedelta
    tasks: timedelta
    events: timedelta
    nodes: timedelta


def is_needed(slot: Slot, *, step: int, learned: int | None) -> bool:
    """Returns whether somebody may still have to read the files of a slot's work, whatever their age.

    Validators and disputes need the files until the work is final on the ledger. The trainer needs files of accepted
    work until it has learned from their step.

    Args:
        slot: State of the slot, from the ledger's events.
        step: Step of the slot.
        learned: First step that is not learned yet; None if no trainer learns from the run.
    """
    if slot.state in _OPEN:
        return True
    return slot.outcome is Outcome.ACCEPTED and learned is not None and step >= learned


def needed_age(kept: timedelta, *, longest_lease: timedelta, settled: timedelta) -> timedelta:
    """Returns the age up to which an object may be needed although no known work refers to it.

    Redis may not know the work of an object, because the pool's orchestrator follows no run, or because an earlier
    release read the work. So the age is at least twice the time from the beginning of a lease until its work is final.

    Args:
        kept: Minimum time for which such objects are kept.
        longest_lease: Longest lease of a slot.
        settled: Longest time from a submission until its work is final.
    """
    return max(kept, 2 * (longest_lease + settled))
