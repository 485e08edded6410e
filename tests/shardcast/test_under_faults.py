"""A run's broadcast while one relay is killed and restarted, and the other spoils every tenth block."""

from __future__ import annotations

from pathlib import Path

from benchmarks.broadcast_under_faults import Plan, measure


def test_four_clients_follow_the_newest_version_under_faults_without_corrupt_files(tmp_path: Path) -> None:
    # A checkpoint a second; the time-out is long because other tests share the machine, and a hang would exceed any.
    plan = Plan(versions=3, mebibytes=8, every_s=1.0, within_s=30.0)
    outcome = measure(plan, tmp_path)
    assert outcome.failures(plan) == []
    assert [row.version for row in outcome.rows] == [1, 2, 3]
    assert outcome.kills == 1
