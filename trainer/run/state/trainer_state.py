"""The trainer's state directory: its lock, and the file with the saved state.

The trainer replaces the file while the next step runs. A restart repeats the steps after the saved state, from the
journal and the rollout files in the same directory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from protocol.runtime.files import FileLocked, locked_file
from trainer.errors import AnotherTrainer, NotWritten
from trainer.learning.learner import LearnerState
from trainer.run.state.pools import DifficultyPools
from trainer.saving.saved_state import read_state, write_state

STATE_FILE = "state.safetensors"
_LOCK_FILE = "trainer.lock"
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


@contextmanager
def lock_state(folder: Path) -> Iterator[None]:
    """Creates a state directory if needed and locks it until the block or the process ends.

    Raises:
        AnotherTrainer: Another process uses the directory.
        NotWritten: The directory or its lock file can't be created.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            stack.enter_context(locked_file(folder / _LOCK_FILE))
        except FileLocked as error:
            raise AnotherTrainer(
                f"another trainer uses {folder}", hint="stop the other trainer, or give this one a --state of its own"
            ) from error
        except OSError as error:
            raise NotWritten(f"{folder} can't be used: {error.strerror or error}") from error
        yield


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
