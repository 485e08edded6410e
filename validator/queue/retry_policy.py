"""Retry policy for items that could not be judged: retry later, or leave the item to other processes. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from protocol.runtime.backoff import backoff
from validator.queue.error_class import ErrorClass, classify_error


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Limits for the retries of one item.

    Args:
        attempts: Number of failures at an item after which a validator process gives the item up. The item is parked
            sooner if two processes have each failed half this number of times.
        first: Pause after the first failure; each following pause is twice as long.
        most: The longest pause.
    """

    attempts: int = 8
    first: timedelta = timedelta(seconds=1)
    most: timedelta = timedelta(minutes=1)

    def pause(self, tries: int) -> timedelta:
        """Returns the pause before the next attempt.

        Args:
            tries: Number of attempts before the one that just failed.
        """
        return backoff(self.first, self.most, tries + 1)


class GiveUpReason(StrEnum):
    """Reason for which a validator process gives an item up."""

    NONE = ""
    """The process does not give the item up, but retries."""
    REQUIREMENT = "requirement"
    """The process does not meet a requirement that another process may meet."""
    NOT_ALLOWED = "not-allowed"
    """The ledger does not let this validator judge the work. For this reason alone, an item is not parked."""
    ATTEMPTS_USED = "attempts-used"
    """The process has used up its attempts, or a retry can't succeed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Next step for an item that a validator process could not judge."""

    pause: timedelta
    """Time before this process may lease the item again."""
    for_all: bool
    """True if the pause also applies to the other processes."""
    counted: bool
    """True if the attempt counts as a failure of this process at the item."""
    gives_up: GiveUpReason
    """Reason for which this process gives the item up; `NONE` if this process does not give it up."""


GIVEN_UP_FOR = timedelta(minutes=10)
"""Time for which a process that gave an item up leaves the item to other processes.

Afterwards the process takes the item again, and the queue parks the item if no other live process can judge it.
"""

STILL_GIVEN_UP = Step(pause=GIVEN_UP_FOR, for_all=False, counted=False, gives_up=GiveUpReason.REQUIREMENT)
"""Next step for an item that this process gave up before and has taken again."""


def next_step(
    code: str,
    *,
    retryable: bool,
    tries: int,
    left: timedelta,
    policy: RetryPolicy,
    asked_to_wait: timedelta = timedelta(),
) -> Step:
    """Decides the next step for an item that this process could not judge.

    Args:
        code: Code of the error.
        retryable: True if a retry by this process may succeed.
        tries: Number of earlier attempts of this process at the item.
        left: Time until the work's deadline.
        policy: Limits of retries.
        asked_to_wait: Time from a service's `Retry-After` header, zero without one. The wait is limited to about a
            quarter of `left`, so that a service can't make the validator miss the deadline.
    """
    pause, longest = policy.pause(tries), max(policy.first, left / 4)
    error_class = classify_error(code, retryable=retryable)
    given_up_for = max(policy.most, min(GIVEN_UP_FOR, left / 4))
    if error_class in {ErrorClass.ALL_VALIDATORS, ErrorClass.SERVICE}:
        after = min(max(pause, asked_to_wait), longest)
        return Step(
            pause=after, for_all=error_class is ErrorClass.ALL_VALIDATORS, counted=False, gives_up=GiveUpReason.NONE
        )
    if error_class is ErrorClass.REQUIREMENT:
        return Step(pause=given_up_for, for_all=False, counted=True, gives_up=GiveUpReason.REQUIREMENT)
    if not retryable or left < pause:
        return Step(pause=given_up_for, for_all=False, counted=True, gives_up=GiveUpReason.ATTEMPTS_USED)
    after = max(pause, min(asked_to_wait, longest))
    return Step(pause=after, for_all=False, counted=True, gives_up=GiveUpReason.NONE)
