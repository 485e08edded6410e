"""Accepted rollouts as input of the learner."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.identifiers import Digest
from rollouts.turns import Turn, drawn_places, interleave


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingSample:
    """One completion.

    Args:
        output_tokens: int32, shape (T,), including the end token; T >= 1.
        logprobs: float32, shape (T,): the sampler's own log-probabilities at the run's temperature.
        reward: Reward from the verdict's audit file.
        turns: Turns of a dialogue; empty for a single answer. `output_tokens` and `logprobs` concern drawn tokens only,
            and so does the loss; given tokens are context.
    """

    output_tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    reward: float
    turns: tuple[Turn, ...] = ()

    @property
    def inputs(self) -> NDArray[np.int32]:
        """All tokens after the prompt except the last one, int32: the inputs that follow the prompt's last token."""
        return interleave(self.output_tokens, self.turns)[:-1]

    @property
    def places(self) -> NDArray[np.int64]:
        """Index of each drawn token among all tokens after the prompt, int64 [T]."""
        return drawn_places(self.turns, drawn=len(self.output_tokens))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingGroup:
    """All completions of one prompt in one slot.

    Args:
        work: Work key of the group's file.
        group: Index of the group in that file.
        prompt_index: Index of the prompt in the environment.
        prompt_tokens: int32, shape (P,); P >= 1.
        version: Policy version that generated the group.
        samples: All samples of the group, at least one.
    """

    work: Digest
    group: int
    prompt_index: int
    prompt_tokens: NDArray[np.int32]
    version: int
    samples: tuple[TrainingSample, ...]

    @property
    def has_signal(self) -> bool:
        """Returns whether the samples' rewards differ.

        If not, all advantages within the group are zero.
        """
        return len({sample.reward for sample in self.samples}) > 1
