"""Asynchrony between generation and training, and demand for rollouts per step.

Three parameters define the asynchrony (RLAX, sections 3 and 4; Periodic Asynchrony, sections 3 and 4): how often
workers reload weights, how stale a rollout may be, and whether gradients are computed as groups arrive. The named
settings are common combinations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from trainer.errors import BadSettings


class AsynchronyName(StrEnum):
    """Common combinations of the three parameters."""

    ON_POLICY = "on-policy"
    ONE_STEP = "one-step"
    TWO_STEP = "two-step"
    OFF_POLICY = "off-policy"
    PERIODIC = "periodic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asynchrony:
    """The three parameters of asynchrony.

    Args:
        reload_every: Number of steps between published versions.
        max_staleness: Maximum age of a rollout's policy, in steps before the step that trains on it.
        stream: Whether the gradients of groups are computed as the groups are accepted, and not only when the step has
            all of its groups.

    Raises:
        BadSettings: A value is out of range, or rollouts would be too stale for the last step before a new version.
    """

    reload_every: int = 1
    max_staleness: int = 2
    stream: bool = False

    def __post_init__(self) -> None:
        if self.reload_every < 1 or self.max_staleness < 0:
            raise BadSettings("reload_every must be 1 or more, and max_staleness 0 or more")
        if self.reload_every > self.max_staleness + 1:
            raise BadSettings(
                f"there is a version after every {self.reload_every} steps, but rollouts may be at most "
                f"{self.max_staleness} steps old",
                hint=f"the last step before a new version needs max_staleness {self.reload_every - 1} or more",
            )

    def check_window(self, async_level: int) -> None:
        """Checks that the orchestrator leases enough steps ahead.

        Raises:
            BadSettings: The orchestrator leases too few steps per version.
        """
        if self.reload_every > async_level + 1:
            raise BadSettings(
                f"there is a version after every {self.reload_every} steps, but the orchestrator leases only "
                f"{async_level} steps beyond a version",
                hint=f"set run_async_level of the orchestrator to {self.reload_every - 1} or more",
            )

    def last_step(self, *, version: int, async_level: int) -> int:
        """Returns the last step that may train on rollouts of a version."""
        return version + min(self.max_staleness, async_level)

    def publishes(self, version: int) -> bool:
        """Returns whether this version is published."""
        return version % self.reload_every == 0


NAMED: Mapping[AsynchronyName, Asynchrony] = {
    AsynchronyName.ON_POLICY: Asynchrony(reload_every=1, max_staleness=0),
    AsynchronyName.ONE_STEP: Asynchrony(reload_every=1, max_staleness=1),
    AsynchronyName.TWO_STEP: Asynchrony(reload_every=1, max_staleness=2),
    AsynchronyName.OFF_POLICY: Asynchrony(reload_every=4, max_staleness=8),
    AsynchronyName.PERIODIC: Asynchrony(reload_every=1, max_staleness=0, stream=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgress:
    """State of a step at the orchestrator.

    Args:
        demand: Number of groups that the trainer has demanded.
        rounds: Number of times that the demand was increased.
        closed: Whether the step needs no more rollouts.
        accepted: Number of accepted groups.
        pending: Number of submitted groups without a verdict.
        leased: Number of leased groups that are not submitted yet.
    """

    demand: int = 0
    rounds: int = 0
    closed: bool = False
    accepted: int = 0
    pending: int = 0
    leased: int = 0

    @property
    def need(self) -> int:
        """Number of groups that are demanded but not leased yet."""
        return 0 if self.closed else max(0, self.demand - self.accepted - self.pending - self.leased)

    @property
    def underway(self) -> int:
        """Number of groups that may still be accepted."""
        return self.need + self.leased + self.pending


def steps_to_open(
    step: int, last: int, progress: Mapping[int, StepProgress], *, groups: int, most_waiting: int
) -> dict[int, int]:
    """Returns the demand of each step from `step + 1` to `last`, in groups.

    The demand is 0 for a step that is not open yet.

    The next step is always open, so that workers continue while rollouts of the current step are validated and trained
    on. A later step opens when the demand of all steps before it is leased, and fewer than `most_waiting` accepted
    groups wait: a longer queue does not increase throughput and makes every rollout staler.

    Args:
        step: The current step.
        last: Last step that may be served (`Asynchrony.last_step`).
        progress: State of the steps; a missing step has no demand yet.
        groups: Initial demand of a step.
        most_waiting: No further step opens while later steps have this many accepted groups or more.
    """
    none = StepProgress()
    waiting = sum(progress.get(later, none).accepted for later in range(step + 1, last + 1))
    wanted: dict[int, int] = {}
    busy = True
    for later in range(step + 1, last + 1):
        opened = later == step + 1 or (busy and waiting < most_waiting)
        wanted[later] = groups if opened else 0
        now = progress.get(later, none)
        before = progress.get(later - 1, none)
        busy = opened and busy and before.need == 0 and now.demand >= groups and now.need == 0
    return wanted


class Move(StrEnum):
    """Action for a step."""

    WAIT = "wait"
    RAISE = "raise"
    FULL = "full"
    """No more groups are expected: train on those received so far."""


@dataclass(frozen=True, slots=True)
class DemandDecision:
    """Action for a step and the demand to raise to."""

    move: Move
    groups: int = 0


def next_move(
    now: StepProgress,
    *,
    wanted: int,
    useful: int,
    coming: int,
    held_up: int = 0,
    share: float,
    max_rounds: int,
    lingered: bool,
) -> DemandDecision:
    """Decides whether to train on a step's batch, raise its demand, or wait.

    Args:
        now: State of the step.
        wanted: Number of groups with differing rewards that a batch needs.
        useful: Number of groups with differing rewards that were received.
        coming: Number of accepted groups that are not received yet.
        held_up: Number of accepted groups that are unavailable because chain or store is down. They don't count
            towards the batch. If the batch is not full and the demand can't be raised any more, the step waits for
            them.
        share: Expected share of groups whose rewards differ, in (0, 1].
        max_rounds: Maximum number of times the demand may be raised.
        lingered: Whether the step has waited `linger_s` for outstanding work since its batch was full.
    """
    outstanding = now.leased + now.pending + coming
    if useful >= wanted:
        return DemandDecision(Move.WAIT if outstanding and not lingered else Move.FULL)
    missing = wanted - useful
    if now.closed or now.rounds >= max_rounds:
        left = outstanding + held_up + (0 if now.closed else now.need)
        return DemandDecision(Move.WAIT if left else Move.FULL)
    underway = now.underway + coming
    if underway >= missing:
        return DemandDecision(Move.WAIT)
    # The last raise asks for twice the missing groups, because no raise can follow if some of them lack signal.
    last_chance = 2 if now.rounds + 1 >= max_rounds else 1
    asked = max(now.demand, now.accepted + now.pending + now.leased)
    return DemandDecision(Move.RAISE, asked + max(1, math.ceil(missing / share) * last_chance - underway))


def first_demand(groups: int, share: float) -> int:
    """Returns the initial demand, with which about five of six steps get a full batch.

    The demand is one standard deviation above the expected need, because missing groups cost another round trip.
    """
    return math.ceil((groups + math.sqrt(groups * (1 - share))) / max(share, 0.001))
