"""Saves and loads the trainer's state.

The trainer replaces the state file while the next step runs. A restart repeats the steps after the saved state, with
the journal and the rollout files in the same directory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainer.learning.learner import LearnerState
from trainer.run.state.folder import STATE_FILE
from trainer.run.state.pools import DifficultyPools
from trainer.saving.saved_state import read_state, write_state

_HINT = "give the --state directory of this run, or an empty directory to begin anew"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """State of a run.

    Args:
        step: The next step; all steps below it are complete.
        pools: Difficulty pools of prompts.
        signal_share: Smoothed share of groups whose rewards differ.
        empty_steps: Number of consecutive steps, up to the last one, without a group whose rewards differ.
    """

    step: int = 0
    pools: DifficultyPools = field(default_factory=DifficultyPools)
    signal_share: float = 0.75
    empty_steps: int = 0


def save_state(folder: Path, *, state: TrainerState, learner_state: LearnerState, identity: Mapping[str, str]) -> None:
    """Replaces the saved state atomically.

    Raises:
        NotWritten: The disk is full or refuses the write; the previous state is unchanged.
    """
    facts = {
        "step": state.step,
        "pools": state.pools.as_json(),
        "signal_share": state.signal_share,
        "empty_steps": state.empty_steps,
        "student": learner_state.facts,
    }
    write_state(folder / STATE_FILE, learner_state.tensors, about=identity, facts=facts)


def load_state(folder: Path, *, identity: Mapping[str, str]) -> tuple[TrainerState, LearnerState] | None:
    """Reads the saved state; returns None if no state was saved yet.

    Raises:
        Conflict: The state belongs to another run or release, or is damaged.
    """
    path = folder / STATE_FILE
    if not path.exists():
        return None
    with read_state(path, about=identity, owner="trainer", work="run", hint=_HINT) as (saved, tensors):
        state = TrainerState(
            step=int(saved["step"]),
            pools=DifficultyPools.of_json(saved["pools"]),
            signal_share=float(saved["signal_share"]),
            empty_steps=int(saved["empty_steps"]),
        )
        return state, LearnerState(tensors=tensors, facts=saved["student"])
