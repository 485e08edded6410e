"""Exponential back-off with jitter."""

from __future__ import annotations

from datetime import timedelta

from protocol.runtime.backoff import backoff
from protocol.runtime.randomness import jittered


class GrowingPause:
    """Exponential back-off with jitter, without a limit on attempts. A success resets it.

    Args:
        first: Pause after the first failure; each further failure doubles it.
        longest: Upper limit of the pause.
    """

    def __init__(self, *, first: timedelta, longest: timedelta) -> None:
        self._first = first
        self._longest = longest
        self._failures = 0

    def succeeded(self) -> None:
        """Resets the pause."""
        self._failures = 0

    def failed(self) -> timedelta:
        """Counts a failure and returns how long to wait."""
        self._failures += 1
        return jittered(backoff(self._first, self._longest, self._failures))
