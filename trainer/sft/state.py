"""Saved state of an unfinished warm-up: a file with weights, optimiser and position, replaced atomically.

A warm-up with the same settings resumes from this file; in a single CPU process the results are bit-identical. A
warm-up with other settings is refused, because the result would match neither set of settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from trainer.saving.saved_state import read_state, write_state
from trainer.saving.training_state import restore_training, training_tensors

STATE_FILE = "state.safetensors"
_OTHER_FOLDER = "give another --to, or delete the folder to begin anew"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUpState:
    """Position of a warm-up.

    Args:
        step: Number of completed steps.
        position: Number of candidates consumed.
        skipped: Number of steps skipped because of NaN or infinity.
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
        about: Settings that determine the result; a warm-up resumes only with the same settings.
        model: Model whose weights are saved.
        optimiser: Optimiser whose averages are saved.

    Raises:
        NotWritten: The disk is full or refuses the write; the previous state is unchanged.
    """
    tensors = training_tensors(model, [optimiser])
    write_state(folder / STATE_FILE, tensors, about=about, facts=asdict(place))


def load_state(
    folder: Path, *, about: Mapping[str, object], model: PreTrainedModel, optimiser: torch.optim.Optimizer
) -> WarmUpState:
    """Restores the saved state, if there is one, and returns the position.

    Raises:
        Conflict: The state was saved with other settings or by another release, or is damaged.
    """
    path = folder / STATE_FILE
    if not path.exists():
        return WarmUpState()
    with read_state(path, about=about, owner="warm-up", work="warm-up", hint=_OTHER_FOLDER) as (saved, tensors):
        restore_training(tensors, model, [optimiser])
        return WarmUpState(
            step=saved["step"],
            position=saved["position"],
            skipped=saved["skipped"],
            skipped_in_a_row=saved["skipped_in_a_row"],
        )
