"""Base of a devnet's run: the copied files, and the check that a kept devnet has the same model and recipe."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cli.devnet.base import bind_model, make_base
from cli.devnet.directory import DevnetDirectory
from cli.devnet.options import RunModel, RunOptions
from protocol.errors import Conflict, InvalidInput
from rollouts.recipe import RECIPE_FILE
from trainer.presets import devnet_base

RECIPE = json.dumps({"environment": {"name": "letters", "options": {"filler": True}}})


def run_of(folder: Path, recipe: str | None = RECIPE) -> RunOptions:
    return RunOptions(name=folder.name, model=RunModel(folder=folder, recipe=recipe))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Returns a copy of a shipped model with files that a version does not need."""
    folder = tmp_path / "model"
    shutil.copytree(devnet_base(), folder)
    for name in ("pytorch_model.bin", "README.md", "model.gguf", "training_args.bin"):
        (folder / name).write_text("x")
    return folder


def test_only_files_that_a_version_needs_are_copied(model: Path, tmp_path: Path) -> None:
    (model / "chat_template.jinja").write_text("{{ messages }}")
    base = make_base(DevnetDirectory(tmp_path), RunModel(folder=model, recipe=RECIPE))
    copied = {path.name for path in base.iterdir()}
    assert copied >= {"model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja", RECIPE_FILE}
    assert not copied & {"pytorch_model.bin", "README.md", "model.gguf", "training_args.bin", "prompts.u64"}


def test_a_kept_base_is_not_copied_again(tmp_path: Path) -> None:
    directory = DevnetDirectory(tmp_path)
    base = make_base(directory, RunModel(folder=devnet_base(), recipe="{}"))
    (base / RECIPE_FILE).write_text("kept")
    make_base(directory, RunModel(folder=devnet_base(), recipe="{}"))
    assert (base / RECIPE_FILE).read_text() == "kept"


def test_a_copy_that_was_interrupted_is_made_again(tmp_path: Path) -> None:
    directory = DevnetDirectory(tmp_path)
    directory.base.mkdir()
    (directory.base / "model.safetensors").write_text("half")
    base = make_base(directory, RunModel(folder=devnet_base(), recipe="{}"))
    assert (base / "model.safetensors").stat().st_size == (devnet_base() / "model.safetensors").stat().st_size


def test_the_same_model_and_recipe_continue_also_from_another_folder(model: Path, tmp_path: Path) -> None:
    directory = DevnetDirectory(tmp_path)
    bind_model(directory, run_of(model))
    bind_model(directory, run_of(model))
    bind_model(directory, run_of(model.rename(tmp_path / "moved")))


def test_a_kept_devnet_refuses_another_model_and_names_both(model: Path, tmp_path: Path) -> None:
    directory = DevnetDirectory(tmp_path)
    bind_model(directory, run_of(devnet_base("devnet-length")))
    with pytest.raises(Conflict, match=rf"trains the model .*devnet-length, and .* gives the model {model}") as said:
        bind_model(directory, run_of(model))
    assert "--keep" in said.value.hint


def test_a_kept_devnet_refuses_another_recipe_and_names_both(model: Path, tmp_path: Path) -> None:
    directory = DevnetDirectory(tmp_path)
    bind_model(directory, run_of(model))
    other = json.dumps({"environment": {"name": "arithmetic", "options": {"digits": 2}}})
    with pytest.raises(Conflict, match=r"for letters filler=true, and .* gives a recipe for arithmetic digits=2"):
        bind_model(directory, run_of(model, other))
    with pytest.raises(Conflict, match="for letters"):
        bind_model(directory, run_of(model, None))


def test_a_kept_devnet_notices_changed_weights_in_the_same_folder(model: Path, tmp_path: Path) -> None:
    directory = DevnetDirectory(tmp_path)
    bind_model(directory, run_of(model))
    with (model / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    with pytest.raises(Conflict, match=rf"its files have changed since then \(the model {model}\)"):
        bind_model(directory, run_of(model))


@pytest.mark.parametrize(
    ("record", "words"),
    [("{", "can't be read"), ("[]", "is not the record"), ("null", "is not the record"), ("{}", "is not the record")],
)
def test_a_damaged_record_is_an_error(record: str, words: str, tmp_path: Path) -> None:
    directory = DevnetDirectory(tmp_path)
    directory.model.write_text(record)
    with pytest.raises(InvalidInput, match=words):
        bind_model(directory, run_of(devnet_base()))


def test_a_recipe_for_a_folders_table_of_prompts_gets_the_table(model: Path, tmp_path: Path) -> None:
    recipe = json.dumps({**json.loads(RECIPE), "prompts": {"kind": "table", "count": 1}})
    (model / "prompts.u64").write_bytes(bytes(8))
    directory = DevnetDirectory(tmp_path)
    base = make_base(directory, RunModel(folder=model, recipe=recipe))
    assert (base / "prompts.u64").read_bytes() == bytes(8)
    bind_model(directory, run_of(model, recipe))
    (model / "prompts.u64").write_bytes(bytes([1] * 8))
    with pytest.raises(Conflict, match="files have changed"):
        bind_model(directory, run_of(model, recipe))


def test_the_report_names_a_preset_or_a_models_folder() -> None:
    assert RunOptions(name="length").about["preset"] == "length"
    own = RunOptions(name="qwen", own_model=True).about
    assert (own["model"], "preset" in own) == ("qwen", False)
