"""Results by environment, for recipes with the environment `mixture`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rollouts.environments.mixture import Parts, parts_of
from rollouts.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentResult:
    """Results of the answers to one environment's prompts.

    Args:
        answers: Number of answers.
        reward: Mean reward after the length penalty.
        solved: Share of solved answers.
    """

    answers: int
    reward: float
    solved: float


class ResultsByEnvironment:
    """Accumulates the results of answers by environment.

    Args:
        parts: Assigns prompt indices to the recipe's environments.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._rewards: list[list[float]] = [[] for _ in parts.names]
        self._solved = [0.0] * len(parts.names)

    def add(self, prompt_index: int, *, reward: float, solved: float) -> None:
        """Adds the result of one answer.

        Args:
            prompt_index: Index of the prompt.
            reward: The answer's reward.
            solved: 1 if the answer is solved, else 0. A caller that adds all answers of a group may pass the group's
                share of solved answers with each of them.
        """
        part = self._parts.part(prompt_index)
        self._rewards[part].append(reward)
        self._solved[part] += solved

    def results(self) -> Mapping[str, EnvironmentResult]:
        """Returns the results by environment label; empty unless the recipe has a mixture.

        Environments without answers are omitted.
        """
        if len(self._parts.names) == 1:
            return {}
        return {
            label: EnvironmentResult(
                answers=len(rewards), reward=math.fsum(rewards) / len(rewards), solved=solved / len(rewards)
            )
            for label, rewards, solved in zip(self._parts.labels, self._rewards, self._solved, strict=True)
            if rewards
        }


def results_of(recipe: Recipe) -> ResultsByEnvironment:
    """Returns an empty accumulator for a recipe.

    Raises:
        BadOptions: The recipe's mixture has invalid options.
    """
    return ResultsByEnvironment(parts_of(recipe.environment.name, recipe.environment.options))
