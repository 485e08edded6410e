"""Chooses the step that needs rollouts. No I/O.

Version v is the policy that has learned every step below v. Rollouts of version v may serve step v and the next
`async_level` steps, because generation may run ahead of the trainer. Steps below the *floor* are closed.

A serving run has no trainer that publishes versions and closes steps. So its window moves with the floor instead of the
version, and the orchestrator closes each step that is full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCount:
    """Counts of one step, in groups."""

    demand: int
    rounds: int = 0
    """Number of times that the trainer raised the demand."""
    leased: int = 0
    spare: int = 0
    """Leased groups for which the step does not wait; `need` ignores them."""
    returned: int = 0
    """Groups of released leases that have not expired; `need` ignores them."""
    pending: int = 0
    """Submitted groups that wait for a verdict, and that the step waits for. Groups of missing files don't count."""
    accepted: int = 0
    rejected: int = 0

    @property
    def need(self) -> int:
        """Groups of the demand that are neither accepted nor in progress.

        `need_of` in `lease_slot.lua` computes the same.
        """
        return max(0, self.demand - self.accepted - self.pending - self.leased)


@dataclass(frozen=True, slots=True)
class Window:
    """Steps for which rollouts may be generated: `first` to `last`; none if `last` < `first`."""

    first: int
    last: int

    @classmethod
    def of(cls, *, floor: int, version: int, async_level: int, serving: bool = False) -> Window:
        """Returns the open steps that the newest version may serve; `lease_slot.lua` computes the same."""
        first = max(floor, version)
        return cls(first, (first if serving else version) + async_level)

    def __contains__(self, step: int) -> bool:
        return self.first <= step <= self.last

    @property
    def steps(self) -> range:
        """All steps of the window, ascending."""
        return range(self.first, self.last + 1)


@dataclass(frozen=True, slots=True)
class StepChoice:
    """Step that needs the next slot, and the number of groups that it needs.

    If `need` is 0, no step needs a slot, and `step` is the last step of the window.
    """

    step: int
    need: int


def choose_step(window: Window, counts: Mapping[int, StepCount], *, default_demand: int) -> StepChoice:
    """Returns the smallest step of the window with too few rollouts.

    The choice moves to a later step when a step has enough rollouts, and back to an earlier one when work of that step
    is rejected or does not arrive.
    """
    choice = StepChoice(max(window.first, window.last), 0)
    for step in window.steps:
        need = counts.get(step, StepCount(demand=default_demand)).need
        if need:
            return StepChoice(step, need)
    return choice


@dataclass(frozen=True, slots=True)
class Asked:
    """Result of a trainer's request.

    Args:
        demand: The step's demand, in groups.
        rounds: Number of times that the trainer raised the demand.
        floor: The first open step.
    """

    demand: int
    rounds: int
    floor: int


def ask(
    now: StepCount, *, step: int, floor: int, groups: int, closed: bool, stated: bool, max_rounds: int
) -> Asked | None:
    """Applies the trainer's request to set the demand of a step; None if nothing changes.

    Args:
        now: Counts of the step.
        step: Number of the step.
        floor: The first open step.
        groups: Requested total demand of the step, in groups.
        closed: True if the trainer closes this step and all below it.
        stated: True if the trainer set the demand before. The trainer's first request for a step does not count as a
            raise, and may set less than the default demand.
        max_rounds: Maximum number of raises. A further raise closes the step with the rollouts that it has.
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
