"""The learning loop in one process, and the command that prints it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import JsonValue

from rollouts.environments import load_environment
from rollouts.models.facts import read_model
from rollouts.recipe import EnvironmentChoice, PromptRange, read_recipe
from tests.kit.devnet import run_muster
from tests.kit.dialogues import REPLIES, dialogue_recipe, talking_folder
from tests.kit.tiny_model import tiny_folder
from trainer.errors import BadSettings
from trainer.learning.settings import LearningSettings
from trainer.presets import DEVNET_DIALOGUE, devnet_base
from trainer.trial import Trial, TrialSettings

SMALL = {"steps": 2, "groups_per_step": 4, "evaluation_prompts": 8, "evaluation_samples": 1}


def trial(tmp_path: Path, **changes: object) -> Trial:
    learning = LearningSettings.model_validate({"row_tokens": 128, "optimiser": {"learning_rate": 2e-4}})
    settings = TrialSettings.model_validate(SMALL | {"learning": learning} | changes)
    return Trial(tmp_path, settings, base=devnet_base())


def test_a_trial_learns_the_same_from_the_same_seed(tmp_path: Path) -> None:
    def run(name: str, seed: int) -> list[float]:
        one = trial(tmp_path / name, seed=seed)
        try:
            return [one.step().learned.loss for _ in range(2)]
        finally:
            one.close()

    first = run("first", 1)
    assert run("second", 1) == first
    assert run("third", 2) != first


def test_a_stale_trial_generates_ahead_and_keeps_one_version_on_disk(tmp_path: Path) -> None:
    one = trial(tmp_path, staleness=1)
    done = one.step()
    assert done.generated >= 2
    assert len(done.examples) == 4
    assert 0 <= done.solved <= 1
    one.evaluate()
    assert [path.name for path in tmp_path.glob("version-*")] == ["version-1"]
    one.close()


def test_a_trained_trial_can_be_written_as_a_version(tmp_path: Path) -> None:
    one = trial(tmp_path / "scratch")
    one.step()
    folder = one.write(tmp_path / "version")
    assert read_recipe(folder) == read_recipe(devnet_base())
    assert read_model(folder).parameters == read_model(devnet_base()).parameters
    one.close()


def test_a_trial_trains_on_a_mixture_and_reports_each_environment(tmp_path: Path) -> None:
    options: dict[str, JsonValue] = {
        "environments": [
            {"name": "letters", "options": {"partial": True}},
            {"name": "arithmetic", "options": {"digits": 1, "answer": "last-number"}},
        ]
    }
    version = load_environment("mixture", options=options).version
    recipe = read_recipe(devnet_base()).model_copy(
        update={
            "environment": EnvironmentChoice(name="mixture", version=version, options=options),
            "held_out": 0.2,
            "length": None,
            "prompts": PromptRange(count=200),
        }
    )
    base = tiny_folder(tmp_path / "base")
    settings = TrialSettings.model_validate(
        SMALL | {"groups_per_step": 8, "learning": LearningSettings(row_tokens=256)}
    )
    one = Trial(tmp_path / "scratch", settings, base=base, recipe=recipe)
    try:
        before = one.evaluate()
        steps = [one.step() for _ in range(2)]
    finally:
        one.close()
    for step in steps:
        assert set(step.environments) == {"letters", "arithmetic"}
        answers = sum(each.answers for each in step.environments.values())
        assert answers == step.generated * recipe.group_size
        assert sum(each.reward * each.answers for each in step.environments.values()) / answers == pytest.approx(
            step.reward
        )
        assert sum(each.solved * each.answers for each in step.environments.values()) / answers == pytest.approx(
            step.solved
        )
    assert any(step.environments["letters"].reward > step.environments["letters"].solved for step in steps), "partial"
    assert sum(each.answers for each in before.environments.values()) == before.prompts == 8
    assert sum(each.answers for each in before.sampled_environments.values()) == 8


def test_a_trial_trains_on_dialogues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.trial.load_environment", lambda *_, **__: REPLIES)
    recipe = dialogue_recipe(new_tokens=60).model_copy(update={"held_out": 0.2})
    base = talking_folder(tmp_path / "base")
    settings = TrialSettings.model_validate(SMALL | {"learning": LearningSettings(row_tokens=256)})
    one = Trial(tmp_path / "scratch", settings, base=base, recipe=recipe)
    try:
        steps = [one.step() for _ in range(2)]
        assert one.evaluate().prompts == 8
    finally:
        one.close()
    assert all(step.learned.loss == step.learned.loss for step in steps), "not NaN"
    assert any("\n< (1:" in example.answer for step in steps for example in step.examples)
    short = TrialSettings.model_validate(SMALL | {"learning": LearningSettings(row_tokens=128)})
    with pytest.raises(BadSettings, match="may have 172 tokens"):
        Trial(tmp_path / "short", short, base=base, recipe=recipe)


def test_rows_that_are_too_short_are_refused_before_anything_is_generated(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="rows have 16"):
        trial(tmp_path, learning=LearningSettings(row_tokens=16))
    settings = TrialSettings(learning=LearningSettings(row_tokens=183))
    with pytest.raises(BadSettings, match="prompt and answer may have 184 tokens, and rows have 183"):
        Trial(tmp_path, settings, base=devnet_base(DEVNET_DIALOGUE))


def test_the_command_takes_the_trainers_settings_file(tmp_path: Path) -> None:
    config = tmp_path / "trainer.toml"
    config.write_text(
        '[trainer]\nrun = "main"\nsteps = 9\ngroups_per_step = 4\nevaluation_prompts = 8\n'
        "[trainer.learning.optimiser]\nlearning_rate = 1e-4\nwarm_up_steps = 1\n"
    )
    to = tmp_path / "trained"
    said = run_muster(
        *("trainer", "try", str(devnet_base()), "--config", str(config), "--steps", "1", "--device", "cpu"),
        *("--to", str(to), "--json"),
    )
    assert said.code == 0, said.err
    before, step, after = map(json.loads, said.out.splitlines())
    assert (before["kind"], before["prompts"], after["version"]) == ("evaluation", 8, 1)
    assert step["learned"]["groups"] == 4
    assert step["learned"]["learning_rate"] == 1e-4
    assert set(step["examples"][0]) == {"prompt", "answer", "correct", "finished", "reward", "turns"}
    assert read_recipe(to) == read_recipe(devnet_base())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "digits=1"], "without --environment"),
        (["--environment", "letters", "-o", "nothing=1"], "nothing"),
        (["--to", "/usr"], "/usr exists already"),
        (["--learning-rate", "7"], "learning.optimiser.learning_rate"),
    ],
)
def test_what_can_not_be_tried_is_refused(arguments: list[str], words: str) -> None:
    said = run_muster("trainer", "try", str(devnet_base()), "--device", "cpu", *arguments)
    assert said.code == 1
    assert words in said.err
