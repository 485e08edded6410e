"""Retry policy for work that could not be judged: later, by another validator, or by a person. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from protocol.runtime.backoff import backoff
from validator.queue.error_class import ErrorClass, classify_error


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Limits of retries.

    Args:
        attempts: Failures of one validator after which it gives an item up; half as many by each of two suffice, too.
        first: Pause after the first failure; each following pause is twice as long.
        most: The longest pause.
    """

    attempts: int = 8
    first: timedelta = timedelta(seconds=1)
    most: timedelta = timedelta(minutes=1)

    def pause(self, tries: int) -> timedelta:
        """Returns the pause after a number of attempts."""
        return backoff(self.first, self.most, tries + 1)


class GivesUp(StrEnum):
    """Reason for giving up."""

    NOT = ""
    """The validator retries."""
    LACKS = "lacks"
    """The validator lacks a requirement; another one may have it."""
    BARRED = "barred"
    """The ledger does not let this validator judge the item. Items are not parked for that reason alone."""
    ENDS = "ends"
    """The validator has used up its attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Next step for work that could not be judged."""

    pause: timedelta
    """Time before this validator may lease the item again."""
    for_all: bool
    """True if other validators wait as long."""
    counted: bool
    """True if this counts as a failure of this validator."""
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
    policy: RetryPolicy,
    asked_to_wait: timedelta = timedelta(),
) -> Step:
    """Decides the next step for work that could not be judged.

    Args:
        code: Code of the error.
        retryable: Whether a retry here may help.
        tries: Earlier attempts of this validator.
        left: Time until the work's deadline.
        policy: Limits of retries.
        asked_to_wait: A service's `Retry-After`. It is bounded, so that the wait can't reach the deadline.
    """
    pause, longest = policy.pause(tries), max(policy.first, left / 4)
    error_class = classify_error(code, retryable=retryable)
    given_up_for = max(policy.most, min(GIVEN_UP_FOR, left / 4))
    if error_class in {ErrorClass.EVERYBODYS, ErrorClass.OUTSIDE}:
        after = min(max(pause, asked_to_wait), longest)
        return Step(pause=after, for_all=error_class is ErrorClass.EVERYBODYS, counted=False, gives_up=GivesUp.NOT)
    if error_class is ErrorClass.LACKED:
        return Step(pause=given_up_for, for_all=False, counted=True, gives_up=GivesUp.LACKS)
    if not retryable or left < pause:
        return Step(pause=given_up_for, for_all=False, counted=True, gives_up=GivesUp.ENDS)
    after = max(pause, min(asked_to_wait, longest))
    return Step(pause=after, for_all=False, counted=True, gives_up=GivesUp.NOT)
