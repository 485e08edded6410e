"""Rewards from scores, with INTELLECT-2's length reward: `total = task - alpha * |target - length|`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from protocol.errors import InvalidInput
from rollouts.environments.interface import Score

UNDECIDED = "undecided"
"""Key in `Score.parts`: whether a limit ended the check."""


def is_solved(task: float) -> bool:
    """Returns whether a score counts as solved: only the full score of 1 does.

    So the task reward in a rollout file suffices to determine whether an answer is solved. An environment with its own
    threshold for solved tasks must give the score 1.0 to every answer above the threshold.
    """
    return task == 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """The reward for training, with its parts."""

    total: float
    task: float
    length_penalty: float
    """Penalty of the length reward, never negative; 0.0 without a target."""
    length: int
    target: int | None
    undecided: bool = False
    """True if a limit ended the check, so that another machine may get another result; no sign of forgery."""
    limited: bool = False
    """True if the check has limits that may end the check on some machine; a slower machine may give a lower score."""

    @property
    def solved(self) -> bool:
        """Returns whether the task counts as solved."""
        return is_solved(self.task)


@dataclass(frozen=True, slots=True)
class LengthReward:
    """Subtracts `alpha` for every token of difference between answer and target length (arXiv 2505.07291, 3.1.2).

    Args:
        targets: Possible target lengths; a small discrete set is easier to learn than a range.
        alpha: Penalty per token.
    """

    targets: tuple[int, ...]
    alpha: float

    def __post_init__(self) -> None:
        if not self.targets or any(target < 0 for target in self.targets):
            raise InvalidInput(
                f"a length reward can't have the targets {self.targets}",
                hint="give at least one target, and no negative one",
            )
        if not (math.isfinite(self.alpha) and self.alpha >= 0):
            raise InvalidInput(
                f"a length reward can't have alpha {self.alpha}", hint="give a finite number of at least 0"
            )

    def apply(self, score: Score, *, target: int, output_tokens: int) -> Reward:
        """Returns the reward for an answer.

        Args:
            score: The environment's score.
            target: The prompt's target length.
            output_tokens: Number of the answer's tokens, without the end token.

        Raises:
            InvalidInput: The target is not one of `targets`.
        """
        if target not in self.targets:
            raise InvalidInput(
                f"the length reward has no target of {target} tokens", hint=f"its targets are {self.targets}"
            )
        length = measured_length(score, output_tokens=output_tokens)
        penalty = self.alpha * abs(target - length)
        return Reward(
            total=score.task - penalty,
            task=score.task,
            length_penalty=penalty,
            length=length,
            target=target,
            undecided=is_undecided(score),
            limited=UNDECIDED in score.parts,
        )


def reward_of(score: Score, *, rule: LengthReward | None, target: int | None, output_tokens: int) -> Reward:
    """Returns the reward for an answer, with or without a length reward, for generation and for checks.

    Raises:
        InvalidInput: There is a rule but no target, or a target but no rule.
    """
    if rule is not None and target is not None:
        return rule.apply(score, target=target, output_tokens=output_tokens)
    if rule is not None or target is not None:
        raise InvalidInput(f"target {target} with length reward {rule}", hint="a length reward needs both or neither")
    length = measured_length(score, output_tokens=output_tokens)
    return Reward(
        total=score.task,
        task=score.task,
        length_penalty=0.0,
        length=length,
        target=None,
        undecided=is_undecided(score),
        limited=UNDECIDED in score.parts,
    )


def measured_length(score: Score, *, output_tokens: int) -> int:
    """Returns the answer's length for the length reward: `length` of the score's parts, else the number of tokens."""
    return int(score.parts.get("length", output_tokens))


def is_undecided(score: Score) -> bool:
    """Returns whether a limit of this machine ended the check."""
    return score.parts.get(UNDECIDED, 0.0) != 0.0
