"""Exponential delay between retries."""

from __future__ import annotations

from datetime import timedelta

from protocol.runtime.randomness import jittered


def backoff(first: timedelta, most: timedelta, failures: int) -> timedelta:
    """Returns the delay after `failures` failures in a row.

    The delay is `first` after one failure. It doubles with each further failure, up to `most`.

    The result has no jitter. Callers whose retries must not coincide add it with `jittered`.

    Args:
        first: Delay after the first failure, greater than zero.
        most: Longest delay.
        failures: Number of failures in a row so far. Without failures, the delay is zero.
    """
    if failures < 1:
        return timedelta()
    doublings = min(failures - 1, (most // first).bit_length())  # more doublings would exceed `most` and could overflow
    return min(first * (1 << doublings), most)


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
