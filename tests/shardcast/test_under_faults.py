"""Broadcast over two faulty relays: one is killed and restarted, the other corrupts blocks."""

from __future__ import annotations

from pathlib import Path

from benchmarks.broadcast_under_faults import Plan, measure


def test_four_clients_follow_the_newest_version_under_faults_without_corrupt_files(tmp_path: Path) -> None:
    # The origin publishes one checkpoint per second. The time limit is long, because other tests use the same machine;
    # a download that hangs would exceed any limit.
    plan = Plan(versions=3, mebibytes=8, every_s=1.0, within_s=30.0)
    outcome = measure(plan, tmp_path)
    assert outcome.failures(plan) == []
    assert [row.version for row in outcome.rows] == [1, 2, 3]
    assert outcome.kills == 1
