"""Choice of the step that needs rollouts, from demand, leases, submissions and verdicts. No I/O.

Version v is the policy that has learned every step below v. So rollouts of version v may serve step v and, because
generation runs ahead of the trainer, up to `async_level` steps beyond it; steps below the *floor* are closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCount:
    """Counts of one step, in groups."""

    demand: int
    rounds: int = 0
    """Number of times that the demand was raised."""
    leased: int = 0
    spare: int = 0
    """Leased groups for which the step does not wait; not part of `need`."""
    returned: int = 0
    """Groups of released leases that have not expired; not part of `need`."""
    pending: int = 0
    """Submitted groups whose file is in the store and for whose verdict the step still waits."""
    accepted: int = 0
    rejected: int = 0

    @property
    def need(self) -> int:
        """Demand that is neither accepted nor in progress; `need_of` in `lease_slot.lua` is the same formula."""
        return max(0, self.demand - self.accepted - self.pending - self.leased)


@dataclass(frozen=True, slots=True)
class Window:
    """Steps for which rollouts may be generated, both ends included; empty if `last` is below `first`."""

    first: int
    last: int

    @classmethod
    def of(cls, *, floor: int, version: int, async_level: int) -> Window:
        """Returns the open steps that the newest version may serve."""
        return cls(max(floor, version), version + async_level)

    def __contains__(self, step: int) -> bool:
        return self.first <= step <= self.last

    @property
    def steps(self) -> range:
        """All steps of the window, ascending."""
        return range(self.first, self.last + 1)


@dataclass(frozen=True, slots=True)
class Choice:
    """Step that needs the next slot. If `need` is 0, no step needs one, and `step` is the window's last step."""

    step: int
    need: int


def choose_step(window: Window, counts: Mapping[int, StepCount], *, default_demand: int) -> Choice:
    """Returns the smallest step of the window with too few rollouts.

    The choice moves up when a step has enough, and back when work of an earlier step is rejected or does not arrive.
    """
    choice = Choice(max(window.first, window.last), 0)
    for step in window.steps:
        need = counts.get(step, StepCount(demand=default_demand)).need
        if need:
            return Choice(step, need)
    return choice


@dataclass(frozen=True, slots=True)
class Asked:
    """Demand of a step and floor after a request of the trainer."""

    demand: int
    rounds: int
    floor: int


def ask(
    now: StepCount, *, step: int, floor: int, groups: int, closed: bool, stated: bool, max_rounds: int
) -> Asked | None:
    """Applies a request for a total demand of a step; returns None if the request changes nothing.

    Args:
        now: Counts of the step.
        step: Number of the step.
        floor: The first open step.
        groups: Total demand.
        closed: True if the trainer closes this step and all below it.
        stated: True if the demand was stated before. The first statement is not a raise and may lower the default.
        max_rounds: Maximum number of raises; the next one closes the step with the rollouts that it has.
    """
    if step < floor:
        return None  # closed steps don't change
    if closed:
        return Asked(now.demand, now.rounds, step + 1)
    if not stated:
        return Asked(groups, 0, floor)
    if groups <= now.demand:
        return None
    if now.rounds >= max_rounds:
        return Asked(now.demand, now.rounds, step + 1)
    return Asked(groups, now.rounds + 1, floor)
