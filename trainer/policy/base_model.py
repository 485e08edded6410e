"""Base of a run: the version that training starts from, validated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.checkpoints import folder_files, version_digest
from protocol.identifiers import Digest
from rollouts.environments import is_held_out, load_environment
from rollouts.models.facts import ModelFacts, read_model
from rollouts.recipe import EligiblePrompts, PromptTable, Recipe, check_classes, eligible_prompts, read_recipe
from trainer.errors import BadSettings

MOST_PROMPTS = 1 << 20
"""Maximum number of prompts in a range that is converted to a table. A table takes up to 8 MiB in each version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyBase:
    """A version that training starts from.

    Args:
        folder: Folder of the version.
        digest: Digest of the version.
        recipe: Recipe of the version.
        facts: Properties of the model.
        eligible: Prompts that slots may draw.
    """

    folder: Path
    digest: Digest
    recipe: Recipe
    facts: ModelFacts
    eligible: EligiblePrompts

    @property
    def candidates(self) -> NDArray[np.uint64] | None:
        """Returns the prompt indices from which the tables of versions are chosen.

        Returns None for a range with more than `MOST_PROMPTS` prompts.

        Held-out prompts of a range are excluded: no slot draws them, so in a table they would count as unsolved for
        ever.

        Raises:
            BadSettings: All prompts of the range are held out.
            MusterError: The recipe's environment can't be loaded, or can't produce a prompt.
        """
        if isinstance(self.recipe.prompts, PromptTable):
            return np.array(list(self.eligible), np.uint64)
        if len(self.eligible) > MOST_PROMPTS:
            return None
        kept = list(self.eligible)
        if share := self.recipe.held_out:
            chosen = self.recipe.environment
            environment = load_environment(chosen.name, version=chosen.version, options=chosen.options)
            kept = [index for index in kept if not is_held_out(environment.prompt(index), share)]
        if not kept:
            raise BadSettings(
                f"the recipe in {self.folder} holds out all of its prompts", hint="lower held_out, or give more prompts"
            )
        return np.array(kept, np.uint64)


def open_base(folder: Path) -> PolicyBase:
    """Reads and validates a base.

    Raises:
        BadVersionFolder: The folder is not a version, its tokenizer has tokens that its model lacks, or the recipe
            allows a numerics class that is not exact for the recipe's longest prompt and answer.
        InvalidInput: The version is served: its prompts come from a gateway's clients.
        BadSettings: Samples of the recipe are unsuitable for training: top_p or top_k is set, or groups have fewer than
            2 samples.
    """
    recipe = read_recipe(folder)
    recipe.check_has_prompts()
    facts = read_model(folder)
    check_classes(recipe, facts, folder=folder)
    sampling = recipe.sampling
    if sampling.top_p != 1.0 or sampling.top_k:
        raise BadSettings(
            f"the recipe in {folder} has top_p {sampling.top_p} and top_k {sampling.top_k}",
            hint="training needs samples from the policy's full distribution: set top_p 1 and top_k 0",
        )
    if recipe.group_size < 2:
        raise BadSettings(
            f"the recipe in {folder} has groups of {recipe.group_size} sample",
            hint="answers to one prompt are compared: set group_size to 2 or more",
        )
    return PolicyBase(
        folder=folder,
        digest=version_digest(folder_files(folder)),
        recipe=recipe,
        facts=facts,
        eligible=eligible_prompts(folder, recipe),
    )
