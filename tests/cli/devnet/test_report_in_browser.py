"""The devnet's HTML report in Chromium: sizes, themes, accessibility, hostile texts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cli.devnet.options import Goal
from cli.devnet.report.data import ReportedAnswer
from cli.devnet.result import RunResult, judge
from tests.cli.devnet.a_report import a_report, with_lengths
from tests.kit.browser import in_browser
from tests.kit.page_world import MARKUP

pytestmark = [pytest.mark.needs_browser, pytest.mark.needs_node]


def test_the_report_is_readable_at_every_size_and_theme(tmp_path: Path) -> None:
    base = with_lengths(a_report())
    talk = ReportedAnswer(prompt=MARKUP, answer=f"> get(c)\n< =7;\n> {MARKUP}", correct=True, reward=1.0, turns=2)
    wide = ReportedAnswer(prompt="W" * 300, answer=f"{MARKUP}\n{'W' * 900}", correct=False)
    first, *others, last = base.evaluations
    report = replace(
        base,
        evaluations=(replace(first, answers=(talk, wide)), *others, replace(last, answers=(talk, wide))),
        samples=(*base.samples, replace(base.samples[0], answer=MARKUP)),
        nodes=(*base.nodes, replace(base.nodes[0], name=MARKUP, evicted=MARKUP)),
    )
    RunResult(report, judge(report, goal=Goal(rise=0.3))).write(tmp_path / "report")
    texts = [MARKUP, "How cheater was caught", "the limit is 0.06", "Versions and machine", "wanted 7"]
    url = (tmp_path / "report" / "report.html").as_uri()
    assert in_browser("report.test.mjs", {"url": url, "texts": texts}) == 4
