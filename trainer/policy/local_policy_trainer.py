"""Policy trainer for a transformers model in this process or process group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.device_mesh import DeviceMesh

from protocol.errors import Conflict
from rollouts.precision import Dtype
from rollouts.recipe import PromptTable
from trainer.errors import BadSettings
from trainer.learning.groups import TrainingGroup
from trainer.learning.learner import Learner, LearnerState
from trainer.learning.metrics import LearnedStep
from trainer.learning.settings import LearningSettings
from trainer.models import TORCH_TYPES, open_model, without_weights, write_weights
from trainer.policy.base_model import PolicyBase
from trainer.policy.policy_trainer import StepResult, TrainerSnapshot


class LocalPolicyTrainer:
    """Trains a base's model.

    Args:
        base: Source of the initial weights.
        learning: Settings of the learner.
        device: Device of the weights.
        dtype: Type of published weights.
        mesh: Processes that share the weights, which all call the same methods; None for this process alone.

    Raises:
        BadVersionFolder: The base can't be trained.
        BadSettings: Its longest rollouts fit no row.
    """

    def __init__(
        self,
        base: PolicyBase,
        learning: LearningSettings,
        *,
        device: torch.device,
        dtype: Dtype,
        mesh: DeviceMesh | None = None,
    ) -> None:
        recipe = base.recipe
        longest = recipe.max_prompt_tokens + recipe.sampling.max_new_tokens
        if longest > learning.row_tokens and base.facts.context > learning.row_tokens:
            raise BadSettings(
                f"prompt and answer may have {longest} tokens, and rows have {learning.row_tokens}",
                hint="raise learning.row_tokens, or lower max_prompt_tokens in the base's recipe",
            )
        self._base = base
        self._dtype = dtype
        self._optimiser = learning.optimiser.kind.value
        # Sharding moves one layer at a time to its device, so that no device ever holds all layers.
        model, _ = open_model(base.folder, device=device if mesh is None else torch.device("cpu"))
        self._form = without_weights(model, dtype=dtype)
        reference = open_model(base.folder, device=device)[0] if learning.algorithm.kl else None
        self._learner = Learner(
            model, learning, temperature=recipe.sampling.temperature, reference=reference, mesh=mesh
        )

    def begin(self, *, step: int) -> None:
        """Begins a step whose groups are added one by one."""
        self._learner.begin(step=step)

    def add(self, groups: Sequence[TrainingGroup]) -> None:
        """Adds the gradients of some groups."""
        self._learner.add(groups)

    def finish(self) -> StepResult:
        """Performs the optimiser step; earlier snapshots become invalid.

        Raises:
            TrainingDiverged: Loss or gradient was NaN or infinite too often in a row.
        """
        return _lesson(self._learner.finish())

    def snapshot(self, *, keep: bool = True) -> TrainerSnapshot:
        """Returns the present state; without tensors on processes that need not keep them."""
        state = self._learner.state(keep=keep)
        return TrainerSnapshot(dict(state.tensors), {"counts": dict(state.counts), "optimiser": self._optimiser})

    def restore(self, state: TrainerSnapshot) -> None:
        """Restores a state.

        Raises:
            Conflict: It is of another model, or of another kind of optimiser, whose averages are none of this one's.
        """
        kind = state.facts.get("optimiser", self._optimiser)
        if kind != self._optimiser:
            raise Conflict(
                f"the state has the averages of {kind}, and the settings say {self._optimiser}",
                hint=f'set learning.optimiser.kind to "{kind}", or begin a new run from the newest version',
            )
        try:
            self._learner.restore(LearnerState(tensors=state.tensors, counts=state.facts["counts"]))
        except (KeyError, ValueError, RuntimeError) as error:
            raise Conflict(
                f"the state is not of this model: {error}", hint="give the base that the run began with"
            ) from error

    def write(self, folder: Path, *, eligible: NDArray[np.uint64] | None) -> None:
        """Writes a version.

        Raises:
            NotWritten: The disk is full, or refuses.
        """
        self.store(folder, self.weights(), eligible=eligible)

    def weights(self, *, keep: bool = True) -> dict[str, torch.Tensor]:
        """Returns copies of the weights in the stored type; nothing on processes that need not keep them."""
        return self._learner.weights(dtype=TORCH_TYPES[self._dtype], keep=keep)

    def store(self, folder: Path, weights: dict[str, torch.Tensor], *, eligible: NDArray[np.uint64] | None) -> None:
        """Writes weights as a version and empties the dictionary. Only one process calls this.

        Raises:
            NotWritten: The disk is full, or refuses.
        """
        recipe = self._base.recipe
        if eligible is not None:
            recipe = recipe.model_copy(update={"prompts": PromptTable(count=len(eligible))})
        write_weights(
            folder,
            self._form,
            weights,
            start=self._base.folder,
            recipe=recipe,
            eligible=() if eligible is None else eligible.tolist(),
        )


def _lesson(done: LearnedStep) -> StepResult:
    left_out = {"step", "bad", "groups", "answers", "seconds"}
    figures = {name: value for name, value in asdict(done).items() if name not in left_out and value is not None}
    return StepResult(bad=done.bad, tokens=done.tokens, figures=figures)
