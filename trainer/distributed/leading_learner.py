"""Learner of process 0 of a mesh: all processes execute each of its operations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed.device_mesh import DeviceMesh

from rollouts.precision import Dtype
from trainer.distributed.commands import GroupCommand, GroupCommandKind, groups_command, state_command
from trainer.distributed.leader import Leader
from trainer.learning.groups import TrainingGroup
from trainer.learning.learner import LearnerState
from trainer.learning.metrics import LearnedStep
from trainer.learning.settings import LearningSettings
from trainer.policy.base_model import PolicyBase
from trainer.policy.policy_learner import PolicyLearner


class LeadingLearner(PolicyLearner):
    """A learner whose weights are sharded over a mesh; each method may also raise `MeshBroken`.

    Args:
        base: Source of the initial weights.
        learning: Settings of the learner.
        leader: Sends each operation to the other processes.
        device: Device of this process's shard.
        dtype: Type of published weights.
        mesh: Processes that share the weights.
    """

    def __init__(
        self,
        base: PolicyBase,
        learning: LearningSettings,
        leader: Leader,
        *,
        device: torch.device,
        dtype: Dtype,
        mesh: DeviceMesh,
    ) -> None:
        self._leader = leader
        super().__init__(base, learning, device=device, dtype=dtype, mesh=mesh)

    def begin(self, *, step: int) -> None:
        """Begins a step on all processes."""
        command = GroupCommand(word=GroupCommandKind.BEGIN, facts={"step": step})
        self._leader.together(command, lambda: super(LeadingLearner, self).begin(step=step))

    def add(self, groups: Sequence[TrainingGroup]) -> None:
        """Adds the gradients of some groups; each process computes the gradients of its own rows."""
        self._leader.together(groups_command(groups), lambda: super(LeadingLearner, self).add(groups))

    def finish(self) -> LearnedStep:
        """Performs the optimiser step on all processes.

        Raises:
            TrainingDiverged: Loss or gradient was NaN, infinite or too large in too many steps in a row.
        """
        return self._leader.together(GroupCommand(word=GroupCommandKind.FINISH), super().finish)

    def state(self, *, keep: bool = True) -> LearnerState:
        """Gathers the state on this process."""
        return self._leader.together(
            GroupCommand(word=GroupCommandKind.STATE), lambda: super(LeadingLearner, self).state(keep=keep)
        )

    def restore(self, state: LearnerState) -> None:
        """Restores a state; each process gets its shard from process 0.

        The mesh that saved the state may have had another number of processes.

        Raises:
            Conflict: The state is of another model or another kind of optimiser.
        """
        self._leader.together(state_command(state), lambda: super(LeadingLearner, self).restore(state))

    def weights(self, *, dtype: torch.dtype = torch.float32, keep: bool = True) -> dict[str, torch.Tensor]:
        """Gathers copies of the weights on this process.

        The other processes continue at once; they do not wait until this process has written the copies to disk.
        """
        return self._leader.together(
            GroupCommand(word=GroupCommandKind.WEIGHTS),
            lambda: super(LeadingLearner, self).weights(dtype=dtype, keep=keep),
        )
