"""Exponential back-off as a pure function."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from protocol.runtime.backoff import GrowingPause, backoff

DURATIONS = st.timedeltas(min_value=timedelta(milliseconds=1), max_value=timedelta(days=365))


def test_the_delay_doubles_from_the_first_to_the_longest() -> None:
    delays = [backoff(timedelta(seconds=1), timedelta(seconds=5), failures) for failures in range(6)]
    assert delays == [timedelta(seconds=seconds) for seconds in (0, 1, 2, 4, 5, 5)]


@given(first=DURATIONS, most=DURATIONS, failures=st.integers(min_value=1, max_value=10**9))
def test_the_delay_is_bounded_never_shrinks_and_at_most_doubles(
    first: timedelta, most: timedelta, failures: int
) -> None:
    delay, following = backoff(first, most, failures), backoff(first, most, failures + 1)
    assert timedelta() < delay <= following <= min(2 * delay, most)
    assert delay == most or delay >= first


@given(first=DURATIONS, most=DURATIONS)
def test_the_delay_reaches_the_longest(first: timedelta, most: timedelta) -> None:
    assert backoff(first, most, 10**12) == most


def test_a_growing_pause_has_jitter_and_begins_again_after_a_success() -> None:
    pause = GrowingPause(first=timedelta(seconds=2), longest=timedelta(seconds=8))
    for most in (2, 4, 8, 8):
        assert timedelta(seconds=most / 2) <= pause.failed() <= timedelta(seconds=most)
    pause.succeeded()
    assert pause.failed() <= timedelta(seconds=2)
