"""Delay before the next try, growing exponentially with the number of failures."""

from __future__ import annotations

from datetime import timedelta


def backoff(first: timedelta, most: timedelta, failures: int) -> timedelta:
    """Returns the delay after `failures` failures in a row: `first`, doubled with each further one, at most `most`.

    Pure and without jitter; callers that must not retry in step add their own.

    Args:
        first: Delay after the first failure; more than zero.
        most: Longest delay.
        failures: Failures in a row so far; with none the delay is zero.
    """
    if failures < 1:
        return timedelta()
    doublings = min(failures - 1, (most // first).bit_length())  # more would exceed `most`, and later overflow
    return min(first * (1 << doublings), most)
