"""The devnet's base is a complete version for publication, with the accuracy of its warm-up."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.trainer.work import EvaluationChoices, run_evaluation
from protocol.errors import NotFound
from rollouts.environments import is_held_out, load_environment
from rollouts.models.facts import read_model
from rollouts.recipe import eligible_prompts, read_recipe
from trainer.presets import DEVNET, DEVNET_DIALOGUE, DEVNET_LENGTH, devnet_base, preset_file, preset_names
from trainer.sft.preparing import environment_of, recipe_of
from trainer.sft.settings import FolderStart, check_settings, read_settings_file

BASES = [DEVNET, DEVNET_LENGTH, DEVNET_DIALOGUE]


@pytest.mark.parametrize("name", BASES)
def test_a_shipped_base_is_small_and_complete(name: str) -> None:
    facts = read_model(devnet_base(name))
    assert facts.parameters == 443_008
    assert {tensor.dtype for tensor in facts.tensors.values()} == {"F32"}
    assert (facts.vocabulary, facts.hidden) == (64, 128)
    assert sum(path.stat().st_size for path in devnet_base(name).iterdir()) < 2_000_000


def test_an_unknown_base_is_refused_with_the_shipped_ones() -> None:
    with pytest.raises(NotFound, match="no base 'devnet-huge'") as refused:
        devnet_base("devnet-huge")
    assert refused.value.hint == "one of: devnet, devnet-dialogue, devnet-length"


@pytest.mark.parametrize("name", BASES)
def test_no_prompt_in_a_shipped_bases_table_is_held_out(name: str) -> None:
    recipe = read_recipe(devnet_base(name))
    environment = load_environment(recipe.environment.name, version=recipe.environment.version)
    eligible = eligible_prompts(devnet_base(name), recipe)
    assert recipe.held_out == 0.1
    assert len(eligible) > 5_000
    assert not any(is_held_out(environment.prompt(index), recipe.held_out) for index in eligible[::7])


def test_the_devnet_base_solves_about_a_third_of_unseen_prompts() -> None:
    choices = EvaluationChoices(prompts=256, samples=4, held_out=None, engine="torch", dtype="float32", device=None)
    found = run_evaluation(devnet_base(), choices)
    assert 0.30 <= found.greedy <= 0.50
    assert found.pass_at[1] < found.greedy + 0.05 < found.pass_at[4] + 0.10, "the samples differ"


def test_the_length_base_meets_a_target_length_occasionally() -> None:
    choices = EvaluationChoices(prompts=128, samples=4, held_out=None, engine="torch", dtype="float32", device=None)
    found = run_evaluation(devnet_base(DEVNET_LENGTH), choices)
    assert found.distance is not None
    assert list(found.lengths) == [1, 3, 5, 7]
    assert 0.30 <= found.greedy <= 0.55
    assert 1.6 <= found.distance <= 2.4, "without regard to the target it would be 2.8"
    assert found.lengths[7] - found.lengths[1] > 1.0


def test_the_dialogue_base_draws_right_dialogues_but_prefers_wrong_ones() -> None:
    choices = EvaluationChoices(prompts=64, samples=8, held_out=None, engine="torch", dtype="float32", device=None)
    found = run_evaluation(devnet_base(DEVNET_DIALOGUE), choices)
    assert found.greedy <= 0.4
    assert 0.3 <= found.pass_at[1] <= 0.45
    assert found.pass_at[8] >= 0.85
    assert found.greedy_finished == 1.0
    assert all(one.turns == 3 for one in found.examples), "the most likely dialogues call the tool twice"


@pytest.mark.parametrize("name", BASES)
def test_a_base_has_the_recipe_of_its_preset(name: str) -> None:
    settings = check_settings(read_settings_file(preset_file(name)), source=name)
    wanted, _ = recipe_of(settings.recipe, environment_of(settings.recipe))
    assert read_recipe(devnet_base(name)) == wanted
    assert wanted is not None
    assert wanted.arithmetic == ("torch/float32", "vllm/float32")


def test_every_preset_is_a_valid_warm_up() -> None:
    for name in preset_names():
        path: Path = preset_file(name)
        settings = check_settings(read_settings_file(path), source=name)
        assert settings.recipe is not None
        if isinstance(settings.start, FolderStart):
            assert (path.parent / settings.start.folder).is_dir()
