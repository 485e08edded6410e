"""Contents of a devnet's report, and the conditions under which a run meets its goals."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from cli.devnet.attacks.attack import End
from cli.devnet.attacks.registry import ATTACKS
from cli.devnet.options import NEVER_SLASHED, NOT_SHOWN, ONLY_JUDGED, Goal
from cli.devnet.report.data import NodeAccount, ReportedAnswer, RunReport
from cli.devnet.report.data_file import as_json
from cli.devnet.report.page import as_page
from cli.devnet.report.text import as_text
from cli.devnet.result import judge
from rollouts.dialogue.transcript import transcript
from rollouts.turns import Turn
from tests.cli.devnet.a_report import a_report, with_lengths

GOAL = Goal(rise=0.3)
VOID = {"meta", "line", "rect", "path", "circle", "br"}


def changed(report: RunReport, name: str, **values: object) -> RunReport:
    """Returns the same report with one node changed."""
    nodes = tuple(replace(node, **values) if node.name == name else node for node in report.nodes)  # type: ignore[arg-type]
    return replace(report, nodes=nodes)


@pytest.mark.parametrize(
    ("report", "missed"),
    [
        pytest.param(a_report(), "", id="all goals met"),
        pytest.param(a_report(steps=14), "not two evaluations to compare", id="never evaluated again"),
        pytest.param(replace(a_report(), evaluations=a_report().evaluations[:2]), "64.2%", id="learned too little"),
        pytest.param(changed(a_report(), "worker-2", forged=1), "worker-2 (1)", id="an honest file judged forged"),
        pytest.param(changed(a_report(), "cheater", slashed=0), "no stake slashed", id="the attacker kept its stake"),
        pytest.param(changed(a_report(), "cheater", evicted=""), "still a member", id="the attacker stayed a member"),
        pytest.param(
            changed(a_report(), "cheater", accepted=0, forged=0, slashed=0, evicted=""),
            "it submitted nothing, so the run shows nothing",
            id="the cheat came too late",
        ),
        pytest.param(replace(a_report(), nodes=()), "none of 0 files", id="no worker delivered"),
    ],
)
def test_a_run_meets_its_goals_if_it_learned_blamed_no_honest_node_and_caught_the_attack(
    report: RunReport, missed: str
) -> None:
    failed = [one for one in judge(report, goal=GOAL) if not one.met]
    assert [one for one in failed if missed in one.found] == failed
    assert bool(failed) == bool(missed)


@pytest.mark.parametrize(
    ("report", "wanted", "missed"),
    [
        pytest.param(with_lengths(a_report()), 0.5, "", id="close to the target"),
        pytest.param(with_lengths(a_report()), 0.3, "from 2.40 to 0.40 tokens off", id="far from the target"),
        pytest.param(with_lengths(a_report(steps=14)), 3.0, "not two evaluations to compare", id="measured once"),
        pytest.param(a_report(), 3.0, "not two evaluations to compare", id="no target length"),
    ],
)
def test_with_target_lengths_answers_have_to_come_close_to_them(report: RunReport, wanted: float, missed: str) -> None:
    criteria = judge(report, goal=Goal(rise=-1.0, distance=wanted))
    (one,) = [one for one in criteria if "wanted length" in one.name]
    assert one.met is not bool(missed)
    assert missed in one.found


def test_a_base_that_is_already_close_has_to_come_closer() -> None:
    report = with_lengths(a_report())
    back = replace(report, evaluations=report.evaluations[::-1])
    assert not next(one for one in judge(back, goal=Goal(rise=-1.0, distance=3.0)) if "wanted length" in one.name).met


def test_the_text_and_the_html_report_show_how_answer_lengths_changed() -> None:
    report = with_lengths(a_report())
    criteria = judge(report, goal=Goal(rise=0.3, distance=0.5))
    text, page = as_text(report, criteria), as_page(report, criteria)
    assert "0.40 tokens off; wanted 1: 1.4, 7: 6.6" in text
    assert "2.40 → 0.42 tokens from the wanted length" in text, "the learned rollouts"
    assert "wanted 7: 6.6" in page
    assert "2.40 → 0.40" in page
    for plain in (as_text(a_report(), criteria[:1]), as_page(a_report(), criteria[:1])):
        assert "wanted 7" not in plain


def test_a_reward_below_zero_stays_inside_the_chart() -> None:
    report = a_report()
    poor = replace(report, steps=tuple(replace(step, reward=step.reward - 0.6) for step in report.steps))
    page = as_page(poor, judge(poor, goal=GOAL))
    heights = [float(y) for path in re.findall(r'class="(?:raw|line)" d="M([^"]+)"', page) for y in path.split()[1::2]]
    assert heights
    assert max(heights) <= 340 - 34
    assert "-50%" in page


def test_without_an_attack_the_goal_of_catching_it_is_left_out() -> None:
    report = replace(a_report(), nodes=a_report().nodes[:3])
    assert all(one.met for one in judge(report, goal=GOAL))
    assert len(judge(report, goal=GOAL)) == 2


class Balance(HTMLParser):
    """Fails on mismatched tags and collects the text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID or tag in {"rect", "circle"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Handles a self-closing tag."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_an_attack_stopped_before_the_verdict_must_stay_unpaid_and_keeps_its_stake() -> None:
    unpaid = {name for name, cheat in ATTACKS.items() if cheat.end is not End.SLASHED}
    assert unpaid == NEVER_SLASHED | set(NOT_SHOWN)
    refused = NodeAccount(name="cheater", address="0x" + "ab" * 20, cheat="stale-step")
    honest = tuple(node for node in a_report().nodes if not node.cheat)
    for node, met in ((refused, True), (replace(refused, accepted=1, earned=5), False)):
        *_, last = judge(replace(a_report(), nodes=(*honest, node)), goal=GOAL)
        assert last.met is met


@pytest.mark.parametrize("cheat", sorted(ONLY_JUDGED))
def test_an_attack_that_only_a_verdict_stops_must_have_submitted_work(cheat: str) -> None:
    late = NodeAccount(name="cheater", address="0x" + "ab" * 20, cheat=cheat)
    honest = tuple(node for node in a_report().nodes if not node.cheat)
    for node, met in ((late, False), (replace(late, rejected=1), True)):
        *_, last = judge(replace(a_report(), nodes=(*honest, node)), goal=GOAL)
        assert last.met is met
        assert ("shows nothing" in last.found) is not met


def test_the_html_report_is_self_contained_and_escapes_node_names() -> None:
    evil = NodeAccount(name="<script>alert(1)</script>", address="0x" + "ab" * 20, cheat="x<y", accepted=1)
    report = replace(a_report(), nodes=(*a_report().nodes, evil))
    page = as_page(report, judge(report, goal=GOAL))
    assert "<script" not in page
    assert not re.search(r"(src|href)=|url\(|@import|https?://", page)
    read = Balance()
    read.feed(page)
    assert read.open == []
    said = " ".join(read.text)
    for expected in ("43% → 92%", "previous-checkpoint", "100 → 20", "worker-2, step 41", "910 ms", "1 behind"):
        assert expected in said


def test_expired_files_are_counted_in_the_report() -> None:
    report = changed(a_report(), "cheater", cheat="no-upload", expired=5, open=2)
    (line,) = [line for line in as_text(report, ()).splitlines() if line.startswith("cheater (no-upload)")]
    assert line.split()[2:7] == ["13", "4", "0", "2", "7"]


def test_the_text_and_the_html_report_accept_any_report_including_an_empty_one() -> None:
    empty = RunReport(
        about={},
        wall_seconds=0.0,
        steps=(),
        evaluations=(),
        stages=(),
        verdicts=(),
        nodes=(),
        latencies=(),
        journey=None,
        timeline=(),
        processes=(),
    )
    for report in (empty, a_report(1), a_report()):
        criteria = judge(report, goal=GOAL)
        read = Balance()
        read.feed(as_page(report, criteria))
        assert read.open == []
        text = as_text(report, criteria)
        assert max(len(line) for line in text.splitlines()) <= 130
    assert "[ NO]" in as_text(empty, judge(empty, goal=GOAL))


def test_the_report_tells_which_check_caught_the_attack_and_on_which_machine() -> None:
    report = a_report()
    text = as_text(report, ())
    read = Balance()
    read.feed(as_page(report, ()))
    page = " ".join(" ".join(read.text).split())
    for said in (
        "How cheater was caught",
        "forged , reason computation-other-model: the file of step 8, slot 2, 1.25 s after its upload.",
        "proof 0 is off by 3.95; the limit is 0.06",
        "The validator: 64 of 64 proofs are beyond the limits",
        "Sampled rollouts",
        "A processor (x86_64)",
    ):
        assert said in page
    for line in (
        "How cheater (previous-checkpoint) was caught",
        "forged, reason computation-other-model: the file of step 8, slot 2, 1.25 s after its upload",
        "failed check computation, 297 findings; the first one (row 5, token 0):",
        "  proof 0 is off by 3.95; the limit is 0.06",
        "step 90, reward 1.00: rev:cd= → dc",
        "Python: 3.11.2",
    ):
        assert line in text.splitlines()
    lost = replace(report, catches=(replace(report.catches[0], checks=(), words="", seconds=None),))
    assert "The audit file of this verdict is missing" in as_page(lost, ())
    assert "the audit file of this verdict is missing" in as_text(lost, ())


def test_the_json_report_has_a_format_exact_amounts_and_only_valid_numbers() -> None:
    report = a_report()
    broken = replace(report.evaluations[0], greedy=float("nan"), lengths={1: float("inf")})
    criteria = judge(report, goal=GOAL)
    found = json.loads(as_json(replace(report, evaluations=(broken, *report.evaluations[1:])), criteria))
    assert (found["format"], found["passed"], len(found["criteria"])) == (1, True, len(criteria))
    assert [node["stake_after"] for node in found["nodes"]] == ["100", "100", "100", "20"]
    assert found["catches"][0]["outcome"] == "forged"
    assert found["catches"][0]["checks"][0] | {"group": None} == found["catches"][0]["checks"][0]
    assert (found["evaluations"][0]["greedy"], found["evaluations"][0]["lengths"]) == (None, {"1": None})
    assert found["steps"][0]["staleness"] == {"0": 3, "1": 9, "2": 4}
    assert found["machine"] == report.machine


def test_hostile_texts_of_the_report_are_neither_markup_nor_invisible() -> None:
    evil = "<img src=x onerror=alert(1)>\u202e\x1b[31m\n</style>"
    base = a_report()
    first, *_, last = base.evaluations
    answers = (ReportedAnswer(prompt=evil, answer=evil, correct=True),)
    report = replace(
        base,
        about={"task": evil},
        machine={"system": evil},
        evaluations=(replace(first, answers=answers), replace(last, answers=answers)),
        samples=(replace(base.samples[0], prompt=evil, answer=evil),),
        catches=(replace(base.catches[0], words=evil, checks=(replace(base.catches[0].checks[0], what=evil),)),),
    )
    worst = evil + "\x9b\ud800"  # a control sequence of eight-bit terminals, and half of a pair
    named = replace(base.nodes[0], name=worst, evicted=worst, cheat=worst)
    report = replace(report, timeline=(replace(base.timeline[0], name=worst),), nodes=(named, *base.nodes[1:]))
    data = as_json(report, ())
    assert json.loads(data)["nodes"][0]["name"] == worst
    page, text = as_page(report, ()), as_text(report, ())
    assert "<img" not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;\ufffd\ufffd[31m\n&lt;/style&gt;") == 14
    for shown in (page, text, data):
        assert not re.search("[\u202e\x1b\x9b\ud800]", shown)


def test_dialogues_are_shown_turn_by_turn_and_their_texts_are_never_markup() -> None:
    talks = [
        ReportedAnswer(
            prompt="ck?", answer=transcript_of("get(c)", "=7;", answer), correct=right, reward=reward, turns=2
        )
        for answer, right, reward in (("<b>77</b>", False, 0.0), ("74\n> get(x)\n< =9;", True, 1.0))
    ]
    assert talks[1].dialogue == ((True, "get(c)"), (False, "=7;"), (True, "74\n> get(x)\n< =9;"))
    base = a_report()
    first, *_, last = base.evaluations
    shown = replace(base, evaluations=(replace(first, answers=(talks[0],)), replace(last, answers=(talks[1],))))
    text = as_text(shown, judge(shown, goal=GOAL))
    assert [line.strip() for line in text.splitlines() if line.startswith(("  before,", "  after, ", "    "))] == [
        "before, wrong, 2 turns, reward 0.00:",
        "> get(c)",
        "< =7;",
        "> <b>77</b>",
        "after,  right, 2 turns, reward 1.00:",
        "> get(c)",
        "< =7;",
        "> 74⏎> get(x)⏎< =9;",
    ]
    page = as_page(shown, judge(shown, goal=GOAL))
    assert re.findall(r'<li class="(drawn|given)">(.*?)</li>', page, re.DOTALL) == [
        ("drawn", "get(c)"),
        ("given", "=7;"),
        ("drawn", "&lt;b&gt;77&lt;/b&gt;"),
        ("drawn", "get(c)"),
        ("given", "=7;"),
        ("drawn", "74\n&gt; get(x)\n&lt; =9;"),
    ]
    assert "2 turns, reward 1.00" in page
    assert "<b>77" not in page


def transcript_of(*texts: str) -> str:
    """Returns the transcript of messages of the model and replies by turns."""
    tokens = [np.frombuffer(text.encode(), np.uint8).astype(np.int32) for text in texts]
    turns = [
        Turn(len(drawn), tokens[place + 1] if place + 1 < len(tokens) else tokens[0][:0])
        for place, drawn in enumerate(tokens)
        if not place % 2
    ]
    return transcript([int(token) for one in tokens[::2] for token in one], turns, Bytes())


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def encode(self, text: str) -> Sequence[int]:
        return [*text.encode()]

    def encode_answer(self, text: str) -> Sequence[int]:
        return [*text.encode()]

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode()
