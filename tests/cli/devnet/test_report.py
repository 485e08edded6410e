"""What a devnet's report says, and when a run counts as good."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from cli.devnet.cheats.cheat import End
from cli.devnet.cheats.registry import CHEATS
from cli.devnet.options import NEVER_SLASHED
from cli.devnet.report.judgement import judge
from cli.devnet.report.model import NodeAccount, Report
from cli.devnet.report.page import as_page
from cli.devnet.report.text import as_text
from tests.cli.devnet.a_report import a_report

VOID = {"meta", "line", "rect", "path", "circle", "br"}


def changed(report: Report, name: str, **values: object) -> Report:
    """The same report, with one node another."""
    nodes = tuple(replace(node, **values) if node.name == name else node for node in report.nodes)  # type: ignore[arg-type]
    return replace(report, nodes=nodes)


@pytest.mark.parametrize(
    ("report", "missed"),
    [
        pytest.param(a_report(), "", id="all is well"),
        pytest.param(a_report(steps=14), "measured before and after", id="never evaluated again"),
        pytest.param(replace(a_report(), evaluations=a_report().evaluations[:2]), "64.2%", id="learned too little"),
        pytest.param(changed(a_report(), "worker-2", forged=1), "worker-2 (1)", id="an honest file called forged"),
        pytest.param(changed(a_report(), "cheater", slashed=0), "no stake slashed", id="the cheat kept its stake"),
        pytest.param(changed(a_report(), "cheater", evicted=""), "still a member", id="the cheat stayed"),
        pytest.param(replace(a_report(), nodes=()), "none of 0 files", id="nobody worked"),
    ],
)
def test_a_run_is_good_only_if_it_learned_wronged_nobody_and_caught_the_cheat(report: Report, missed: str) -> None:
    failed = [one for one in judge(report, wanted_rise=0.3) if not one.met]
    assert [one for one in failed if missed in one.found] == failed
    assert bool(failed) == bool(missed)


def test_without_a_cheat_none_has_to_be_caught() -> None:
    report = replace(a_report(), nodes=a_report().nodes[:3])
    assert all(one.met for one in judge(report, wanted_rise=0.3))
    assert len(judge(report, wanted_rise=0.3)) == 2


class Balance(HTMLParser):
    """Fails on tags that do not match, and collects the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID or tag in {"rect", "circle"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Closes itself."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_a_cheat_that_a_door_stops_has_to_go_unpaid_and_loses_no_stake() -> None:
    assert {name for name, cheat in CHEATS.items() if cheat.end is not End.SLASHED} == NEVER_SLASHED
    refused = NodeAccount(name="cheater", address="0x" + "ab" * 20, cheat="stale-step")
    honest = tuple(node for node in a_report().nodes if not node.cheat)
    for node, met in ((refused, True), (replace(refused, accepted=1, earned=5), False)):
        *_, last = judge(replace(a_report(), nodes=(*honest, node)), wanted_rise=0.3)
        assert last.met is met


def test_the_page_needs_nothing_from_anywhere_and_nodes_can_put_no_markup_into_it() -> None:
    evil = NodeAccount(name="<script>alert(1)</script>", address="0x" + "ab" * 20, cheat="x<y", accepted=1)
    report = replace(a_report(), nodes=(*a_report().nodes, evil))
    page = as_page(report, judge(report, wanted_rise=0.3))
    assert "<script" not in page
    assert not re.search(r"(src|href)=|url\(|@import|https?://", page)
    read = Balance()
    read.feed(page)
    assert read.open == []
    said = " ".join(read.text)
    for expected in ("43% → 92%", "previous-checkpoint", "100 → 20", "worker-2, step 41", "910 ms", "1 behind"):
        assert expected in said


def test_text_and_page_are_made_of_any_report_also_an_empty_one() -> None:
    empty = Report(
        about={},
        wall_seconds=0.0,
        steps=(),
        evaluations=(),
        stages=(),
        verdicts=(),
        nodes=(),
        latencies=(),
        journey=None,
        lanes=(),
        processes=(),
    )
    for report in (empty, a_report(1), a_report()):
        criteria = judge(report, wanted_rise=0.3)
        read = Balance()
        read.feed(as_page(report, criteria))
        assert read.open == []
        text = as_text(report, criteria)
        assert max(len(line) for line in text.splitlines()) <= 130
    assert "[ NO]" in as_text(empty, judge(empty, wanted_rise=0.3))
