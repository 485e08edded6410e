"""Exponential back-off with jitter, for retries without a limit on attempts."""

from __future__ import annotations

from datetime import timedelta

from protocol.runtime.backoff import backoff
from protocol.runtime.randomness import jittered


class GrowingPause:
    """Pause between retries that doubles with each failure, with jitter.

    A success resets the pause. The number of attempts is not limited.

    Args:
        first: Pause after the first failure, before jitter. Each further failure doubles the pause.
        longest: Maximum pause.
    """

    def __init__(self, *, first: timedelta, longest: timedelta) -> None:
        self._first = first
        self._longest = longest
        self._failures = 0

    def succeeded(self) -> None:
        """Resets the pause after a success."""
        self._failures = 0

    def failed(self) -> timedelta:
        """Counts a failure and returns how long to wait."""
        self._failures += 1
        return jittered(backoff(self._first, self._longest, self._failures))
