"""`muster trainer`: options become settings, steps become lines, and a version can be evaluated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from cli.trainer.commands import app
from cli.trainer.work import WarmUpChoices, settings_of
from protocol.errors import MusterError
from tests.kit.tiny_model import tiny_folder
from trainer.presets import devnet_base
from trainer.sft.settings import EnvironmentExamples, FileExamples, FolderStart

torch.set_num_threads(1)

NOTHING = WarmUpChoices(
    to=Path("out"),
    preset=None,
    config=None,
    start=None,
    file=None,
    environment=None,
    changes=(),
    steps=None,
    seed=None,
    device=None,
    every=25,
)


def test_single_settings_of_a_preset_can_be_changed() -> None:
    changes = ("optimiser.learning_rate=1e-4", "optimiser.schedule=linear", "recipe.group_size=8", "steps=7")
    settings = settings_of(replace(NOTHING, preset="devnet", changes=changes, seed=9))
    assert (settings.optimiser.learning_rate, settings.optimiser.schedule) == (1e-4, "linear")
    assert settings.recipe is not None
    assert (settings.recipe.group_size, settings.steps, settings.seed) == (8, 7, 9)
    assert settings.row_tokens == settings_of(replace(NOTHING, preset="devnet")).row_tokens


def test_a_preset_that_starts_from_another_finds_it_unless_a_start_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = settings_of(replace(NOTHING, preset="devnet-length"))
    assert settings.start == FolderStart(folder=devnet_base())
    assert settings_of(replace(NOTHING, preset="devnet-length", start=Path("other"))).start == FolderStart(
        folder=Path("other")
    )


def test_a_folder_and_an_examples_file_are_enough_for_a_warm_up() -> None:
    settings = settings_of(replace(NOTHING, start=Path("base"), file=Path("rows.jsonl"), steps=3))
    assert settings.start == FolderStart(folder=Path("base"))
    assert settings.examples == FileExamples(path=Path("rows.jsonl"))
    assert settings.recipe is None


def test_an_environment_is_resolved_to_its_installed_version() -> None:
    changes = ("recipe.sampling.max_new_tokens=12", "examples.count=10")
    chosen = replace(NOTHING, start=Path("base"), environment="letters", changes=changes)
    settings = settings_of(chosen)
    assert settings.recipe is not None
    assert (settings.recipe.environment.name, settings.recipe.environment.version) == ("letters", "1")
    assert settings.examples == EnvironmentExamples(count=10)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"preset": "devnett"}, "no preset 'devnett'"),
        ({"preset": "devnet", "config": Path("a.toml")}, "both given"),
        ({"config": Path("missing.toml")}, r"missing\.toml can't be read"),
        ({"preset": "devnet", "changes": ("steps",)}, "'steps' is no setting"),
        ({"preset": "devnet", "changes": ("step=4",)}, "step: Extra inputs are not permitted"),
        ({"preset": "devnet", "changes": ("steps.more=4",)}, "steps is no table of settings"),
        ({"preset": "devnet", "changes": ("optimiser.learning_rate=fast",)}, "optimiser.learning_rate: Input should"),
        ({}, "the options: no start weights are named"),
    ],
)
def test_invalid_warm_up_options_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(MusterError, match=message):
        settings_of(replace(NOTHING, **changed))


def test_a_warm_up_and_an_evaluation_run_from_the_command_line(tmp_path: Path) -> None:
    base = tiny_folder(tmp_path / "base", kind="llama")
    rows = [{"prompt": "rev:abcd=", "completion": "dcba"}, {"prompt": "sort:4312=", "completion": "1234"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = ["--from", str(base), "--file", str(tmp_path / "rows.jsonl"), "--set", "row_tokens=64", "--steps", "2"]
    recipe = ["--environment", "letters", "--set", "recipe.count=50", "--set", "recipe.sampling.max_new_tokens=6"]
    few = ["--set", "evaluation.prompts=4", "--set", "examples_per_step=2", "--every", "1", "--device", "cpu"]
    made = tmp_path / "made"
    done = CliRunner().invoke(app, ["sft", *common, *recipe, *few, "--to", str(made)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "step 1/2  loss" in done.stderr
    assert f"{made} holds the version" in done.stdout
    asked = ["eval", str(made), "--prompts", "4", "--samples", "2", "--json"]
    found = json.loads(CliRunner().invoke(app, asked, catch_exceptions=False).stdout)
    assert [row["version"] for row in found] == [str(made)]
    assert found[0]["evaluation"]["prompts"] == 4
    assert set(found[0]["evaluation"]["pass_at"]) == {"1", "2"}
    table = CliRunner().invoke(app, asked[:-1], catch_exceptions=False).stdout
    assert "pass@2" in table
    without = CliRunner().invoke(app, ["sft", *common, "--to", str(tmp_path / "without")], catch_exceptions=False)
    assert f"muster recipe init {tmp_path / 'without'} --environment NAME" in without.stderr
