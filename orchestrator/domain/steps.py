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
    """Leased, and not waited for: counts as nothing."""
    returned: int = 0
    """Given up, and not expired: counts as nothing."""
    pending: int = 0
    """Submitted, its file in the store, and young enough that a verdict may be waited for."""
    accepted: int = 0
    rejected: int = 0

    @property
    def need(self) -> int:
        """Demand that is neither accepted nor in progress; `need_of` in `lease_slot.lua` is the same formula."""
        return max(0, self.demand - self.accepted - self.pending - self.leased)


@dataclass(frozen=True, slots=True)
class Window:
    """The steps that rollouts may be made for now, both ends included; empty if the last is below the first."""

    first: int
    last: int

    @classmethod
    def of(cls, *, floor: int, version: int, async_level: int) -> Window:
        """The open steps that the newest version may serve."""
        return cls(max(floor, version), version + async_level)

    def __contains__(self, step: int) -> bool:
        return self.first <= step <= self.last

    @property
    def steps(self) -> range:
        """Ascending."""
        return range(self.first, self.last + 1)


@dataclass(frozen=True, slots=True)
class Choice:
    """Step that needs the next slot. With a need of 0, no step does, and `step` is the last one examined."""

    step: int
    need: int


def choose_step(window: Window, counts: Mapping[int, StepCount], *, default_demand: int) -> Choice:
    """The smallest step of the window with too few rollouts.

    It goes up when a step has enough, and comes back when work of an earlier one is rejected or does not arrive.
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
    """Returns the changes for a new total demand of a step; None if there are none.

    Args:
        now: Counts of the step.
        step: Number of the step.
        floor: The first open step.
        groups: Total demand.
        closed: Whether the trainer is done with this step, and so with those below it.
        stated: Whether the demand was stated before; the first statement is no raise, and may lower the default.
        max_rounds: So often it may be raised; the raise after that closes the step with what it has.
    """
    if step < floor:
        return None  # closed: what it has is what it has
    if closed:
        return Asked(now.demand, now.rounds, step + 1)
    if not stated:
        return Asked(groups, 0, floor)
    if groups <= now.demand:
        return None
    if now.rounds >= max_rounds:
        return Asked(now.demand, now.rounds, step + 1)
    return Asked(groups, now.rounds + 1, floor)
