"""Asynchrony: how far generation may run ahead of learning, and which steps need rollouts.

Three parameters (RLAX, sections 3 and 4; Periodic Asynchrony, sections 3 and 4): how often workers change weights,
how old a rollout may be, and whether accepted groups become gradients as they arrive. The named settings are common
choices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from trainer.errors import BadSettings


class AsynchronyName(StrEnum):
    """Common choices of the three knobs."""

    ON_POLICY = "on-policy"
    ONE_STEP = "one-step"
    TWO_STEP = "two-step"
    OFF_POLICY = "off-policy"
    PERIODIC = "periodic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asynchrony:
    """The three knobs.

    Args:
        reload_every: A version is published after every so many steps.
        max_staleness: How many steps older than the step the policy of a rollout may be.
        stream: Whether groups become gradients as they are accepted, by a denominator that is fixed before.

    Raises:
        BadSettings: Steps between two versions could never be served.
    """

    reload_every: int = 1
    max_staleness: int = 2
    stream: bool = False

    def __post_init__(self) -> None:
        if self.reload_every < 1 or self.max_staleness < 0:
            raise BadSettings("reload_every is 1 or more, and max_staleness 0 or more")
        if self.reload_every > self.max_staleness + 1:
            raise BadSettings(
                f"a version after every {self.reload_every} steps, and rollouts at most {self.max_staleness} steps old",
                hint=f"the last step before a new version needs max_staleness {self.reload_every - 1} or more",
            )

    def check_window(self, async_level: int) -> None:
        """Makes sure that the orchestrator leases what this needs.

        Raises:
            BadSettings: It leases too few steps of one version.
        """
        if self.reload_every > async_level + 1:
            raise BadSettings(
                f"a version after every {self.reload_every} steps, and the orchestrator leases {async_level} steps "
                "beyond a version",
                hint=f"set run_async_level of the orchestrator to {self.reload_every - 1} or more",
            )

    def last_step(self, *, version: int, async_level: int) -> int:
        """The last step that rollouts of a version may serve."""
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
class StepStanding:
    """Counts of a step at the orchestrator, in groups."""

    demand: int = 0
    rounds: int = 0
    closed: bool = False
    accepted: int = 0
    pending: int = 0
    leased: int = 0

    @property
    def need(self) -> int:
        """Groups that no node works on."""
        return 0 if self.closed else max(0, self.demand - self.accepted - self.pending - self.leased)

    @property
    def underway(self) -> int:
        """Groups that may still be accepted."""
        return self.need + self.leased + self.pending


def steps_to_open(
    step: int, last: int, standing: Mapping[int, StepStanding], *, groups: int, most_waiting: int
) -> dict[int, int]:
    """Returns the demand of the later steps of the window, in groups; 0 for a step that is not open yet.

    The next step is always open, so that workers go on while this one is judged and learned. A step beyond it opens
    when everything before it is being worked on, and no more than `most_waiting` groups wait to be learned: a queue
    that is longer gives no speed, and makes every rollout older.

    Args:
        step: The one that is learned from now.
        last: The last one that may be served (`Asynchrony.last_step`).
        standing: How steps stand; one that is missing wants nothing yet.
        groups: What a step is asked for at first.
        most_waiting: Accepted groups of later steps beyond which nothing more is opened.
    """
    none = StepStanding()
    waiting = sum(standing.get(later, none).accepted for later in range(step + 1, last + 1))
    wanted: dict[int, int] = {}
    busy = True
    for later in range(step + 1, last + 1):
        opened = later == step + 1 or (busy and waiting < most_waiting)
        wanted[later] = groups if opened else 0
        now = standing.get(later, none)
        before = standing.get(later - 1, none)
        busy = opened and busy and before.need == 0 and now.demand >= groups and now.need == 0
    return wanted


class Move(StrEnum):
    """Action for a step."""

    WAIT = "wait"
    RAISE = "raise"
    FULL = "full"
    """It is as full as it gets: learn from what is there."""


@dataclass(frozen=True, slots=True)
class DemandDecision:
    """Action for a step, and the demand to raise to."""

    move: Move
    groups: int = 0


def next_move(
    now: StepStanding,
    *,
    wanted: int,
    useful: int,
    coming: int,
    held_up: int = 0,
    share: float,
    max_rounds: int,
    lingered: bool,
) -> DemandDecision:
    """Decides whether a step's batch is full, needs more demand, or is awaited.

    Args:
        now: How the step stands.
        wanted: Groups with signal that make a batch.
        useful: Groups with signal that are here.
        coming: Accepted groups that are not here yet and may still be.
        held_up: Accepted groups that chain or store can't give now. More is asked for without them, and the step does
            not end without them: who is down has not refused.
        share: Of the groups that come, how many are expected to have signal; in (0, 1].
        max_rounds: So often the demand may be raised.
        lingered: Whether what is still under way was waited for long enough.
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
    last_chance = 2 if now.rounds + 1 >= max_rounds else 1
    asked = max(now.demand, now.accepted + now.pending + now.leased)
    return DemandDecision(Move.RAISE, asked + max(1, math.ceil(missing / share) * last_chance - underway))
