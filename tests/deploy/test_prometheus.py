"""The shipped alerts and dashboards use existing series, and the alerts fire when they should."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped,unused-ignore]

from protocol.runtime.clock import SystemClock
from rollouts.environments.mixture import Parts
from tests.kit.prometheus import DASHBOARDS, dashboard_queries, find_program
from trainer.learning.metrics import LearnedStep
from trainer.run.gathering.asynchrony import StepProgress
from trainer.run.gathering.batches import Chosen
from trainer.run.progress import ProgressLog
from trainer.run.reporting import StepDone, StepTimes, step_facts
from trainer.run.state.journal import StepBatch
from trainer.run.state.pools import PoolSettings
from trainer.run.state.trainer_state import TrainerState

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus/muster.rules.yml"
PARTS = ("protocol", "ledger", "orchestrator", "discovery", "gateway", "validator", "shardcast", "worker")
ENDINGS = {
    "Counter": ("_total",),
    "Gauge": ("",),
    "GaugeMetricFamily": ("",),
    "Histogram": ("_bucket", "_sum", "_count"),
    "InfoMetricFamily": ("_info",),
}
PAGE = (ROOT / "docs/monitoring.md").read_text()


def declared(folder: Path) -> set[str]:
    """Returns all series: those that the code declares, with the client's endings, and the trainer's."""
    kinds = "|".join(ENDINGS)
    pattern = re.compile(rf"\b({kinds})\(\s*\"(muster_\w+)\"")
    sources = (file.read_text() for part in PARTS for file in (ROOT / part).rglob("*.py"))
    found = {name + end for text in sources for kind, name in pattern.findall(text) for end in ENDINGS[kind]}
    return found | trainer_series(folder)


def trainer_series(folder: Path) -> set[str]:
    """Returns the trainer's gauges, which are named after the entries of its progress lines."""
    numbers = dict.fromkeys(LearnedStep.__dataclass_fields__, 1)
    done = StepDone(
        batch=StepBatch(step=1, at_ms=0, files=(), groups=(), parts=()),
        files=[],
        chosen=Chosen(places=(), left=Counter()),
        dropped=Counter(),
        progress=StepProgress(demand=1, rounds=1),
        learned=LearnedStep(**numbers),  # type: ignore[arg-type]
    )
    facts = step_facts(done, StepTimes(), state=TrainerState(), pools=PoolSettings(), parts=Parts.of(["letters"], [1]))
    means = dict.fromkeys(("reward", "solved", "length", "signal_share", "idle_share"), 1.0)  # None without files
    progress = ProgressLog(folder, clock=SystemClock())
    progress.record("started", step=0)
    progress.record("step", **facts | means)
    progress.record("published", version=1)
    return {sample.name for metric in progress.registry.collect() for sample in metric.samples}


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def boards() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in DASHBOARDS}


def test_every_series_in_alerts_and_dashboards_is_a_declared_metric(tmp_path: Path) -> None:
    texts = [rule["expr"] for rule in alerts()]
    texts += [query for board in boards().values() for query in dashboard_queries(board, interval="1m").values()]
    named = {name for text in texts for name in re.findall(r"\bmuster_\w+", text)}
    assert len(named) > 60
    assert named <= declared(tmp_path), named - declared(tmp_path)
    for row in re.findall(r"^\| `(muster_\w+)", PAGE, re.MULTILINE):
        assert row in declared(tmp_path), row


@pytest.mark.needs_prometheus
def test_the_alert_rules_pass_their_promtool_tests_and_each_new_one_has_a_test() -> None:
    tests = RULES.with_name("muster.rules.test.yml")
    command = [find_program("promtool"), "test", "rules", tests.name]
    done = subprocess.run(command, cwd=RULES.parent, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    tested = {
        case["alertname"] for test in yaml.safe_load(tests.read_text())["tests"] for case in test["alert_rule_test"]
    }
    names = [rule["alert"] for rule in alerts()]
    groups = {group["name"]: group["rules"] for group in yaml.safe_load(RULES.read_text())["groups"]}
    for name in ("muster-training", "muster-money", "muster-worker"):
        assert {rule["alert"] for rule in groups[name]} <= tested
    assert sorted(re.findall(r"^\| `(Muster\w+)`", PAGE, re.MULTILINE)) == sorted(names)


@pytest.mark.needs_prometheus
def test_every_query_of_the_dashboards_is_valid(tmp_path: Path) -> None:
    queries = [query for board in boards().values() for query in dashboard_queries(board, interval="1m").values()]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))
    command = [find_program("promtool"), "check", "rules", str(tmp_path / "rules.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboards_explain_each_panel_and_why_it_may_have_no_data() -> None:
    assert set(boards()) == {"pool", "validation", "broadcast", "training", "money"}
    for name, board in boards().items():
        assert board["uid"] == f"muster-{name}"
        assert [each["type"] for each in board["templating"]["list"]] == ["datasource"]
        places = [tuple(panel["gridPos"][key] for key in "xy") for panel in board["panels"]]
        assert len(set(places)) == len(places)
        assert len({panel["id"] for panel in board["panels"]}) == len(places)
        for panel in board["panels"]:
            defaults = panel["fieldConfig"]["defaults"]
            assert len(panel["description"]) > 10, panel["title"]
            assert defaults["unit"], panel["title"]
            assert defaults["noValue"].startswith("No data: "), panel["title"]
            assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
            for source in (panel, *panel["targets"]):
                assert source["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
