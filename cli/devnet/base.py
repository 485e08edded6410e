"""Prepares the model that a devnet's run starts from.

A continued devnet must have the same model as before.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cli.devnet.directory import DevnetDirectory
from cli.devnet.options import RunModel, RunOptions
from protocol.errors import Conflict, InvalidInput
from protocol.runtime.files import write_atomically
from rollouts.models.facts import COMPANION_FILES, CONFIG_FILE
from trainer.presets import devnet_base

_RECIPE_FILE = "recipe.json"
_PROMPTS_FILE = "prompts.u64"
_PARTS = ("*.safetensors", "*.safetensors.index.json", CONFIG_FILE, *COMPANION_FILES)
"""Patterns of the files that a version needs besides its recipe and its table of prompts. A devnet ignores all other
files of a model's folder, such as weights in other formats."""


def bind_model(directory: DevnetDirectory, run: RunOptions) -> None:
    """Records the model and recipe of a new devnet, or checks those of a continued one.

    Raises:
        Conflict: The continued devnet (`--keep`) trains another model, or uses another recipe.
        InvalidInput: The record of the continued devnet can't be read.
    """
    model = run.model or RunModel(folder=devnet_base())
    given = _record(run.name, model)
    try:
        kept = json.loads(directory.model.read_text())
    except FileNotFoundError:
        write_atomically(directory.model, json.dumps(given, indent=2) + "\n")
        return
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{directory.model} can't be read: {error}", hint="leave out --keep to start a new devnet"
        ) from error
    if not isinstance(kept, dict) or kept.keys() != given.keys():
        raise InvalidInput(
            f"{directory.model} is not the record of a devnet's model", hint="leave out --keep to start a new devnet"
        )
    if all(kept.get(part) == given[part] for part in ("files", "recipe", "prompts")):
        return
    if kept.get("files") != given["files"]:
        before, now = f"the model {kept.get('folder')}", f"the model {given['folder']}"
    else:
        before, now = (f"a recipe for {_environment_of(each.get('recipe'))}" for each in (kept, given))
    if before == now:
        changed = f"its files have changed since then ({now})"
    else:
        changed = f"it trains {before}, and this command gives {now}"
    raise Conflict(
        f"{directory.path} holds a devnet of {kept.get('name')}: {changed}",
        hint="leave out --keep to begin anew, give the same model and options, or choose another --directory",
    )


def make_base(directory: DevnetDirectory, model: RunModel) -> Path:
    """Returns the folder of the model that the trainer starts from.

    If the run has a recipe of its own, this function copies the model to `directory.base` and writes that recipe there.
    Otherwise the trainer starts from the model's own folder.
    """
    if model.recipe is None:
        return model.folder
    base, recipe = directory.base, directory.base / _RECIPE_FILE
    if not recipe.exists():
        shutil.rmtree(base, ignore_errors=True)
        base.mkdir(mode=0o700)
        for path in _parts(model.folder):
            shutil.copyfile(path, base / path.name)
        if _names_prompts(json.loads(model.recipe)):
            shutil.copyfile(model.folder / _PROMPTS_FILE, base / _PROMPTS_FILE)
        write_atomically(recipe, model.recipe + "\n")  # written last, so that a copy with a recipe is complete
    return base


def _record(name: str, model: RunModel) -> dict[str, Any]:
    """Returns the record that identifies a run's model: SHA-256 of each file, and the recipe."""
    recipe = json.loads((model.folder / _RECIPE_FILE).read_text() if model.recipe is None else model.recipe)
    return {
        "name": name,
        "folder": str(model.folder.resolve()),
        "files": {path.name: _digest(path) for path in _parts(model.folder)},
        "recipe": recipe,
        "prompts": _digest(model.folder / _PROMPTS_FILE) if _names_prompts(recipe) else "",
    }


def _names_prompts(recipe: Mapping[str, Any]) -> bool:
    """Returns whether a recipe takes its prompts from a table in the same folder."""
    return bool(recipe.get("prompts", {}).get("kind") == "table")


def _parts(folder: Path) -> Iterator[Path]:
    """Yields the files of a model's folder that a version needs, by name."""
    found = {path for pattern in _PARTS for path in folder.glob(pattern) if path.is_file()}
    yield from sorted(found)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _environment_of(recipe: object) -> str:
    """Formats the environment of a recipe, with the environment's options, for an error message."""
    environment: Mapping[str, Any] = recipe.get("environment", {}) if isinstance(recipe, dict) else {}
    options = "".join(f" {name}={json.dumps(value)}" for name, value in environment.get("options", {}).items())
    return f"{environment.get('name')}{options}"
