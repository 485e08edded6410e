"""Files of a mixture with partial credit: accepted to the last bit, and judged by the environment of each row."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue

from protocol.verdicts import Outcome, ReasonCode
from rollouts.checks import CheckedVersion
from rollouts.environments import load_environment
from rollouts.files.samples import RolloutFile, Sample
from rollouts.recipe import EnvironmentChoice, PromptRange
from tests.kit.rollout_files import RECIPE, as_version, facts_of, make, with_row
from tests.kit.tiny_model import tiny_folder
from tests.validator.examination.conftest import Bench
from validator.audit.rows import LIMITED
from validator.examination import conclusion

OPTIONS: dict[str, JsonValue] = {
    "environments": [
        {"name": "letters", "options": {"partial": True}},
        {"name": "arithmetic", "options": {"digits": 1, "answer": "last-number"}},
    ]
}


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> CheckedVersion:
    """Returns a version whose recipe has a mixture and no length reward."""
    version = load_environment("mixture", options=OPTIONS).version
    choice = EnvironmentChoice(name="mixture", version=version, options=OPTIONS)
    prompts = PromptRange(count=102)  # the slot draws prompts of both, and one answer earns partial credit
    recipe = RECIPE.model_copy(update={"environment": choice, "length": None, "prompts": prompts})
    return as_version(tiny_folder(tmp_path_factory.mktemp("mixed") / "7"), recipe)


@pytest.fixture(scope="module")
def file(mixed: CheckedVersion) -> RolloutFile:
    return make(mixed, facts=facts_of(mixed))


def partial_row(file: RolloutFile) -> int:
    return next(row for row, sample in enumerate(file.samples) if 0 < sample.task_reward < 1)


def claimed(sample: Sample, task: float) -> Sample:
    return replace(sample, task_reward=task, reward=task - sample.length_penalty)


def test_an_honest_file_of_a_mixture_is_accepted_with_figures_by_environment(
    bench: Bench, mixed: CheckedVersion, file: RolloutFile
) -> None:
    bench.version = mixed
    found = bench.conclude(file)
    assert (found.outcome, found.reason) == (Outcome.ACCEPTED, ReasonCode.PASSED), found.words
    assert [row.task for row in found.rows] == [sample.task_reward for sample in file.samples]
    assert partial_row(file) >= 0
    figures = next(check for check in found.checks if check.name == "reward").figures
    tasks: dict[str, list[float]] = {"letters": [], "arithmetic": []}
    for sample in file.samples:
        tasks["arithmetic" if sample.prompt_index % 2 == 1 else "letters"].append(sample.task_reward)
    for name, found_tasks in tasks.items():
        assert figures[f"{name}.mean_task_reward"] == math.fsum(found_tasks) / len(found_tasks)
        assert figures[f"{name}.solved"] == found_tasks.count(1.0) / len(found_tasks)
    assert not any(LIMITED in row.figures for row in found.rows), "neither environment has limits"


FORGERIES: dict[str, tuple[Callable[[float], float], ReasonCode]] = {
    "a little more": (lambda task: task + 1 / 64, ReasonCode.REWARD_DIFFERS),
    "a little less": (lambda task: task / 2, ReasonCode.REWARD_DIFFERS),
    "the last bit": (lambda task: math.nextafter(task, 1.0), ReasonCode.REWARD_DIFFERS),
    "more than everything": (lambda _: 1.5, ReasonCode.BOUNDS_REWARD),
    "less than nothing": (lambda _: -0.25, ReasonCode.BOUNDS_REWARD),
}


@pytest.mark.parametrize(("change", "reason"), FORGERIES.values(), ids=FORGERIES)
def test_partial_credit_must_equal_to_the_last_bit(
    change: Callable[[float], float], reason: ReasonCode, bench: Bench, mixed: CheckedVersion, file: RolloutFile
) -> None:
    bench.version = mixed
    row = partial_row(file)
    sample = file.samples[row]
    found = bench.conclude(with_row(file, row, claimed(sample, change(sample.task_reward))))
    assert (found.outcome, found.reason) == (Outcome.FORGED, reason)


@pytest.mark.parametrize(("programs", "outcome"), [("letters", Outcome.REJECTED), ("arithmetic", Outcome.FORGED)])
def test_scores_by_chance_are_excused_in_the_rows_of_programs_only(
    programs: str,
    outcome: Outcome,
    bench: Bench,
    mixed: CheckedVersion,
    file: RolloutFile,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(conclusion, "PROGRAMS", frozenset({programs}))
    bench.version = mixed
    row = next(row for row, sample in enumerate(file.samples) if sample.prompt_index % 2 != 1)
    found = bench.conclude(with_row(file, row, claimed(file.samples[row], 0.984375)))
    assert (found.outcome, found.reason) == (outcome, ReasonCode.REWARD_DIFFERS)


def test_a_recipe_names_the_whole_version_of_its_parts(tmp_path: Path, mixed: CheckedVersion) -> None:
    assert mixed.recipe.environment.version == mixed.environment.version
    other = EnvironmentChoice(name="mixture", version=mixed.environment.version, options={"environments": []})
    with pytest.raises(Exception, match="at least 1 item"):
        as_version(tiny_folder(tmp_path / "7"), mixed.recipe.model_copy(update={"environment": other}))
