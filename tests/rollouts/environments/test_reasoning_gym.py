"""`reasoning-gym`: every dataset loads and scores, and no answer can write its own score."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path

import pytest
from pydantic import JsonValue

from protocol.runtime.extras import MissingExtra
from rollouts.environments import Environment, Prompt, Rewards, Score, load_environment
from rollouts.environments.check import CheckSettings, check_environment
from rollouts.environments.errors import BadOptions, NoSuchPrompt, UnknownEnvironmentVersion
from rollouts.environments.gym import datasets, environment
from rollouts.environments.gym.answers import AnswerPlace, is_admissible
from rollouts.environments.gym.datasets import NAMES, REFUSED
from rollouts.sandbox import (
    Isolation,
    Job,
    JobKind,
    JobOutcome,
    Preparation,
    PreparationFailed,
    Sandboxes,
    SandboxSettings,
    SandboxUnavailable,
)
from rollouts.sandbox.control import ObjectPrepared
from rollouts.sandbox.process import Sandbox

pytestmark = pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed")

DOCUMENT = Path(__file__).parents[3] / "docs" / "reasoning-gym.md"
WITHOUT_ANSWER = {"boxnet", "rush_hour"}
EVALUATED_DATASETS = [
    "binary_matrix",
    "countdown",
    "intermediate_integration",
    "n_queens",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
    "spiral_matrix",
    "string_insertion",
]
"""Datasets whose scorers run the answer as code."""


@pytest.fixture(scope="module")
def one_sandbox() -> Iterator[Sandboxes]:
    """Returns one sandbox that all datasets share, so that it makes and forgets them."""
    found = Sandboxes(SandboxSettings(most=1))
    yield found
    found.close()


def load(sandboxes: Sandboxes, dataset: str, **options: JsonValue) -> Environment:
    return load_environment("reasoning-gym", options={"dataset": dataset, **options}, sandboxes=sandboxes)


def tagged(answer: str) -> str:
    return AnswerPlace.TAGS.demonstrate(answer)


def score(environment: Environment, answer: str, *, index: int = 0) -> Score:
    return environment.score(environment.prompt(index), tagged(answer), finished=True)


@pytest.mark.parametrize("dataset", NAMES)
def test_every_dataset_makes_a_prompt_and_gives_its_own_answer_the_full_reward(
    one_sandbox: Sandboxes, dataset: str
) -> None:
    made = load(one_sandbox, dataset)
    prompt = made.prompt(0)
    assert prompt.text.endswith("Give your final answer between <answer> and </answer>.")
    demonstration = made.demonstration(prompt)
    assert (demonstration is None) == (dataset in WITHOUT_ANSWER)
    if demonstration is not None:
        assert made.score(prompt, demonstration, finished=True).task == 1.0
        assert made.score(prompt, demonstration, finished=False).task == 0.0
    else:
        assert 0 <= score(made, "[]").task < 1


def test_names_and_refusals_are_those_of_the_package_and_of_the_documentation() -> None:
    source = (
        "from rollouts.sandbox.inside.gym import dataset; import time; print(*sorted(dataset.DATASETS), time.time())"
    )
    told = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout.split()
    assert sorted({*NAMES, *REFUSED}) == told[:-1]
    assert float(told[-1]) == 1767225600  # the clock stands still
    assert not set(NAMES) & set(REFUSED)
    assert len(NAMES) == 102
    table = DOCUMENT.read_text().partition("## Datasets")[2]
    documented = re.findall(r"^\| `(\w+)` \| (\w+)", table, re.MULTILINE)
    assert dict(documented).keys() == {*NAMES, *REFUSED} - {"composite"}
    assert {name for name, reward in documented if reward == "refused"} == set(REFUSED) - {"composite"}


HOSTILE = [
    "__import__('os')._exit(0)",
    """open(3, "w").write('{"score": 1.0}')""",
    "exec('import os')",
    "(lambda: 24)()",
    "[c for c in ().__class__.__base__.__subclasses__()]",
    "x.__class__",
    "1..real",
    "S('1')",
    'S("x")',
    "breakpoint()",
    "1 if x else 2",
    "9**9**9**9**9**9 # " + "9" * 2000,
    "f'{x}'",
    "\uff11+\uff12",
    "x\u200b+1",
    "integrate(x)",
    "Q.is_true",
    "import os",
    "x = 1",
    "x; y",
    "\\",
    "`1`",
    "_\x00",
]


@pytest.mark.parametrize("dataset", EVALUATED_DATASETS)
def test_a_scorer_that_runs_the_answer_never_sees_code(one_sandbox: Sandboxes, dataset: str) -> None:
    assert [answer for answer in HOSTILE if is_admissible(dataset, answer, expected="1")] == []
    found = score(load(one_sandbox, dataset), HOSTILE[1])
    assert found.task == 0.0
    assert found.parts["admissible"] == 0.0


@pytest.mark.parametrize(
    ("dataset", "answer"),
    [
        ("binary_matrix", "0 1 0\n1 2 1"),
        ("binary_matrix", "[[0, 1], [-1, 2]]"),
        ("n_queens", "_ Q _ _\n_ _ _ Q"),
        ("n_queens", "[['_', 'Q'], [\"Q\", '_']]"),
        ("string_insertion", "AABCD"),
        ("string_insertion", "['A', 'B']"),
        ("coin_flip", "3/8"),
        ("coin_flip", "0.375"),
        ("complex_arithmetic", "(3.5 - 2i)"),
        ("countdown", "(12 + 3)*4 - 100/5"),
        ("puzzle24", "(1+2+3)*4"),
        ("simple_integration", "3*x**2/2 - 7.5*x + C"),
        ("intermediate_integration", "exp(2*x)*sin(x)/4 + log(x) - sqrt(x) + asin(x)"),
        ("polynomial_multiplication", "12*x**3*y - 4*z"),
    ],
)
def test_right_answers_reach_the_scorers_that_run_them(dataset: str, answer: str) -> None:
    assert is_admissible(dataset, answer, expected=None)


@pytest.mark.parametrize("answer", ["9" * 13, "2**9", "1+" * 250])
def test_arithmetic_answers_are_bounded(answer: str) -> None:
    assert not is_admissible("countdown", answer, expected="1")


@pytest.mark.parametrize(
    ("dataset", "answer"),
    [
        ("prime_factorization", "no number"),  # the scorer raises
        ("prime_factorization", "9" * 5000),
        ("chain_sum", "a" * 100_000),
        ("codeio", '{"a":' * 3000),
        ("rearc", "(" * 5000),
        ("cryptarithm", "\x00\u202e\U0001f9ea=\ud7ff"),
        ("dice", "1/0"),
        ("polynomial_equations", "nan"),
        ("decimal_arithmetic", "1e999999999"),
        ("n_queens", "[" * 9000),
    ],
)
def test_odd_answers_score_nothing_and_raise_nothing(one_sandbox: Sandboxes, dataset: str, answer: str) -> None:
    found = score(load(one_sandbox, dataset), answer)
    assert found.task < 0.05
    assert found.parts["undecided"] == 0.0


@pytest.mark.parametrize(
    ("dataset", "answer"),
    [
        ("complex_arithmetic", "nan"),
        ("complex_arithmetic", "nan+nanj"),
        ("coin_flip", "0"),
        ("coin_flip", "0."),
        ("coin_flip", "1e9999999999"),
        ("intermediate_integration", "Integral(x**2*cos(x), x)"),
        ("puzzle24", "1*2*3*4"),
    ],
)
def test_answers_that_the_library_rewards_without_work_earn_nothing(
    one_sandbox: Sandboxes, dataset: str, answer: str
) -> None:
    made = load(one_sandbox, dataset)
    assert sum(score(made, answer, index=index).task for index in range(4)) < 0.1


def test_a_list_of_no_numbers_is_not_sorted(one_sandbox: Sandboxes) -> None:
    made = load(one_sandbox, "number_sorting")
    right = made.demonstration(made.prompt(0))
    assert right is not None
    for wrong in ("NaN", "'nan'"):
        answer = ", ".join([wrong] * (right.count(",") + 1))
        assert score(made, f"[{answer}]").task == 0.0


def test_a_puzzle_is_solved_exactly_and_with_its_own_numbers(one_sandbox: Sandboxes) -> None:
    made = load(one_sandbox, "puzzle24", config={"min_value": 6, "max_value": 6})  # 6 + 6 + 6 + 6
    assert score(made, "6*6 - 6 - 6").task == 1.0
    assert score(made, "24 + 6*6*6").task == 0.0
    assert score(made, "6+6+6+6+0").task == 0.0


def test_a_long_right_matrix_is_admissible(one_sandbox: Sandboxes) -> None:
    made = load(one_sandbox, "binary_matrix", config={"min_n": 80, "max_n": 80})
    right = made.demonstration(made.prompt(0))
    assert right is not None
    assert made.score(made.prompt(0), right, finished=True).task == 1.0


def test_a_dataset_that_can_not_be_made_again_is_this_machines_fault(
    one_sandbox: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = load(one_sandbox, "gcd")
    prompt = made.prompt(0)

    def fail(_kind: JobKind, _job: Job) -> JobOutcome:
        raise PreparationFailed("it needs more than 4096 MiB of memory")

    monkeypatch.setattr(one_sandbox, "run", fail)
    with pytest.raises(SandboxUnavailable, match="made before"):
        made.score(prompt, tagged("1"), finished=True)
    with pytest.raises(SandboxUnavailable, match="made before"):
        made.prompt(1)


def test_an_endless_expression_ends_at_the_limit_and_is_undecided(
    one_sandbox: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = load(one_sandbox, "simple_integration")
    monkeypatch.setattr(environment, "LIMITS", replace(environment.LIMITS, cpu=timedelta(seconds=1)))
    began = time.monotonic()
    found = score(made, "9**9**9**9")
    assert (found.task, found.parts["undecided"]) in {
        (0.0, 1.0),
        (0.0, 0.0),
    }  # or the scorer catches the lack of memory
    assert time.monotonic() - began < 60
    right = made.demonstration(made.prompt(0))
    assert right is not None
    assert made.score(made.prompt(0), right, finished=True).task == 1.0


def test_very_long_answers_are_refused_unless_the_right_one_is_long() -> None:
    assert is_admissible("tower_of_hanoi", "a" * 10_000, expected="b")
    assert not is_admissible("tower_of_hanoi", "a" * 10_001, expected="b")
    assert is_admissible("tower_of_hanoi", "a" * 40_000, expected="b" * 10_000)


def test_prompts_and_scores_are_equal_in_another_sandbox_and_order(one_sandbox: Sandboxes) -> None:
    """The datasets depend on hash seed, clock or global random numbers, unless the sandbox fixes them."""
    chosen = (
        "isomorphic_strings", "list_functions", "polynomial_multiplication", "pool_matrix", "ransom_note",
        "time_intervals", "word_ladder",
    )  # fmt: skip
    other = Sandboxes(SandboxSettings(most=1, isolation=Isolation.PROCESS))
    try:
        for name in chosen:
            first, second = load(one_sandbox, name, seed=5), load(other, name, seed=5)
            assert first.version == second.version
            forward = [first.prompt(index) for index in range(4)]
            backward = [second.prompt(index) for index in reversed(range(4))]
            assert forward == backward[::-1]
            right = [first.demonstration(prompt) or "" for prompt in forward]
            wrong = [tagged(""), tagged("0"), right[1], right[0][: -len("</answer>") - 1] + "1</answer>"]
            for prompt, answer in [*zip(forward, right, strict=True), *((forward[0], answer) for answer in wrong)]:
                assert first.score(prompt, answer, finished=True) == second.score(prompt, answer, finished=True)
    finally:
        other.close()


def test_configurations_of_one_dataset_do_not_mix_in_a_sandbox(one_sandbox: Sandboxes) -> None:
    """`codeio` keeps its rows in its class."""
    easy, any_ = load(one_sandbox, "codeio", config={"difficulty": 9}), load(one_sandbox, "codeio")
    seen = (easy.prompt(3), any_.prompt(3))
    again = load(one_sandbox, "codeio", config={"difficulty": 9}), load(one_sandbox, "codeio")
    assert (again[0].prompt(3), again[1].prompt(3)) == seen
    assert seen[0] != seen[1]
    assert environment.prepared(environment.GymOptions(dataset="codeio")).group == "codeio"


def test_configurations_of_other_datasets_stay_prepared(
    one_sandbox: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[JsonValue] = [
        {"name": "reasoning-gym", "options": {"dataset": "gcd", "seed": seed}} for seed in (41, 42, 43)
    ]
    made: list[str] = []
    make = Sandbox._make

    def counted(sandbox: Sandbox, wanted: Preparation, *, forget: Sequence[str]) -> ObjectPrepared:
        made.append(wanted.key)
        return make(sandbox, wanted, forget=forget)

    monkeypatch.setattr(Sandbox, "_make", counted)
    mixture = load_environment("mixture", options={"environments": parts}, sandboxes=one_sandbox)
    texts = [mixture.prompt(index).text for index in range(9)]
    assert len(made) == len(set(made)) == 3
    assert texts[1] == texts[3], "neighbouring seeds share prompts"


def test_a_configuration_that_needs_too_much_memory_is_refused(one_sandbox: Sandboxes) -> None:
    with pytest.raises(BadOptions, match="count_primes can't be made: it needs more than 512 MiB of memory") as refused:
        load(one_sandbox, "count_primes", config={"max_n": 100_000_000})
    assert refused.value.hint == "choose options that make it smaller"


@pytest.mark.parametrize("dataset", ["list_functions", "ransom_note"])
def test_the_family_passes_the_check_of_environments(dataset: str) -> None:
    """The first draws from Python's global random numbers, the second depends on the hash seed."""
    options: dict[str, JsonValue] = {"dataset": dataset, "answer": "whole", "instruct": False}
    report = check_environment("reasoning-gym", options=options, settings=CheckSettings(items=8))
    assert report.passed, report
    assert report.figures["correct_demonstrations"] == 1.0


