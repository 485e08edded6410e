"""The run's student where several processes learn: what the run asks of it, all of them do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trainer.distributed.commands import CommandKind, GroupCommand, groups_command, state_command
from trainer.distributed.leader import Leader
from trainer.learning.groups import TrainingGroup
from trainer.policy.local_policy_trainer import LocalPolicyTrainer
from trainer.policy.policy_trainer import StepResult, TrainerSnapshot


class DistributedPolicyTrainer:
    """A student in shares. What it raises is what `LocalPolicyTrainer` does, and `MeshBroken`.

    Args:
        own: This process's share.
        leader: To the others.
    """

    def __init__(self, own: LocalPolicyTrainer, leader: Leader) -> None:
        self._own = own
        self._leader = leader

    def begin(self, *, step: int) -> None:
        """Begins a step whose groups come one after the other."""
        self._leader.together(
            GroupCommand(word=CommandKind.BEGIN, facts={"step": step}), lambda: self._own.begin(step=step)
        )

    def add(self, groups: Sequence[TrainingGroup]) -> None:
        """Adds the gradients of some groups."""
        self._leader.together(groups_command(groups), lambda: self._own.add(groups))

    def finish(self) -> StepResult:
        """The optimiser step. Snapshots that were taken before it are not valid any more.

        Raises:
            TrainingDiverged: Loss or gradient was no number too often in a row.
        """
        return self._leader.together(GroupCommand(word=CommandKind.FINISH), self._own.finish)

    def snapshot(self) -> TrainerSnapshot:
        """The state, gathered here."""
        return self._leader.together(GroupCommand(word=CommandKind.STATE), self._own.snapshot)

    def restore(self, state: TrainerSnapshot) -> None:
        """Goes back to a state, whatever number of processes left it: each gets its share from here.

        Raises:
            Conflict: It is of another model, or of another kind of optimiser.
        """
        self._leader.together(state_command(state), lambda: self._own.restore(state))

    def write(self, folder: Path, *, eligible: NDArray[np.uint64] | None) -> None:
        """Gathers the weights here and writes them as a version; the others do not wait for the disk.

        Raises:
            NotWritten: The disk is full, or refuses.
        """
        weights = self._leader.together(GroupCommand(word=CommandKind.WEIGHTS), self._own.weights)
        self._own.store(folder, weights, eligible=eligible)
