"""Exponential delay between retries."""

from __future__ import annotations

from datetime import timedelta


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
