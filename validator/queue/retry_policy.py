"""Retry policy for work that could not be judged: later, by another validator, or by a person. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from validator.queue.error_class import ErrorClass, whose


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Limits of retries.

    Args:
        attempts: Failures of one validator after which it gives work up; half of them each by two suffice too.
        first: Pause after the first failure; each following pause is twice as long.
        most: The longest pause.
    """

    attempts: int = 8
    first: timedelta = timedelta(seconds=1)
    most: timedelta = timedelta(minutes=1)

    def pause(self, tries: int) -> timedelta:
        """Returns the pause after a number of attempts."""
        doubled: timedelta = self.first * 2 ** min(tries, 20)
        return min(self.most, doubled)


class GivesUp(StrEnum):
    """Reason for giving up."""

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
    """Next step for work that could not be judged."""

    pause: timedelta
    """Before it may take it again."""
    for_all: bool
    """Whether other validators wait as long."""
    counted: bool
    """Whether this counts as a failure of this validator."""
    gives_up: GivesUp


GIVEN_UP_FOR = timedelta(minutes=10)
"""Delay before checking that the validators which took over an item are alive; else it is parked."""

STILL_GIVEN_UP = Step(pause=GIVEN_UP_FOR, for_all=False, counted=False, gives_up=GivesUp.LACKS)
"""Step for work that this validator gave up before."""


def after_trouble(
    code: str,
    *,
    retryable: bool,
    tries: int,
    left: timedelta,
    patience: RetryPolicy,
    asked_to_wait: timedelta = timedelta(),
) -> Step:
    """Decides the next step for work that could not be judged.

    Args:
        code: Code of the error.
        retryable: Whether a retry here may help.
        tries: Earlier attempts of this validator.
        left: Time until the work's deadline.
        patience: Limits of retries.
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
