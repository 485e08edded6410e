"""The trainer's saved state: one file, replaced atomically, written while the next step runs.

Later steps are in the journal, with their files beside it, and are repeated from there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from protocol.errors import Conflict
from trainer.files import write_whole
from trainer.learning.learner import LearnerState
from trainer.run.pools import DifficultyPools
from trainer.tensor_file import tensor_file

STATE_FILE = "state.safetensors"
_FORMAT = 1
_HINT = "give the --state of this run, or an empty one to begin anew"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """State of a run.

    Args:
        step: The next step; all lower ones are complete.
        pools: Difficulty pools of prompts.
        signal_share: Smoothed share of groups with signal.
        empty_steps: Number of last consecutive steps without a group with signal.
    """

    step: int = 0
    pools: DifficultyPools = field(default_factory=DifficultyPools)
    signal_share: float = 0.75
    empty_steps: int = 0


def save_state(folder: Path, *, state: TrainerState, learner_state: LearnerState, about: Mapping[str, str]) -> None:
    """Replaces the saved state atomically.

    Raises:
        NotWritten: The disk is full or refuses the write; the previous state is unchanged.
    """
    said = {
        "format": _FORMAT,
        "about": dict(about),
        "step": state.step,
        "pools": state.pools.as_json(),
        "signal_share": state.signal_share,
        "empty_steps": state.empty_steps,
        "student": learner_state.facts,
    }
    write_whole(folder / STATE_FILE, tensor_file(learner_state.tensors, metadata={"muster": json.dumps(said)}))


def load_state(folder: Path, *, about: Mapping[str, str]) -> tuple[TrainerState, LearnerState] | None:
    """Reads the state; None if there is none yet.

    Raises:
        Conflict: The state is of another run or release, or damaged.
    """
    path = folder / STATE_FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            said: dict[str, Any] = json.loads(file.metadata()["muster"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
        _check(path, said, about)
        state = TrainerState(
            step=int(said["step"]),
            pools=DifficultyPools.of_json(said["pools"]),
            signal_share=float(said["signal_share"]),
            empty_steps=int(said["empty_steps"]),
        )
        return state, LearnerState(tensors=tensors, facts=said["student"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise Conflict(f"{path} is no state of a trainer: {error}", hint=_HINT) from error


def _check(path: Path, said: Mapping[str, Any], about: Mapping[str, str]) -> None:
    if said.get("format") != _FORMAT:
        raise Conflict(f"{path} is of another release", hint=_HINT)
    found: Mapping[str, str] = said["about"]
    changed = sorted(name for name in {*found, *about} if found.get(name) != about.get(name))
    if changed:
        raise Conflict(f"{path} is of another run: {', '.join(changed)} differs", hint=_HINT)
