"""Output of the live view and of plain lines."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from cli.devnet.view import Dashboard, LiveView, PlainView, news
from protocol.runtime.clock import ManualClock
from tests.cli.devnet.a_report import a_report, with_lengths


def a_dashboard(steps: int = 40) -> Dashboard:
    """Returns a dashboard in the middle of a run, after the attack was detected."""
    report = a_report(steps)
    return Dashboard(
        wanted_steps=90,
        steps=report.steps,
        evaluations=report.evaluations,
        nodes=report.nodes,
        states={node.address: "healthy" for node in report.nodes},
        verdict_latency=report.latencies[0],
        versions=steps + 1,
        broadcast_seconds=0.31,
        block=412,
    )


def test_the_live_view_shows_progress_and_evicted_nodes() -> None:
    console = Console(file=io.StringIO(), width=110, height=40, force_terminal=True, color_system=None)
    view = LiveView(console=console, clock=ManualClock())
    view.facts({"pool": "1 active, 4 members"})
    view.dashboard(a_dashboard())
    console.print(view.render())
    said = console.file.getvalue()  # type: ignore[attr-defined]  # it is a StringIO
    low = Console(file=io.StringIO(), width=110, height=24, force_terminal=True, color_system=None)
    view = LiveView(console=low)
    view.facts({"pool": "1 active, 4 members"})
    view.dashboard(a_dashboard())
    assert len(low.render_lines(view.render())) <= 24
    for expected in ("40 of 90", "1.6 s each, 80 s to go", "43% → 77% right", "previous-checkpoint", "evicted"):
        assert expected in said
    assert "cheater: evicted (forged work)" in said  # also listed among the recent events


def test_with_target_lengths_the_view_and_the_lines_show_the_distance() -> None:
    shown = replace(a_dashboard(), evaluations=with_lengths(a_report()).evaluations)
    console = Console(file=io.StringIO(), width=130, height=40, force_terminal=True, color_system=None)
    view = LiveView(console=console, clock=ManualClock())
    view.dashboard(shown)
    console.print(view.render())
    assert "0.40 tokens off; wanted 1: 1.4, 7: 6.6" in console.file.getvalue()  # type: ignore[attr-defined]
    report = with_lengths(a_report(2))
    lines = news(None, replace(a_dashboard(2), steps=report.steps, evaluations=report.evaluations))
    assert "step 1 of 90: reward 0.30, 2.40 tokens from the wanted length" in lines
    assert any(line.endswith("answered right, 2.40 tokens off; wanted 1: 3.4, 7: 4.6") for line in lines)


def test_plain_lines_report_each_event_once() -> None:
    lines = news(None, a_dashboard(2))
    assert lines[:2] == ["step 1 of 90: reward 0.30", "step 2 of 90: reward 0.37"]
    assert "cheater: 2 of its files judged forged" in lines
    assert "cheater: 80 MUST of its stake slashed" in lines
    assert news(None, replace(a_dashboard(2), steps_before=1))[:2] == [
        "step 1 of 90: reward 0.30 (before)",
        "step 2 of 90: reward 0.37",
    ]
    assert news(a_dashboard(2), a_dashboard(2)) == []
    assert news(a_dashboard(2), replace(a_dashboard(3), evaluations=())) == ["step 3 of 90: reward 0.32"]


def test_plain_lines_carry_the_time(capsys: object) -> None:
    view = PlainView(clock=ManualClock())
    view.dashboard(a_dashboard(1))
    assert "[   0.0 s] step 1 of 90: reward 0.30" in capsys.readouterr().out  # type: ignore[attr-defined]
