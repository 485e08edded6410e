"""What becomes of work that could not be judged now: later, another validator, or a person. Never guilt. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from validator.queue.error_class import ErrorClass, whose


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long it is tried.

    Args:
        attempts: Failures of one validator after which it gives work up; two who have half of them each are enough too.
        first: The pause after the first one; each that follows is twice as long.
        most: The longest pause.
    """

    attempts: int = 8
    first: timedelta = timedelta(seconds=1)
    most: timedelta = timedelta(minutes=1)

    def pause(self, tries: int) -> timedelta:
        """How long to wait after so many tries."""
        doubled: timedelta = self.first * 2 ** min(tries, 20)
        return min(self.most, doubled)


class GivesUp(StrEnum):
    """Why a validator tries no more."""

    NOT = ""
    """It does try again."""
    LACKS = "lacks"
    """It can't, and another may."""
    BARRED = "barred"
    """The ledger does not let it judge this, and may let another. Nothing is parked for that alone."""
    ENDS = "ends"
    """It has tried as often as it will."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a validator does about work that it could not judge."""

    pause: timedelta
    """Before it may take it again."""
    for_all: bool
    """Whether others wait so long too."""
    counted: bool
    """Whether it failed at it."""
    gives_up: GivesUp


GIVEN_UP_FOR = timedelta(minutes=10)
"""How soon who gave work up looks whether those to whom it was left are still there; if not, a person has to."""

STILL_GIVEN_UP = Step(pause=GIVEN_UP_FOR, for_all=False, counted=False, gives_up=GivesUp.LACKS)
"""What a validator does about work that it gave up before."""


def after_trouble(
    code: str,
    *,
    retryable: bool,
    tries: int,
    left: timedelta,
    patience: RetryPolicy,
    asked_to_wait: timedelta = timedelta(),
) -> Step:
    """What to do about work that could not be judged.

    Args:
        code: What kind of trouble.
        retryable: Whether trying again here may help.
        tries: How often this validator tried before.
        left: Until the work's deadline.
        patience: How long it is tried.
        asked_to_wait: What a service said; nobody's word makes us wait until it is too late.
    """
    pause, longest, fault = patience.pause(tries), max(patience.first, left / 4), whose(code, retryable=retryable)
    given_up_for = max(patience.most, min(GIVEN_UP_FOR, left / 4))
    if fault in {ErrorClass.EVERYBODYS, ErrorClass.OUTSIDE}:
        after = min(max(pause, asked_to_wait), longest)
        return Step(pause=after, for_all=fault is ErrorClass.EVERYBODYS, counted=False, gives_up=GivesUp.NOT)
    if fault is ErrorClass.LACKED:
        return Step(pause=given_up_for, for_all=False, counted=True, gives_up=GivesUp.LACKS)
    if not retryable or left < pause:
        return Step(pause=given_up_for, for_all=False, counted=True, gives_up=GivesUp.ENDS)
    after = max(pause, min(asked_to_wait, longest))
    return Step(pause=after, for_all=False, counted=True, gives_up=GivesUp.NOT)
