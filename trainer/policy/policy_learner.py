"""Learner of a run's policy: opens the base's model, trains it and writes versions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.device_mesh import DeviceMesh

from rollouts.precision import Dtype
from rollouts.recipe import PromptTable
from trainer.errors import BadSettings
from trainer.learning.learner import Learner
from trainer.learning.settings import LearningSettings
from trainer.models.trainable import TORCH_TYPES, open_model, without_weights, write_weights
from trainer.policy.base_model import PolicyBase


class PolicyLearner(Learner):
    """Trains the model of a base, and writes versions of the trained policy.

    Args:
        base: Source of the initial weights.
        learning: Settings of the learner.
        device: Device of the weights.
        dtype: Type of published weights.
        mesh: Processes that share the weights; all of them must call the same methods. None if this process trains
            alone.

    Raises:
        BadVersionFolder: The base can't be trained.
        BadSettings: A rollout of the recipe's maximum length is longer than a row.
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
        longest = recipe.row_tokens(base.facts.context)
        if longest > learning.row_tokens:
            raise BadSettings(
                f"prompt and answer may have {longest} tokens, and rows have {learning.row_tokens}",
                hint="raise learning.row_tokens, or lower max_prompt_tokens in the base's recipe"
                + (", or turns or reply_tokens in its field dialogue" if recipe.dialogue is not None else ""),
            )
        # For a mesh the model is opened on the CPU. Sharding then moves one layer at a time to the devices, so that no
        # device ever holds all layers.
        model, _ = open_model(base.folder, device=device if mesh is None else torch.device("cpu"))
        self._base = base
        self._dtype = dtype
        self._form = without_weights(model, dtype=dtype)
        reference = open_model(base.folder, device=device)[0] if learning.algorithm.kl else None
        super().__init__(model, learning, temperature=recipe.sampling.temperature, reference=reference, mesh=mesh)

    def write(self, folder: Path, *, eligible: NDArray[np.uint64] | None) -> None:
        """Writes the weights atomically as a version, with a table of eligible prompts if given.

        Raises:
            NotWritten: The disk is full or refuses the write.
        """
        weights = self.weights(dtype=TORCH_TYPES[self._dtype])
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
