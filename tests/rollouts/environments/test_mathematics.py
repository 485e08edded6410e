"""`math`: answers are compared mathematically, and hostile answers cannot break the comparison."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from rollouts.environments import Environment, Prompt, load_environment, mathematics
from rollouts.sandbox import Sandboxes
from tests.rollouts.environments.conftest import WriteRows, row

pytest.importorskip("math_verify")


@pytest.fixture
def environment(write_rows: WriteRows, sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """Returns problems whose answer is two."""
    monkeypatch.setattr(mathematics, "LIMITS", replace(mathematics.LIMITS, cpu=timedelta(seconds=1)))
    return load_environment("math", options=write_rows([row({"ground_truth": "2"})]), sandboxes=sandboxes)


def ask(answer: str) -> Prompt:
    """Returns a prompt with this answer."""
    return Prompt(index=0, text="?", data={"answer": answer})


@pytest.mark.parametrize(
    ("expected", "given", "right"),
    [
        ("2", "2", True),
        ("2", "2.0", True),
        ("2", r"\sqrt{4}", True),
        ("2", "1+1", True),
        ("2", "x=2", True),
        (r"\frac{1}{2}", "0.5", True),
        (r"\frac{1}{2}", "1/2", True),
        ("x^2+2x+1", "(x+1)^2", True),
        (r"\{1,2\}", r"\{2,1\}", True),
        ("(1,2)", "(1, 2)", True),
        (r"\text{east}", "east", True),
        ("5,000", "5000", True),
        ("2", "3", False),
        ("2", "-2", False),
        ("2", "1,2", False),
        ("2", r"\{1,2\}", False),
        ("2", "1 or 2", False),
        ("2", "", False),
        ("(1,2)", "(2,1)", False),
        (r"\frac{1}{2}", "0.51", False),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}", True),
        (r"\frac{\pi}{4}", r"\arctan(1)", True),
        ("x>2", "2<x", True),
        (r"\log_2 8", "3", True),
        ("20!", "2432902008176640000", True),
        (r"\binom{5}{2}", "10", True),
        (r"\int_0^1 2x dx", "1", True),
        (r"\sum_{n=1}^{4} n", "10", True),
        ("3+4i", "4i+3", True),
        (r"[0,1)\cup(2,3]", r"(2,3]\cup[0,1)", True),
    ],
)
def test_answers_are_compared_mathematically_and_deterministically(
    environment: Environment,
    weaker_sandboxes: Sandboxes,
    write_rows: WriteRows,
    expected: str,
    given: str,
    right: bool,
) -> None:
    completion = f"The answer is \\boxed{{{given}}}."
    in_container = load_environment(
        "math", options=write_rows([row({"ground_truth": "2"})]), sandboxes=weaker_sandboxes
    )
    for each in (environment, in_container):
        score = each.score(ask(expected), completion, finished=True)
        assert (score.task, score.parts["undecided"]) == (float(right), 0.0)


def test_a_right_answer_counts_only_in_a_box_and_if_finished(environment: Environment) -> None:
    prompt = environment.prompt(0)
    assert environment.score(prompt, environment.demonstration(prompt) or "", finished=True).task == 1.0
    assert environment.score(prompt, r"\boxed{2}", finished=False).task == 0.0
    assert environment.score(prompt, "2", finished=True).task == 0.0
    assert environment.score(prompt, r"\boxed{2} or \boxed{3}", finished=True).task == 0.0


HOSTILE = {
    "a tower of powers": "9^{9^{9^{9}}}",
    "a factorial": "100000000!",
    "open brackets": "(" * 900,
    "nested fractions": r"\frac{1" * 120,
    "nested roots": r"\sqrt{" * 80 + "2" + "}" * 80,
    "an integral": r"\int_0^1 x^{x^{x^{x}}} dx",
    "a long sum": r"\sum_{n=1}^{10^{12}} \frac{1}{n^{\frac{n}{7}}}",
    "a large matrix": r"\begin{pmatrix}" + r"1&2&3\\" * 100 + r"\end{pmatrix}^{999}",
    "a long number": "9" * 999,
    "a long decimal": "0." + "3" * 900,
    "Python": "__import__('os').system('touch /tmp/muster-math-was-here')",
    "Python in LaTeX": r"\text{__import__('os').system('touch /tmp/muster-math-was-here')}",
    "Python in an operator": r"\operatorname{exec}('open(\"/tmp/muster-math-was-here\",\"w\")')",
    "digits of another script": "\u0667",
    "full-width digits": "\uff17",
    "a hidden character": "\u200b7",
    "turned around": "\u202e7",
    "a lone surrogate": "\ud800",
    "zeros": "\0" * 100,
    "commands": "\\" * 500,
    "equals": "=" * 500,
    "infinity": r"\infty - \infty",
    "not a number": r"\frac{0}{0}",
    "everything at once": r"\forall\exists\int\sum\prod\lim_{x\to\infty}" * 15,
}


@pytest.mark.parametrize("given", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_answer_earns_no_reward_within_the_time_limit(environment: Environment, given: str) -> None:
    began = time.monotonic()
    score = environment.score(ask("7"), f"\\boxed{{{given}}}", finished=True)
    assert score.task == 0.0
    if given == HOSTILE["a tower of powers"]:  # another machine might find a different result
        assert score.parts["undecided"] == 1.0
    assert time.monotonic() - began < 60  # the limit is a second of processor time, but the machine may be busy
    assert environment.score(ask("7"), r"\boxed{\frac{14}{2}}", finished=True).task == 1.0
    assert not Path("/tmp/muster-math-was-here").exists()


def test_the_version_names_the_comparing_library(environment: Environment) -> None:
    assert environment.version.startswith("2+mv0.")
