"""Model of a devnet's run: sizes that follow from it, and what is checked before a process starts."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import JsonValue

from cli.devnet import model
from cli.devnet.base import make_base
from cli.devnet.directory import DevnetDirectory
from cli.devnet.economy import RUN_TERMS, run_terms
from cli.devnet.model import ModelChoices, Network, size_own_model, size_smollm2
from cli.devnet.options import RunModel, RunOptions, RunScale
from cli.devnet.services import relay_spec, trainer_spec, validator_spec
from cli.devnet.settings import (
    CLOCKS_DIFFER,
    ROOT,
    ServicePlaces,
    write_trainer_settings,
    write_validator_settings,
    write_worker_settings,
)
from cli.devnet.tasks import rollouts_task
from protocol.errors import InvalidInput
from protocol.identity.keys import Key
from protocol.wire.nodes import RuntimeKind
from rollouts.authoring.recipe_proposal import RecipeChoices, propose_recipe
from rollouts.environments import load_environment
from rollouts.errors import BadVersionFolder
from rollouts.precision import EngineName
from rollouts.recipe import RECIPE_FILE, read_recipe, write_recipe
from tests.kit.tiny_model import rewrite_json, tiny_folder
from trainer.presets import devnet_base
from trainer.rates import default_learning_rate
from trainer.run.settings import TrainerSettings
from validator.settings import ValidatorSettings
from worker.settings import WorkerSettings


def test_a_small_model_keeps_the_default_sizes(tmp_path: Path) -> None:
    sized = size_own_model(ModelChoices(folder=devnet_base()), Network(directory=tmp_path, workers=3))
    default = RunScale()
    assert sized.model == RunModel(folder=devnet_base().absolute())
    assert (sized.scale.groups, sized.scale.relays, sized.scale.lease) == (16, default.relays, default.lease)
    assert sized.scale.learning["optimiser"] == {"learning_rate": 2e-4, "clip": 0.1, "warm_up_steps": 2}
    assert "10 steps of 16 groups take" in sized.summary(steps=10)
    assert "1 step of 16 groups take" in sized.summary(steps=1)


def test_an_environment_gets_a_recipe_beside_a_copy_of_the_model(tmp_path: Path) -> None:
    choices = ModelChoices(
        folder=devnet_base(), environment="arithmetic", options={"digits": 1}, max_new_tokens=8, group_size=4, groups=3
    )
    sized = size_own_model(choices, Network(directory=tmp_path, workers=1))
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


def a_dataset(folder: Path) -> dict[str, JsonValue]:
    """Writes a data set of one-digit sums to a folder; returns its options, with a relative path."""
    folder.mkdir()
    file = folder / "sums.jsonl"
    row = {"problem_id": "one", "task_type": "verifiable_math"}
    rows = [row | {"prompt": f"{one}+1=", "verification_info": {"ground_truth": str(one + 1)}} for one in range(9)]
    file.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return {"path": "../data/sums.jsonl", "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}


@pytest.mark.parametrize("own_recipe", [False, True], ids=["by options", "in the folder's recipe"])
@pytest.mark.parametrize("mixture", [False, True], ids=["math", "mixture"])
def test_a_data_set_outside_of_muster_is_named_by_its_absolute_path_and_readable_for_tasks(
    own_recipe: bool, mixture: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, dataset = a_dataset(tmp_path / "data"), tmp_path / "data" / "sums.jsonl"
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    folder = shutil.copytree(devnet_base(), tmp_path / "model")
    name = "mixture" if mixture else "math"
    if mixture:
        options = {"environments": [{"name": "math", "options": options}, {"name": "letters", "weight": 2}]}
    choices = ModelChoices(folder=folder, environment=name, options=options, max_new_tokens=8)
    if own_recipe:
        proposed = propose_recipe(folder, RecipeChoices(environment=name, options=options, held_out=0.5))
        write_recipe(folder, proposed.recipe)
        choices = ModelChoices(folder=folder)
    sized = size_own_model(choices, Network(directory=tmp_path, workers=1))
    assert sized.model.datasets == (dataset,)
    directory = DevnetDirectory(tmp_path / "net")
    directory.path.mkdir()
    recipe = read_recipe(make_base(directory, sized.model))
    assert str(dataset) in json.dumps(recipe.environment.options)
    monkeypatch.chdir("/")
    chosen = recipe.environment
    load_environment(chosen.name, version=chosen.version, options=chosen.options)
    run = RunOptions(model=sized.model, scale=sized.scale)
    for runtime, readable in ((RuntimeKind.PROCESS, (ROOT, dataset)), (RuntimeKind.DOCKER, (dataset,))):
        file = write_worker_settings(directory, some_places(tmp_path), "one", runtime, run)
        assert WorkerSettings.load(file=file).readable == readable


def test_a_data_set_that_tasks_may_not_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = a_dataset(tmp_path / "data") | {"path": str(tmp_path / "data" / "sums.jsonl")}
    (tmp_path / "data" / "sums.jsonl").chmod(0o600)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    choices = ModelChoices(folder=devnet_base(), environment="math", options=options, max_new_tokens=8)
    with pytest.raises(InvalidInput, match="run as another user") as refused:
        size_own_model(choices, Network(directory=tmp_path, workers=1))
    assert "chmod a+r" in refused.value.hint


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
        size_own_model(ModelChoices(folder=devnet_base()), Network(directory=tmp_path, workers=3))
    assert "--workers" in refused.value.hint


def a_folder(tmp_path: Path) -> Path:
    """Returns a model with 5 M random weights, which is sized like larger ones, and a recipe."""
    folder = tiny_folder(tmp_path / "model", kind="llama", hidden_size=448, intermediate_size=896, num_hidden_layers=3)
    shutil.copyfile(devnet_base() / RECIPE_FILE, folder / RECIPE_FILE)
    rewrite_json(folder / RECIPE_FILE, prompts={"kind": "range", "first": 0, "count": 500})
    return folder


def test_a_larger_models_versions_are_shared_and_its_leases_are_shorter_than_its_verdicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "_core_throughput", lambda: 50e9)  # the estimate of disk depends on the steps' duration
    choices = ModelChoices(folder=a_folder(tmp_path))
    sized = size_own_model(choices, Network(directory=tmp_path, workers=2, steps=4))
    assert (sized.scale.share_versions, sized.scale.keep_versions, sized.scale.relays) == (True, 2, 1)
    assert sized.scale.lease <= sized.scale.judge_period
    version = 4 * sized.parameters
    assert 10 * version < sized.disk < 20 * version
    more = size_own_model(choices, Network(directory=tmp_path, workers=4, validators=3, steps=4))
    assert more.disk == sized.disk + 4 * version
    assert more.memory >= sized.memory + 4 * version
    task = rollouts_task(RuntimeKind.PROCESS, EngineName.TORCH, sized.scale)
    assert task.command[-2:] == ("--keep-versions", "1")


@pytest.mark.parametrize("larger", [False, True], ids=["small model", "larger model"])
def test_validator_and_trainer_of_a_larger_model_hold_less_memory(larger: bool, tmp_path: Path) -> None:
    choices = ModelChoices(folder=a_folder(tmp_path) if larger else devnet_base())
    sized = size_own_model(choices, Network(directory=tmp_path, workers=2))
    url = tmp_path / "redis.url"
    url.write_text("redis://127.0.0.1:1/0\n")
    directory, places = DevnetDirectory(tmp_path), replace(some_places(url), validator_ports=(3,))
    validator = ValidatorSettings.load(file=write_validator_settings(directory, places, 1, sized.scale))
    assert validator.policy_memory_bytes == (2 * 4 * sized.parameters if larger else None)
    trainer = trainer_spec(directory, places, RunOptions(model=sized.model, scale=sized.scale))
    judge = validator_spec(directory, places, 1, sized.scale)
    for service in (trainer, judge):
        assert ("MALLOC_MMAP_THRESHOLD_" in service.environment) == larger


def test_the_chat_models_run_has_large_groups_of_short_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tiny_folder(tmp_path / "model", kind="llama")
    monkeypatch.setattr(model, "smollm2_folder", lambda _: folder)
    sized = size_smollm2(Network(directory=tmp_path, workers=2), on_event=lambda _: None)
    recipe = read_recipe(make_base(DevnetDirectory(tmp_path), sized.model))
    assert (recipe.environment.name, recipe.group_size, recipe.sampling.max_new_tokens) == ("arithmetic", 16, 10)
    assert (sized.scale.groups, sized.scale.evaluation_samples) == (4, 0)


def test_the_first_step_of_a_check_may_take_longer_with_a_slower_model(tmp_path: Path) -> None:
    network = Network(directory=tmp_path, workers=2)
    small = size_own_model(ModelChoices(folder=devnet_base()), network)
    larger = size_own_model(ModelChoices(folder=a_folder(tmp_path)), network)
    assert timedelta(seconds=120) <= small.scale.first_step < larger.scale.first_step


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
    sized = size_own_model(ModelChoices(folder=devnet_base(), groups=4), Network(directory=tmp_path, workers=1))
    run = RunOptions(model=sized.model, scale=sized.scale)
    file = write_trainer_settings(DevnetDirectory(tmp_path), some_places(tmp_path), run)
    settings = TrainerSettings.load(file=file)
    assert (settings.groups_per_step, settings.start) == (4, devnet_base().absolute())
    assert settings.keep_versions is None


def test_versions_stay_no_longer_than_one_clock_needs(tmp_path: Path) -> None:
    directory, places = DevnetDirectory(tmp_path), replace(some_places(tmp_path), relay_ports=(4,))
    settings = TrainerSettings.load(file=write_trainer_settings(directory, places, RunOptions()))
    relay = relay_spec(directory, places, 1).command
    assert settings.clocks_differ == CLOCKS_DIFFER < timedelta(minutes=1)
    assert relay[relay.index("--clocks-differ") + 1] == str(CLOCKS_DIFFER.total_seconds())


def some_places(redis_url_file: Path) -> ServicePlaces:
    return ServicePlaces(
        rpc="http://127.0.0.1:1",
        chain_id=1,
        redis_url_file=redis_url_file,
        discovery_port=1,
        discovery_address=Key.generate().address,
        orchestrator_port=2,
        origin_port=3,
        relay_ports=(),
    )


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
        size_own_model(ModelChoices(folder=folder), Network(directory=tmp_path, workers=1))