def test_options_change_prompts_and_version(one_sandbox: Sandboxes) -> None:
    plain = load(one_sandbox, "chain_sum")
    assert re.fullmatch(r"1\+rg0\.1\.25\.py3\.\d+\.sp[\d.]+\.np[\d.]+\.mp[\d.]+\.[0-9a-f]{16}", plain.version)
    assert len(plain.version) <= 64
    config: JsonValue = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    others = [load(one_sandbox, "chain_sum", seed=9), load(one_sandbox, "chain_sum", config=config)]
    assert len({plain.version, *(each.version for each in others)}) == 3
    assert len({plain.prompt(0).text, *(each.prompt(0).text for each in others)}) == 3
    bare = load(one_sandbox, "chain_sum", instruct=False)
    assert plain.prompt(0).text.startswith(bare.prompt(0).text + "\n\n")


def test_cached_prompts_have_a_common_limit_of_bytes(one_sandbox: Sandboxes, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make = environment.Gym._make

    def counted(gym: environment.Gym, index: int) -> Prompt:
        made.append(index)
        return make(gym, index)

    monkeypatch.setattr(environment.Gym, "_make", counted)
    monkeypatch.setattr(environment, "_CACHE_BYTES", 6_000)
    short = load(one_sandbox, "gcd")
    for _ in range(3):
        assert [short.prompt(index).index for index in (0, 1)] == [0, 1]
    assert made == [0, 1]
    long = load(one_sandbox, "gcd", config={"min_numbers": 1000, "max_numbers": 1000})
    assert [long.prompt(0).index for _ in range(2)] == [0, 0]
    assert made == [0, 1, 0, 0, 0], "a prompt larger than the limit is not kept"


def test_sizes_bound_the_indices(one_sandbox: Sandboxes) -> None:
    assert load(one_sandbox, "chain_sum").size() == 2**31 - 1
    small = load(one_sandbox, "list_functions")
    assert small.size() == 10_000
    assert small.prompt(9_999).text
    with pytest.raises(NoSuchPrompt):
        small.prompt(10_000)


def test_partial_scores_become_rewards_as_the_options_say(one_sandbox: Sandboxes) -> None:
    def rewards(**options: JsonValue) -> list[float]:
        made = load(one_sandbox, "spiral_matrix", **options)
        right = str(made.prompt(0).data["answer"])
        as_list = "[" + ", ".join(right.split()) + "]"  # earns a tenth
        return [score(made, answer).task for answer in (right, as_list, "7")]

    assert rewards() == [1.0, 0.1, 0.0]
    assert rewards(solved_at=0.1) == [1.0, 1.0, 0.0]
    assert rewards(partial=False) == [1.0, 0.0, 0.0]
    assert rewards(partial=False, solved_at=0.05) == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("dataset", "index", "answer"),
    [("complex_arithmetic", 0, "47.5 + 35i"), ("complex_arithmetic", 0, "1+2i"), ("polynomial_equations", 2, "1.7")],
)
def test_scores_are_rounded_because_exponentials_differ_between_machines(
    one_sandbox: Sandboxes, dataset: str, index: int, answer: str
) -> None:
    found = score(load(one_sandbox, dataset), answer, index=index)
    assert found.task == found.parts["score"] == round(found.task, 6)
    assert found.task < 1


