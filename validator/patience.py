"""What becomes of work that could not be judged now: later, or a person. Never guilt. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long it is tried.

    Args:
        attempts: Failures after which it is parked.
        first: The pause after the first one; each that follows is twice as long.
        most: The longest pause.
    """

    attempts: int = 8
    first: timedelta = timedelta(seconds=1)
    most: timedelta = timedelta(minutes=1)

    def pause(self, attempts: int) -> timedelta:
        """How long to wait after so many failures."""
        doubled: timedelta = self.first * 2 ** min(attempts, 20)
        return min(self.most, doubled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """Try again."""

    after: timedelta
    counted: bool
    """Whether it counts as an attempt."""


@dataclass(frozen=True, slots=True)
class Park:
    """A person has to look."""


WAITED_FOR = frozenset(
    {
        "file-absent",
        "block-not-there",
        "chain-unavailable",
        "transaction-not-mined",
        "store-unavailable",
        # The orchestrator or the object store is down or overloaded, and with it all work at once:
        "unreachable",
        "no-answer",
        "transfer-failed",
        "rate-limited",
        "http-502",
        "http-503",
        "http-504",
    }
)
"""Troubles that end by themselves, or with the work's deadline: no person could do anything about this one item."""


def after_trouble(
    code: str,
    *,
    retryable: bool,
    attempts: int,
    left: timedelta,
    patience: Patience,
    asked_to_wait: timedelta = timedelta(),
) -> Again | Park:
    """What to do about work that could not be judged.

    Args:
        code: What kind of trouble.
        retryable: Whether trying again may help.
        attempts: Failures before this one.
        left: Until the work's deadline.
        patience: How long it is tried.
        asked_to_wait: What a service said; nobody's word makes us wait until it is too late.
    """
    pause, longest = patience.pause(attempts), max(patience.first, left / 4)
    if code in WAITED_FOR:
        return Again(after=min(max(pause, asked_to_wait), longest), counted=True)
    if not retryable or attempts + 1 >= patience.attempts or left < pause:
        return Park()
    return Again(after=max(pause, min(asked_to_wait, longest)), counted=True)
