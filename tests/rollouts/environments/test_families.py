"""The synthetic families: fixed prompts, fixed scores, and demonstrations with errors."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from rollouts.environments import Environment, load_environment
from rollouts.environments.interface import Prompt
from rollouts.environments.letters import VOCABULARY

LETTERS = load_environment("letters")
FILLED = load_environment("letters", options={"filler": True})
ARITHMETIC = load_environment("arithmetic")
QUESTIONS = load_environment(
    "arithmetic", options={"operations": ["+", "-"], "largest": 12, "form": "question", "answer": "last-number"}
)


@pytest.mark.parametrize(
    ("environment", "index", "text", "answer"),
    [
        (LETTERS, 0, "sort:9694=", "4699"),
        (LETTERS, 1, "rev:znauvt=", "tvuanz"),
        (LETTERS, 2**63 - 1, "rev:hbqqfjs=", "sjfqqbh"),
        (ARITHMETIC, 0, "4*46=", "184"),
        (ARITHMETIC, 1, "972-4=", "968"),
        (ARITHMETIC, 2**63 - 1, "87-70=", "17"),
    ],
)
def test_prompts_of_a_family_version_never_change(environment: Environment, index: int, text: str, answer: str) -> None:
    prompt = environment.prompt(index)
    assert (prompt.text, prompt.data["answer"], prompt.target_length) == (text, answer, None)


def test_letters_has_every_length_of_both_kinds_and_no_others() -> None:
    texts = [LETTERS.prompt(index).text for index in range(2000)]
    shapes = Counter((text.partition(":")[0], len(text.partition(":")[2]) - 1) for text in texts)
    assert set(shapes) == {("rev", 4), ("rev", 5), ("rev", 6), ("rev", 7), ("sort", 4), ("sort", 5), ("sort", 6)}
    assert min(shapes.values()) > 150
    assert set("".join(texts)) <= set(VOCABULARY)


@pytest.mark.parametrize(
    ("completion", "finished", "task"),
    [
        ("tvuanz", True, 1.0),
        ("tvuanz", False, 0.0),
        ("tvuanz ", True, 0.0),
        ("tvuan", True, 0.0),
        ("znauvt", True, 0.0),
        ("", True, 0.0),
        (".tvuanz", True, 0.0),
        ("\uff54vuanz", True, 0.0),
        ("t\u0301vuanz", True, 0.0),
    ],
)
def test_letters_requires_the_exact_answer_followed_by_the_end(completion: str, finished: bool, task: float) -> None:
    assert LETTERS.score(LETTERS.prompt(1), completion, finished=finished).task == task


@pytest.mark.parametrize(
    ("completion", "task", "length"),
    [("tvuanz", 1.0, 0), ("...tvuanz", 1.0, 3), ("...tvuanz.", 0.0, 3), (".......", 0.0, 7), ("tvuanz...", 0.0, 0)],
)
def test_filler_before_the_answer_is_measured_and_not_penalised(completion: str, task: float, length: int) -> None:
    score = FILLED.score(FILLED.prompt(1), completion, finished=True)
    assert (score.task, score.parts["length"]) == (task, length)


def test_the_letters_demonstrations_are_right_in_a_third_of_cases() -> None:
    kinds: Counter[str] = Counter()
    for index in range(3000):
        prompt = LETTERS.prompt(index)
        shown, argument = LETTERS.demonstration(prompt), prompt.data["argument"]
        if (
            len({str(argument), str(argument)[::-1], "".join(sorted(str(argument)))}) == 3
        ):  # otherwise the two cannot be distinguished
            kinds["right" if shown == prompt.data["answer"] else "copied" if shown == argument else "other"] += 1
    total = sum(kinds.values())
    assert {kind: round(count / total, 1) for kind, count in kinds.items()} == {
        "right": 0.3,
        "copied": 0.3,
        "other": 0.3,
    }
    assert kinds["right"] > kinds["copied"] * 0.9


def test_demonstrations_with_filler_show_every_length_up_to_eight() -> None:
    shown = [FILLED.demonstration(FILLED.prompt(index)) or "" for index in range(500)]
    assert {len(text) - len(text.lstrip(".")) for text in shown} == set(range(9))


def test_a_third_of_the_demonstrations_have_the_target_length_and_the_others_any_length() -> None:
    shown = [FILLED.demonstration(replace(FILLED.prompt(index), target_length=5)) or "" for index in range(2000)]
    lengths = Counter(len(text) - len(text.lstrip(".")) for text in shown)
    assert set(lengths) == set(range(9))
    assert 0.34 < lengths[5] / 2000 < 0.48, "34 %, and one in nine of the rest"
    answers = [FILLED.demonstration(FILLED.prompt(index)) or "" for index in range(2000)]
    assert [text.lstrip(".") for text in shown] == [text.lstrip(".") for text in answers]


@pytest.mark.parametrize(
    ("completion", "task"), [("968", 1.0), (" 968\n", 1.0), ("0968", 0.0), ("+968", 0.0), ("968.0", 0.0), ("٩٦٨", 0.0)]
)
def test_arithmetic_accepts_only_the_plain_number(completion: str, task: float) -> None:
    assert ARITHMETIC.score(ARITHMETIC.prompt(1), completion, finished=True).task == task


@pytest.mark.parametrize(
    ("completion", "task"),
    [
        ("-10", 1.0),
        ("The answer is -10.", 1.0),
        ("2 - 12 = -10\n", 1.0),
        ("10", 0.0),
        ("-10 or 10", 0.0),
        ("none", 0.0),
        ("it is \u221210", 1.0),
        ("-10.0", 0.0),
        ("-10.", 1.0),
        ("2-10", 0.0),
        ("2 - 10", 0.0),
        ("3,-10", 1.0),
        ("-1,0", 0.0),
        ("-0,010", 0.0),
        ("1" * 10_000, 0.0),
    ],
)
def test_the_last_number_of_an_answer_counts_if_the_options_say_so(completion: str, task: float) -> None:
    prompt = Prompt(index=0, text="What is 2 - 12?", data={"answer": "-10"})
    assert [QUESTIONS.score(prompt, completion, finished=ended).task for ended in (True, False)] == [task, task]


def test_questions_have_numbers_up_to_the_largest() -> None:
    prompts = [QUESTIONS.prompt(index) for index in range(500)]
    numbers = [int(number) for prompt in prompts for number in re.findall("[0-9]+", prompt.text)]
    assert (min(numbers), max(numbers)) == (0, 12)
    assert {prompt.text.split()[3] for prompt in prompts} == {"+", "-"}
    assert all(prompt.text.startswith("What is ") and prompt.text.endswith("?") for prompt in prompts)


@pytest.mark.parametrize("environment", [ARITHMETIC, QUESTIONS])
def test_the_teacher_of_arithmetic_is_right(environment: Environment) -> None:
    for index in range(100):
        prompt = environment.prompt(index)
        shown = environment.demonstration(prompt)
        assert shown is not None
        assert environment.score(prompt, shown, finished=True).task == 1.0