def test_rewards_are_declared_by_the_options() -> None:
    declared = environment.family.rewards
    assert callable(declared)
    assert declared(environment.GymOptions(dataset="maze")) is Rewards.UNIT
    assert declared(environment.GymOptions(dataset="maze", partial=False)) is Rewards.BINARY


@pytest.mark.parametrize(
    ("place", "completion", "answer"),
    [
        ("tags", "so <answer> 7 </answer>", "7"),
        ("tags", "<answer>1</answer> no: <answer>2</answer>.", "2"),
        ("tags", "<answer>a\nb</answer>", "a\nb"),
        ("tags", "<answer>1<answer>2</answer>", "2"),
        ("tags", "<answer>1</answer></answer>", "1"),
        ("tags", "<answer>1</answer> <answer>2", "1"),
        ("tags", "7", None),
        ("tags", "</answer>7<answer>", None),
        ("tags", "<answer> </answer>", ""),
        ("tags", "<answer>" * 50_000, None),
        ("last-line", "first\n 7 \n\n", "7"),
        ("last-line", " \n", None),
        ("whole", " 7\n8 ", "7\n8"),
        ("whole", "", None),
    ],
)
def test_the_answer_is_found_where_the_option_says(place: str, completion: str, answer: str | None) -> None:
    assert AnswerPlace(place).extract(completion) == answer


