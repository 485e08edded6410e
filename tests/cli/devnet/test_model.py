"""Model of a devnet's run: sizes that follow from it, and what is checked before a process starts."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from cli.devnet import model
from cli.devnet.directory import DevnetDirectory, make_base
from cli.devnet.economy import RUN_TERMS, run_terms
from cli.devnet.model import ModelChoices, size_own_model
from cli.devnet.options import RunModel, RunOptions, RunScale
from cli.devnet.settings import ServicePlaces, write_trainer_settings
from protocol.errors import InvalidInput
from protocol.identity.keys import Key
from rollouts.errors import BadVersionFolder
from rollouts.recipe import RECIPE_FILE, read_recipe
from trainer.presets import devnet_base
from trainer.rates import default_learning_rate
from trainer.run.settings import TrainerSettings


def test_a_small_model_keeps_the_default_sizes(tmp_path: Path) -> None:
    sized = size_own_model(ModelChoices(folder=devnet_base()), workers=3, directory=tmp_path)
    default = RunScale()
    assert sized.model == RunModel(folder=devnet_base().absolute())
    assert (sized.scale.groups, sized.scale.relays, sized.scale.lease) == (16, default.relays, default.lease)
    assert sized.scale.learning["optimiser"] == {"learning_rate": 2e-4, "clip": 0.1, "warm_up_steps": 2}
    assert "10 steps of 16 groups" in sized.summary(steps=10)


def test_an_environment_gets_a_recipe_beside_a_copy_of_the_model(tmp_path: Path) -> None:
    choices = ModelChoices(
        folder=devnet_base(), environment="arithmetic", options={"digits": 1}, max_new_tokens=8, group_size=4, groups=3
    )
    sized = size_own_model(choices, workers=1, directory=tmp_path)
    directory = DevnetDirectory(tmp_path)
    base = make_base(directory, sized.model)
    recipe = read_recipe(base)
    assert base == directory.base
    assert (recipe.environment.name, recipe.environment.options) == ("arithmetic", {"digits": 1})
    assert (recipe.group_size, recipe.sampling.max_new_tokens) == (4, 8)
    assert recipe.held_out > 0
    assert sized.scale.groups == 3
    assert sized.scale.learning["row_tokens"] == recipe.max_prompt_tokens + 8
    copied = {path.name for path in base.iterdir()}
    assert copied >= {"model.safetensors", "config.json", "tokenizer.json", RECIPE_FILE}
    assert json.loads((devnet_base() / RECIPE_FILE).read_text())["environment"]["name"] == "letters"


def test_a_kept_base_is_not_copied_again(tmp_path: Path) -> None:
    directory = DevnetDirectory(tmp_path)
    base = make_base(directory, RunModel(folder=devnet_base(), recipe="{}"))
    (base / RECIPE_FILE).write_text("kept")
    make_base(directory, RunModel(folder=devnet_base(), recipe="{}"))
    assert (base / RECIPE_FILE).read_text() == "kept"


@pytest.mark.parametrize(("what", "unit"), [("free_memory", "memory"), ("disk", "disk")])
def test_a_machine_that_is_too_small_is_named_before_the_start(
    what: str, unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if what == "disk":
        usage = shutil.disk_usage("/")
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    else:
        monkeypatch.setattr(model, what, lambda: 1000)
    with pytest.raises(InvalidInput, match=f"GB of {unit}") as refused:
        size_own_model(ModelChoices(folder=devnet_base()), workers=3, directory=tmp_path)
    assert "--workers" in refused.value.hint


@pytest.mark.parametrize(
    ("parameters", "rate"), [(1, 2e-4), (440_000, 2e-4), (134_515_008, 2e-5), (7_000_000_000, 4e-6)]
)
def test_larger_models_learn_at_lower_rates(parameters: int, rate: float) -> None:
    assert default_learning_rate(parameters) == pytest.approx(rate)


def test_terms_allow_for_slow_verdicts_and_long_leases() -> None:
    scale = RunScale(lease=timedelta(seconds=357), judge_period=timedelta(seconds=357))
    terms = run_terms(scale)
    assert (terms.judge_period, terms.notice_period) == (scale.judge_period, scale.lease)
    assert run_terms(RunScale()) == RUN_TERMS


def test_the_trainer_can_read_the_settings_of_a_sized_run(tmp_path: Path) -> None:
    sized = size_own_model(ModelChoices(folder=devnet_base(), groups=4), workers=1, directory=tmp_path)
    run = RunOptions(model=sized.model, scale=sized.scale)
    places = ServicePlaces(
        rpc="http://127.0.0.1:1",
        chain_id=1,
        redis_url_file=tmp_path,
        discovery_port=1,
        discovery_address=Key.generate().address,
        orchestrator_port=2,
        origin_port=3,
        relay_ports=(),
    )
    file = write_trainer_settings(DevnetDirectory(tmp_path), places, run)
    settings = TrainerSettings.load(file=file)
    assert (settings.groups_per_step, settings.start) == (4, devnet_base().absolute())
    assert settings.keep_versions is None


@pytest.mark.parametrize(
    ("change", "words"),
    [({"model_type": "bert"}, "is not supported"), ({"model_type": "nothing"}, "no model can be made from")],
)
def test_an_unsupported_architecture_is_refused_before_the_start(
    change: dict[str, str], words: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(devnet_base(), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(BadVersionFolder, match=words):
        size_own_model(ModelChoices(folder=folder), workers=1, directory=tmp_path)
