"""What learns: a model with its optimiser, as the run sees it."""

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
    """What one optimiser step was.

    Args:
        bad: Loss or gradient was no number: weights and optimiser are as before.
        tokens: Tokens that were learned.
        figures: Loss, reward, entropy and so on, by name.
    """

    bad: bool = False
    tokens: int = 0
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrainerSnapshot:
    """All that decides what is learned next: weights, optimiser, random numbers.

    Args:
        tensors: The student's own, not copies: valid until its next `finish` or `restore`.
        facts: JSON.
    """

    tensors: dict[str, torch.Tensor]
    facts: dict[str, Any]


class PolicyTrainer(Protocol):
    """Learns groups, one optimiser step at a time. Equal states and equal groups give equal states."""

    def begin(self, *, step: int) -> None:
        """Begins a step whose groups come one after the other; what an unfinished one had added is forgotten."""
        ...

    def add(self, groups: Sequence[TrainingGroup]) -> None:
        """Adds the gradients of some groups."""
        ...

    def finish(self) -> StepResult:
        """The optimiser step. Snapshots that were taken before it are not valid any more.

        Raises:
            TrainingDiverged: Loss or gradient was no number too often in a row.
        """
        ...

    def snapshot(self) -> TrainerSnapshot:
        """The state as it is."""
        ...

    def restore(self, state: TrainerSnapshot) -> None:
        """Goes back to a state.

        Raises:
            Conflict: It is of another model.
        """
        ...

    def write(self, folder: Path, *, eligible: NDArray[np.uint64] | None) -> None:
        """Writes the weights as a version, with this table of prompts if there is one; it is there whole or not at all.

        Raises:
            NotWritten: The disk is full, or refuses.
        """
        ...


def learn_batch(
    student: PolicyTrainer, groups: Sequence[TrainingGroup], *, parts: Sequence[int], step: int
) -> StepResult:
    """Learns a batch as it was learned before: at once, or in the parts in which it came.

    Raises:
        TrainingDiverged: Loss or gradient was no number too often in a row.
    """
    if not groups:
        return StepResult()
    add_batch(student, groups, parts=parts, step=step)
    return student.finish()


def add_batch(student: PolicyTrainer, groups: Sequence[TrainingGroup], *, parts: Sequence[int] = (), step: int) -> None:
    """Begins a step and adds the gradients of its groups, at once or in parts; `finish` is left."""
    student.begin(step=step)
    first = 0
    for count in parts or [len(groups)]:
        student.add(groups[first : first + count])
        first += count
