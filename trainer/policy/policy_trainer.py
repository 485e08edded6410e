"""Interface of the policy trainer: a model with its optimiser, as the run uses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from trainer.learning.groups import TrainingGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Result of one optimiser step.

    Args:
        bad: Loss or gradient was NaN or infinite; weights and optimiser are unchanged.
        tokens: Number of tokens learned.
        figures: Loss, reward, entropy and other metrics, by name.
    """

    bad: bool = False
    tokens: int = 0
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrainerSnapshot:
    """State that determines all further learning: weights, optimiser and random generators.

    Args:
        tensors: The trainer's own, not copies: valid until its next `finish` or `restore`.
        facts: JSON.
    """

    tensors: dict[str, torch.Tensor]
    facts: dict[str, Any]


class PolicyTrainer(Protocol):
    """Learns groups, one optimiser step at a time, deterministically."""

    def begin(self, *, step: int) -> None:
        """Begins a step whose groups are added one by one; discards an unfinished step."""
        ...

    def add(self, groups: Sequence[TrainingGroup]) -> None:
        """Adds the gradients of some groups."""
        ...

    def finish(self) -> StepResult:
        """Performs the optimiser step; earlier snapshots become invalid.

        Raises:
            TrainingDiverged: Loss or gradient was NaN or infinite too often in a row.
        """
        ...

    def snapshot(self) -> TrainerSnapshot:
        """Returns the present state."""
        ...

    def restore(self, state: TrainerSnapshot) -> None:
        """Restores a state.

        Raises:
            Conflict: It is of another model.
        """
        ...

    def write(self, folder: Path, *, eligible: NDArray[np.uint64] | None) -> None:
        """Writes the weights atomically as a version, with a table of eligible prompts if given.

        Raises:
            NotWritten: The disk is full, or refuses.
        """
        ...


def learn_batch(
    student: PolicyTrainer, groups: Sequence[TrainingGroup], *, parts: Sequence[int], step: int
) -> StepResult:
    """Learns a batch in the same parts as before, or at once.

    Raises:
        TrainingDiverged: Loss or gradient was NaN or infinite too often in a row.
    """
    if not groups:
        return StepResult()
    add_batch(student, groups, parts=parts, step=step)
    return student.finish()


def add_batch(student: PolicyTrainer, groups: Sequence[TrainingGroup], *, parts: Sequence[int] = (), step: int) -> None:
    """Begins a step and adds the gradients of its groups, at once or in parts; the caller calls `finish`."""
    student.begin(step=step)
    first = 0
    for count in parts or [len(groups)]:
        student.add(groups[first : first + count])
        first += count