@pytest.mark.parametrize("place", list(AnswerPlace))
def test_demonstrations_have_their_answer_in_that_place(one_sandbox: Sandboxes, place: AnswerPlace) -> None:
    made = load(one_sandbox, "gcd", answer=place.value)
    prompt = made.prompt(1)
    answer = made.demonstration(prompt)
    assert answer is not None
    assert made.score(prompt, answer, finished=True).task == 1.0
    assert prompt.text.endswith(place.instruction)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "chain_sums"}, "no dataset 'chain_sums'"),
        ({"dataset": ""}, "no dataset ''"),
        ({"dataset": "acre"}, "differ between two runs"),
        ({"dataset": "knight_swap"}, "differ between two runs"),
        ({"dataset": "game_of_life_halting"}, "any answer that is not empty"),
        ({"dataset": "composite"}, "a recipe names one"),
        ({"dataset": "gcd", "config": {"digits": 3}}, "unexpected keyword argument 'digits'"),
        ({"dataset": "gcd", "config": {"min_value": -4}}, "min_value must be positive"),
        ({"dataset": "gcd", "config": {"min_value": "a"}}, "TypeError"),
        ({"dataset": "gcd", "config": {"seed": 1}}, "seed can't be set there"),
        ({"dataset": "spell_backward", "config": {"data_file": "/etc/passwd"}}, "'/etc/passwd' is not allowed"),
        ({"dataset": "spell_backward", "config": {"data_file": "..secret"}}, "is not allowed"),
        ({"dataset": "polynomial_multiplication", "config": {"variables": ["f(3)"]}}, r"'f\(3\)' is not allowed"),
        ({"dataset": "gcd", "config": {"x": "a" * 9000}}, "more than 8192 characters"),
        ({"dataset": "gcd", "seed": 2**31}, "seed"),
        ({"dataset": "gcd", "solved_at": 0}, "solved_at"),
        ({"dataset": "gcd", "answer": "box"}, "answer"),
        ({}, "dataset: Field required"),
    ],
)
def test_wrong_options_are_refused_by_name(one_sandbox: Sandboxes, options: dict[str, JsonValue], message: str) -> None:
    with pytest.raises(BadOptions, match=message):
        load_environment("reasoning-gym", options=options, sandboxes=one_sandbox)


def test_an_unknown_dataset_suggests_similar_names() -> None:
    with pytest.raises(BadOptions) as refused:
        datasets.check_name("sudokus")
    assert refused.value.hint == "did you mean sudoku or mini_sudoku?"


def test_another_version_of_the_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets, "version", lambda package: "0.1.24")
    with pytest.raises(UnknownEnvironmentVersion, match=r"needs reasoning-gym 0\.1\.25, but 0\.1\.24 is installed"):
        datasets.installed_version()


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(datasets, "version", absent)
    with pytest.raises(MissingExtra) as refused:
        load_environment("reasoning-gym", options={"dataset": "gcd"})
    assert "[reasoning-gym]" in refused.value.hint
