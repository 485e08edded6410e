"""A batch of groups as tensors: token ids, log-probabilities, weights and advantages.

Shapes: S answers; N tokens of all answers, concatenated. The suffix of a name gives its shape: `token_n` is [N].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trainer.learning.algorithms import Algorithm
from trainer.learning.groups import TrainingGroup
from trainer.learning.losses import Count, advantages, token_weights


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answers:
    """All or some answers of a batch, as tensors.

    Args:
        token_n: int64, generated token ids; not the tokens that are given between the turns of a dialogue.
        sampler_n: float32, the sampler's log-probability of each token.
        answer_n: int64, index of each token's answer, from 0 within this object.
        weight_n: float32, weight of each token in the loss, before the division by a number of `Counts`.
        advantage_n: float32, advantage of each token's answer.
        length_s: int64, number of tokens of each answer.
    """

    token_n: torch.Tensor
    sampler_n: torch.Tensor
    answer_n: torch.Tensor
    weight_n: torch.Tensor
    advantage_n: torch.Tensor
    length_s: torch.Tensor

    def pick(self, answers: torch.Tensor, device: torch.device) -> Answers:
        """Returns the answers with the given ascending indices, on a device."""
        chosen = torch.zeros(len(self.length_s), dtype=torch.bool)
        chosen[answers] = True
        of = chosen[self.answer_n]
        length_s = self.length_s[chosen]
        return Answers(
            token_n=self.token_n[of].to(device),
            sampler_n=self.sampler_n[of].to(device),
            answer_n=torch.repeat_interleave(length_s).to(device),
            weight_n=self.weight_n[of].to(device),
            advantage_n=self.advantage_n[of].to(device),
            length_s=length_s.to(device),
        )


@dataclass(slots=True, kw_only=True)
class Counts:
    """Numbers of groups, answers and tokens in the global batch.

    The loss is divided by one of them.
    """

    groups: int = 0
    answers: int = 0
    tokens: int = 0

    def of(self, count: Count) -> int:
        """Returns the number that an aggregation divides by."""
        return {Count.GROUPS: self.groups, Count.ANSWERS: self.answers, Count.TOKENS: self.tokens}[count]


def answers_of(groups: Sequence[TrainingGroup], algorithm: Algorithm) -> Answers:
    """Returns the answers of groups as tensors on the CPU."""
    samples = [sample for group in groups for sample in group.samples]
    group_s = torch.repeat_interleave(torch.tensor([len(group.samples) for group in groups]))
    length_s = torch.tensor([len(sample.output_tokens) for sample in samples])
    answer_n = torch.repeat_interleave(length_s)
    group_length_s = torch.zeros(len(groups), dtype=torch.int64).index_add(0, group_s, length_s)[group_s]
    reward_s = torch.tensor([sample.reward for sample in samples], dtype=torch.float64)
    advantage_s = advantages(algorithm.advantage, reward_s=reward_s, group_s=group_s).float()
    weight_s = token_weights(
        algorithm.aggregation, length_s=length_s, group_length_s=group_length_s, fixed=algorithm.fixed_length
    )
    return Answers(
        token_n=torch.from_numpy(np.concatenate([sample.output_tokens for sample in samples]).astype(np.int64)),
        sampler_n=torch.from_numpy(np.concatenate([sample.logprobs for sample in samples]).astype(np.float32)),
        answer_n=answer_n,
        weight_n=weight_s[answer_n],
        advantage_n=advantage_s[answer_n],
        length_s=length_s,
    )
