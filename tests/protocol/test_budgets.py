"""Budgets follow the machine's control groups and disk; versions in need are always kept."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from structlog.testing import capture_logs

from protocol.runtime.budgets import (
    KeepRule,
    Needs,
    OverBudget,
    StoredVersion,
    free_memory,
    keep_rule,
    machine_memory,
    size_of,
    weights_budget,
)

NOW = 10_000.0
HOUR = timedelta(hours=1)
SMALL = 1 << 20
"""Less memory than any machine that runs these tests has."""


def versions(*needed: int, count: int = 5) -> list[StoredVersion]:
    """Returns versions of 100 bytes each, newest first.

    Those at the given places are marked as needed.
    """
    return [StoredVersion(100, NOW, needed=place in needed) for place in range(count)]


@pytest.mark.parametrize(
    ("rule", "stored", "left", "over"),
    [
        (KeepRule(most=3), versions(), {0, 1, 2}, 0),
        (KeepRule(most=3), versions(count=2), {0, 1}, 0),
        (KeepRule(most=5, budget=250), versions(), {0, 1}, 0),
        (KeepRule(most=5, budget=10), versions(), {0}, 90),
        (KeepRule(most=5, budget=10, least=2), versions(), {0, 1}, 190),
        # Needed versions are always kept, and they use up the budget first.
        (KeepRule(most=1), versions(3), {0, 3}, 0),
        (KeepRule(most=2, budget=150), versions(0, 1, 4), {0, 1, 4}, 150),
        (KeepRule(most=5, budget=300), versions(4), {0, 1, 4}, 0),
        (KeepRule(most=2, budget=0), [], set(), 0),
    ],
)
def test_the_oldest_versions_are_removed_first_and_needed_ones_never(
    rule: KeepRule, stored: list[StoredVersion], left: set[int], over: int
) -> None:
    choice = rule.choose(stored)
    assert {place for place, stays in enumerate(choice.stays) if stays} == left
    assert choice.over == over


@pytest.mark.parametrize(
    ("ages", "work", "needed"),
    [
        # Version 7 was leased until at most an hour after 9 arrived, 3599 s ago; version 6 until an hour after 8
        # arrived, 3601 s ago.
        ((3599, 3601, 9000, 9000), (), {9, 8, 7}),
        ((3601, 9000, 9000, 9000), (), {9, 8}),
        ((3601, 9000, 9000, 9000), (6, 2), {9, 8, 6}),
        ((5000,), (), {9}),
        ((), (5,), set()),
    ],
)
def test_a_version_is_needed_while_it_may_be_leased_or_has_open_work(
    ages: tuple[float, ...], work: tuple[int, ...], needed: set[int]
) -> None:
    stored = [(9 - place, StoredVersion(100, NOW - age)) for place, age in enumerate(ages)]
    marked = Needs(at=NOW, leases=HOUR, work=frozenset(work)).of(stored)
    assert {number for (number, _), each in zip(stored, marked, strict=True) if each.needed} == needed


def test_needed_versions_above_the_budget_are_logged_once(tmp_path: Path) -> None:
    over = OverBudget(tmp_path)
    with capture_logs() as logs:
        for bytes_over in (0, 5, 7, 0, 3):
            over.note(bytes_over)
    assert [(line["event"], line.get("bytes")) for line in logs] == [
        ("versions-over-budget", 5),
        ("versions-within-budget", None),
        ("versions-over-budget", 3),
    ]


def test_the_disk_budget_is_a_tenth_of_the_disk_or_a_fifth_of_the_free_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "store" / "1").mkdir(parents=True)
    (tmp_path / "store" / "1" / "weights").write_bytes(bytes(100))
    (tmp_path / "store" / "2").symlink_to(tmp_path / "store" / "1" / "weights")
    assert size_of(tmp_path / "store") == 100, "a link takes no space"
    usage = SimpleNamespace(total=10_000, free=9_000)
    monkeypatch.setattr("protocol.runtime.budgets.shutil.disk_usage", lambda _: usage)
    with capture_logs() as logs:
        assert keep_rule(tmp_path / "not" / "yet", told=None, most=5).budget == 1000
        usage.free = 900
        assert keep_rule(tmp_path / "store", told=None, most=5).budget == 200
        assert keep_rule(tmp_path / "store", told=7, most=5, least=2) == KeepRule(most=7)
    assert [line["event"] for line in logs] == ["versions-kept"] * 3
    assert (logs[1]["budget_bytes"], logs[1]["disk_bytes"], logs[1]["free_bytes"]) == (200, 10_000, 900)
    assert (logs[2]["versions"], logs[2]["by"]) == (7, "settings")


def test_budgets_of_four_services_leave_free_space_on_one_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(total=10_000, free=1500)
    monkeypatch.setattr("protocol.runtime.budgets.shutil.disk_usage", lambda _: usage)
    rules = [keep_rule(tmp_path / name, told=None, most=5) for name in ("trainer", "relay", "validator", "worker")]
    assert sum(rule.budget or 0 for rule in rules) < usage.free


@pytest.mark.parametrize(
    ("own", "files", "limited"),
    [
        ("0::/a/b\n", {"a/b/memory.max": str(SMALL)}, True),
        ("0::/a/b\n", {"a/memory.max": str(SMALL), "a/b/memory.max": "max"}, True),
        ("0::/not/visible/here\n", {"memory.max": str(SMALL)}, True),
        ("5:cpu:/x\n4:memory:/x\n", {"memory/x/memory.limit_in_bytes": str(SMALL)}, True),
        ("0::/a\n", {"a/memory.max": "max"}, False),
        ("0::/a\n", {}, False),
    ],
)
def test_memory_is_the_machines_or_the_smallest_cgroup_limit(
    tmp_path: Path, own: str, files: dict[str, str], limited: bool
) -> None:
    groups = tmp_path / "groups"
    for name, text in files.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(text + "\n")
    (tmp_path / "own").write_text(own)
    memory = machine_memory(groups=groups, own=tmp_path / "own")
    assert memory == (SMALL if limited else psutil.virtual_memory().total)
    assert weights_budget(memory, processes=2) == memory // 4


@pytest.mark.parametrize(
    ("own", "files", "left"),
    [
        ("0::/a/b\n", {"a/b": ("max", 500, 0), "a": ("1000", 700, 0)}, 300),
        ("0::/a/b\n", {"a/b": ("600", 500, 0), "a": ("1000", 700, 0)}, 100),
        ("0::/not/visible/here\n", {"": ("1000", 1200, 0)}, 0),
        ("0::/a\n", {"a": ("1000", 900, 600)}, 700),  # the kernel frees idle cache when memory is needed
    ],
)
def test_free_memory_is_limited_by_the_fullest_cgroup(
    tmp_path: Path, own: str, files: dict[str, tuple[str, int, int]], left: int
) -> None:
    groups = tmp_path / "groups"
    for name, (limit, used, idle) in files.items():
        (groups / name).mkdir(parents=True, exist_ok=True)
        (groups / name / "memory.max").write_text(f"{limit}\n")
        (groups / name / "memory.current").write_text(f"{used}\n")
        (groups / name / "memory.stat").write_text(f"anon 1\ninactive_file {idle}\nactive_file 7\n")
    (tmp_path / "own").write_text(own)
    assert free_memory(groups=groups, own=tmp_path / "own") == left


def test_cgroup_version_1_is_read_too(tmp_path: Path) -> None:
    group = tmp_path / "groups" / "memory" / "x"
    group.mkdir(parents=True)
    for name, text in {"limit_in_bytes": "1000", "usage_in_bytes": "800", "stat": "total_inactive_file 100"}.items():
        (group / f"memory.{name}").write_text(f"{text}\n")
    (tmp_path / "own").write_text("5:cpu:/x\n4:memory:/x\n")
    assert free_memory(groups=tmp_path / "groups", own=tmp_path / "own") == 300
