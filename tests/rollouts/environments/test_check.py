"""`muster env check`: the shipped families pass, and each violation of the contract is reported."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta

import pytest
from pydantic import JsonValue

from rollouts.environments import Rewards
from rollouts.environments.check import CheckReport, CheckSettings, check_environment
from rollouts.environments.errors import BadOptions, EnvironmentFault
from rollouts.environments.registry import BUILT_IN
from tests.kit.devnet import run_muster
from tests.kit.faulty_environment import faulty_environment
from tests.rollouts.environments.conftest import WriteRows, row

__all__ = ["faulty_environment"]


def checked(kind: str, *, timeout_s: float = 30.0) -> CheckReport:
    settings = CheckSettings(items=6, item_timeout=timedelta(seconds=timeout_s))
    return check_environment("faulty", options={"kind": kind}, settings=settings)


@pytest.mark.usefixtures("faulty_environment")
@pytest.mark.parametrize("kind", ["good", "prints", "undecided", "unit"])
def test_a_sound_environment_passes_the_check(kind: str) -> None:
    report = checked(kind)
    assert report.passed, report
    assert (report.items, report.size, report.figures["distinct_prompts"]) == (6, 50, 1.0)
    assert report.figures["correct_demonstrations"] == 1.0 or kind == "undecided"
    assert report.figures.get("demonstrations_reward") == (1.0 if kind == "unit" else None)
    assert report.rewards is (Rewards.UNIT if kind == "unit" else Rewards.BINARY)


@pytest.mark.usefixtures("faulty_environment")
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("hash", "prompt 0: text differs"),
        ("date", "prompt 0: text differs"),
        ("state", "prompt 0: text differs"),
        ("locale", "prompt 0: text differs"),
        ("random", "prompt 0: text differs"),
        ("outside", "prompt(-1) returns a prompt; it must raise NoSuchPrompt"),
        ("any", "is a correct answer to 6 of 6 prompts"),
        ("most", "earns 95% of the full reward, as a mean over 6 prompts"),
    ],
)
def test_a_violated_property_is_reported_with_the_first_prompt(kind: str, fault: str) -> None:
    report = checked(kind)
    assert not report.passed
    [found] = [each.fault for each in report.properties if each.fault]
    assert fault in found


@pytest.mark.usefixtures("faulty_environment")
@pytest.mark.parametrize(
    ("kind", "said", "advice"),
    [
        ("raises", r"prompt\(3\) raised RuntimeError: no such puzzle", "muster env show"),
        ("text", "score.. of an answer to prompt 0 raised ValueError: a zero byte", "muster env score"),
        ("nan", "does not give a Score with a task of 0.0 or 1.0", "muster env score"),
        ("half", r"\(rewards = binary\); a family with partial credit declares rewards=Rewards.UNIT", "env score"),
        ("hangs", "prompt 3 and its scores took more than 4 s", "raise --item-timeout"),
        ("allocates", r"prompt\(3\) raised MemoryError", "raise --memory-mib"),
        ("grows", r"prompt\(3\) raised MemoryError|needs more than 4096 MiB of memory", "raise --memory-mib"),
        ("exits", "the process that made its items ended with 9", "no method of an environment may exit"),
    ],
)
def test_an_environment_that_raises_is_reported_with_the_prompt(kind: str, said: str, advice: str) -> None:
    with pytest.raises(EnvironmentFault, match=said) as raised:
        checked(kind, timeout_s=4.0 if kind == "hangs" else 30.0)
    assert advice in raised.value.hint


@pytest.mark.usefixtures("faulty_environment")
def test_scores_of_wrong_answers_in_the_right_form_are_compared() -> None:
    report = checked("wrong")
    [found] = [each.fault for each in report.properties if each.fault]
    assert "score of the demonstration with a changed letter differs" in found


@pytest.mark.usefixtures("faulty_environment")
@pytest.mark.parametrize("kind", ["talk", "talk-undecided"])
def test_a_sound_dialogue_passes_the_check(kind: str) -> None:
    report = checked(kind)
    assert report.passed, report
    assert [each.name for each in report.properties][-1] == "dialogues are repeatable"
    assert report.figures["correct_demonstrations"] == 1.0 or kind == "talk-undecided"


@pytest.mark.usefixtures("faulty_environment")
@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("talk-hash", "prompt 0: dialogue of the demonstration differs: reply 0"),
        ("talk-date", "prompt 0: dialogue of the demonstration differs: reply 0"),
        ("talk-state", "prompt 0: two plays of the dialogue of the demonstration differ: reply 0"),
        ("talk-random", "prompt 0: two plays of the dialogue of the demonstration differ: reply 0"),
        ("talk-end", "differ: repl"),
    ],
)
def test_a_dialogue_that_differs_is_reported(kind: str, fault: str) -> None:
    faults = [each.fault for each in checked(kind).properties if each.fault]
    assert any(fault in each for each in faults), faults


@pytest.mark.usefixtures("faulty_environment")
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("talk-raises", r"reply\(\) of a dialogue of prompt 0 raised TypeError"),
        ("talk-hangs", "prompt 0 and its scores took more than 4 s"),
        ("talk-floods", r"reply\(\) of a dialogue of prompt 0 has 65 messages; at most 64"),
        ("talk-echoes", r"has \d+ characters; at most 1048576"),
        ("talk-half", "has a message without a role or with a text that can't be encoded"),
        ("talk-system", "has a system message; only the opening can have one"),
        ("talk-name", "has a name that is not 1 to 64 letters"),
        ("talk-schema", "has a description or schema that is no JSON"),
    ],
)
def test_an_episode_that_breaks_the_contract_is_reported(kind: str, said: str) -> None:
    with pytest.raises(EnvironmentFault, match=said):
        checked(kind, timeout_s=4.0 if kind == "talk-hangs" else 30.0)


def search_rows(write_rows: WriteRows) -> dict[str, JsonValue]:
    asked = row({"answers": ["7"]}, task_type="verifiable_search", prompt="Which number is lucky?")
    documents = write_rows([{"title": "Numbers", "text": "The lucky number is 7."}])
    return write_rows([asked]) | {"documents": documents["path"], "documents_sha256": documents["sha256"]}


def math_rows(write_rows: WriteRows) -> dict[str, JsonValue]:
    return write_rows([row({"ground_truth": answer}, prompt=answer) for answer in ("7", "\\frac12", "x+1")])


def code_rows(write_rows: WriteRows) -> dict[str, JsonValue]:
    tests = {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}
    return write_rows([row(tests, task_type="verifiable_code")])


SHIPPED: dict[str, list[tuple[Callable[[WriteRows], dict[str, JsonValue]], int | None]]] = {
    "letters": [
        (lambda _: {}, None),
        (lambda _: {"filler": True}, None),
        (lambda _: {"partial": True}, None),
    ],
    "arithmetic": [
        (lambda _: {}, None),
        (lambda _: {"form": "question", "answer": "last-number", "largest": 9}, None),
    ],
    "lookup": [(lambda _: {}, None)],
    "math": [(math_rows, 3)],
    "python": [(lambda _: {}, None)],
    "search": [(search_rows, 1)],
    "code": [(code_rows, 1)],
    "mixture": [
        (lambda _: {"environments": [{"name": "letters"}, {"name": "lookup"}]}, None),
        (lambda _: {"environments": [{"name": "letters", "options": {"partial": True}}, {"name": "arithmetic"}]}, None),
        (
            lambda write: {
                "environments": [
                    {"name": "math", "options": math_rows(write), "weight": 2},
                    {"name": "code", "options": code_rows(write)},
                ]
            },
            6,
        ),
    ],
    "reasoning-gym": [
        (lambda _: {"dataset": "countdown"}, 2**31 - 1),
        (lambda _: {"dataset": "leg_counting"}, 2**31 - 1),
    ],
}
"""Options of each built-in family, with the number of prompts they give."""

CASES = [
    pytest.param(name, options, size, id=f"{name}-{number}")
    for name, cases in SHIPPED.items()
    for number, (options, size) in enumerate(cases)
]


def test_every_built_in_family_is_checked_here() -> None:
    assert set(SHIPPED) == set(BUILT_IN) - {"served"}, "`served` has no prompts of its own"


@pytest.mark.parametrize(("name", "options", "size"), CASES)
def test_a_built_in_family_passes_the_check(
    name: str, options: Callable[[WriteRows], dict[str, JsonValue]], size: int | None, write_rows: WriteRows
) -> None:
    chosen = options(write_rows)
    items = {"reasoning-gym": 10, "python": 3}.get(name, 60)  # their answers take processes
    report = check_environment(name, options=chosen, settings=CheckSettings(items=items))
    assert report.passed, report
    assert (report.size, report.items) == (size, items if size is None else min(items, size))
    unit = name == "reasoning-gym" or "partial" in str(chosen)
    assert report.rewards is (Rewards.UNIT if unit else Rewards.BINARY)


def test_the_command_prints_the_declared_rewards() -> None:
    shown = run_muster("env", "check", "letters", "-o", "partial=true", "--items", "20")
    assert (shown.code, "rewards\tunit" in shown.out) == (0, True), shown.out
    found = run_muster("env", "check", "letters", "--items", "20", "--json").json()
    assert (found["passed"], found["rewards"]) == (True, "binary")


@pytest.mark.usefixtures("faulty_environment")
def test_the_command_fails_for_a_broken_environment() -> None:
    found = run_muster("env", "check", "faulty", "-o", "kind=any", "--items", "5", "--json")
    assert found.code == 1
    assert not json.loads(found.out)["passed"]


def test_invalid_options_are_refused_before_an_environment_is_made() -> None:
    with pytest.raises((BadOptions, EnvironmentFault), match=r"colour"):
        check_environment("letters", options={"colour": "red"})


def test_a_probe_keeps_a_lower_limit_of_its_machine() -> None:
    """Only root may raise a hard limit, such as one of `ulimit -v`."""
    limit = 1 << 36
    source = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))
from rollouts.environments import check_process
check_process.main()
print(resource.getrlimit(resource.RLIMIT_AS), file=sys.stderr)
"""
    request: dict[str, object] = {"name": "letters", "version": None, "options": {}, "memory_bytes": 1 << 46}
    request |= {"clock_days": 0}
    ran = subprocess.run(
        [sys.executable, "-c", source],
        input=json.dumps(request | {"indices": [0]}),
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stderr.strip() == str((limit, limit))
    assert "rev" in ran.stdout or "sort" in ran.stdout
