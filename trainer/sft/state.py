"""Saved state of an unfinished warm-up: a file with weights, optimiser and position, replaced atomically.

A warm-up with the same settings resumes from it, on one CPU process with bit-identical results. A warm-up with other
settings is refused, because the result would match neither set of settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

from protocol.errors import Conflict
from trainer.files import write_whole
from trainer.tensor_file import tensor_file
from trainer.training_state import restore_training, training_tensors

STATE_FILE = "state.safetensors"
_FORMAT = 1
_OTHER_FOLDER = "give another --to, or delete the folder to begin anew"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpState:
    """Position of a warm-up.

    Args:
        step: Number of completed steps.
        position: Number of candidates consumed.
        skipped: Number of steps skipped for NaN or infinity.
        skipped_in_a_row: Number of consecutive skipped steps, up to the last one.
    """

    step: int = 0
    position: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0


def save_state(
    folder: Path,
    *,
    place: WarmUpState,
    about: Mapping[str, object],
    model: PreTrainedModel,
    optimiser: torch.optim.Optimizer,
) -> None:
    """Replaces the saved state atomically.

    Args:
        folder: Folder of the state file.
        place: Position of the warm-up.
        about: Settings that determine the result; a warm-up resumes only with the same ones.
        model: Model whose weights are saved.
        optimiser: Optimiser whose averages are saved.

    Raises:
        NotWritten: The disk is full or refuses the write; the previous state is unchanged.
    """
    tensors = training_tensors(model, [optimiser])
    saved = {"format": _FORMAT, "about": dict(about), **_as_json(place)}
    write_whole(folder / STATE_FILE, tensor_file(tensors, metadata={"muster": json.dumps(saved)}))


def load_state(
    folder: Path, *, about: Mapping[str, object], model: PreTrainedModel, optimiser: torch.optim.Optimizer
) -> WarmUpState:
    """Restores the saved state, if there is one, and returns the position.

    Raises:
        Conflict: The state is of other settings or another release, or damaged.
    """
    path = folder / STATE_FILE
    if not path.exists():
        return WarmUpState()
    try:
        with safe_open(path, framework="pt") as file:
            saved = json.loads(file.metadata()["muster"])
            _check(path, saved, about)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
        restore_training(tensors, model, [optimiser])
        return WarmUpState(
            step=saved["step"],
            position=saved["position"],
            skipped=saved["skipped"],
            skipped_in_a_row=saved["skipped_in_a_row"],
        )
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise Conflict(f"{path} is not a warm-up's state: {error}", hint=_OTHER_FOLDER) from error


def _as_json(place: WarmUpState) -> dict[str, int]:
    return {name: getattr(place, name) for name in WarmUpState.__slots__}


def _check(path: Path, saved: Mapping[str, Any], about: Mapping[str, object]) -> None:
    if saved.get("format") != _FORMAT:
        raise Conflict(f"{path} is of another release", hint=_OTHER_FOLDER)
    found: Mapping[str, object] = saved["about"]
    changed = sorted(name for name in {*found, *about} if found.get(name) != about.get(name))
    if changed:
        raise Conflict(f"{path} is of another warm-up: {', '.join(changed)} differs", hint=_OTHER_FOLDER)
