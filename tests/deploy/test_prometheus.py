"""The shipped alerts use existing series and fire when they should."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/muster.rules.yml"
PARTS = ("protocol", "orchestrator", "discovery", "gateway", "validator", "shardcast", "trainer")


def declared() -> set[str]:
    """Returns series names as in the code; Prometheus' client adds `_total` and `_bucket`."""
    sources = (file.read_text() for part in PARTS for file in (ROOT / part).rglob("*.py"))
    return {name for source in sources for name in re.findall(r'"(muster_[a-z_]+)"', source)}


def test_every_series_in_an_alert_is_a_declared_metric() -> None:
    named = set(re.findall(r"\bmuster_[a-z_]+", RULES.read_text()))
    known = {name + ending for name in declared() for ending in ("", "_total", "_bucket")}
    assert named, "no series found in the rules"
    assert named <= known, named - known


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool here")
def test_the_alert_rules_pass_their_promtool_tests() -> None:
    done = subprocess.run(
        ["promtool", "test", "rules", "muster.rules.test.yml"],
        cwd=RULES.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
