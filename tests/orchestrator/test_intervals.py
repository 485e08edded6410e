"""The interval of heartbeats."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.heartbeat_interval import HeartbeatInterval


@pytest.mark.parametrize(("nodes", "seconds"), [(0, 10), (100, 10), (5_000, 10), (10_000, 20), (100_000, 200)])
def test_the_interval_grows_with_the_pool(nodes: int, seconds: float) -> None:
    assert HeartbeatInterval(target_rate=500).interval(nodes, draw=0).total_seconds() == pytest.approx(seconds)


@given(st.integers(0, 10**6), st.floats(0, 1, exclude_max=True))
def test_heartbeats_stay_below_the_target_rate_and_the_stagger_is_bounded(nodes: int, draw: float) -> None:
    heartbeat_interval = HeartbeatInterval(shortest=timedelta(seconds=1), target_rate=300, stagger=0.25)
    interval = heartbeat_interval.interval(nodes, draw=draw)
    assert nodes / interval.total_seconds() <= 300 * (1 + 1e-4)
    assert (
        heartbeat_interval.interval(nodes, draw=0)
        <= interval
        <= heartbeat_interval.interval(nodes, draw=0) * 1.25 + timedelta(microseconds=1)
    )
    assert interval < heartbeat_interval.unhealthy_in(interval) < heartbeat_interval.dead_in(interval)


@pytest.mark.parametrize(
    "wrong", [{"target_rate": 0}, {"stagger": 2}, {"shortest": timedelta()}, {"unhealthy_after": 6}, {"dead_after": 1}]
)
def test_heartbeat_settings_that_would_kill_healthy_nodes_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"positive|unhealthy"):
        HeartbeatInterval(**wrong)  # type: ignore[arg-type]  # wrong on purpose
