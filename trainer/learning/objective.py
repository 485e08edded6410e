"""Combines the parts of a loss into the objective, which the optimiser maximises.

Shapes: S answers; N tokens of all answers, concatenated. The suffix of a name gives its shape: `ratio_n` is [N].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainer.learning.algorithms import Algorithm
from trainer.learning.batch import Answers
from trainer.learning.losses import distances, kept_answers, ratios
from trainer.learning.settings import OldPolicy


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Objective:
    """Contribution of some answers to a batch's objective, with its components.

    Args:
        total: Weighted sum over the tokens, before the division by a count of the whole batch.
        logprob_n: Log-probabilities of the policy.
        ratio_n: Importance weights.
        entropy_n: Entropies in nats.
        distance_n: Estimates of the distance to the reference, if there is one.
        stopped_n: Mask of tokens that the term clipped, bounded or omitted.
        kept_s: Mask of answers whose terms count; `Algorithm.rollout_floor` excludes the other answers.
    """

    total: torch.Tensor
    logprob_n: torch.Tensor
    ratio_n: torch.Tensor
    entropy_n: torch.Tensor
    distance_n: torch.Tensor | None
    stopped_n: torch.Tensor
    kept_s: torch.Tensor


def objective_of(
    algorithm: Algorithm,
    answers: Answers,
    *,
    logprob_n: torch.Tensor,
    entropy_n: torch.Tensor,
    reference_n: torch.Tensor | None = None,
    old_policy: OldPolicy = OldPolicy.SAMPLER,
) -> Objective:
    """Returns the objective of some answers.

    Args:
        algorithm: The algorithm.
        answers: Answers to train on.
        logprob_n: The policy's log-probabilities of the answers' tokens, with gradient.
        entropy_n: Entropies of the policy's distributions, with gradient.
        reference_n: The reference model's log-probabilities; None without a reference model.
        old_policy: Source of the old log-probabilities in the ratio.
    """
    ratio_n = ratios(
        algorithm.importance,
        logprob_n=logprob_n,
        old_n=answers.sampler_n if old_policy == OldPolicy.SAMPLER else logprob_n.detach(),
        answer_n=answers.answer_n,
        length_s=answers.length_s,
    )
    term_n, stopped_n = algorithm.term.of(ratio_n=ratio_n, logprob_n=logprob_n, advantage_n=answers.advantage_n)
    kept_s = kept_answers(
        algorithm.rollout_floor, ratio_n=ratio_n, answer_n=answers.answer_n, answers=len(answers.length_s)
    )
    value_n = torch.where(kept_s[answers.answer_n], term_n, 0.0)
    distance_n = None
    if reference_n is not None:
        distance_n = distances(algorithm.distance, logprob_n=logprob_n, reference_n=reference_n)
        if algorithm.kl:
            value_n = value_n - algorithm.kl * distance_n
    if algorithm.entropy:
        value_n = value_n + algorithm.entropy * entropy_n
    return Objective(
        total=(answers.weight_n * value_n).sum(),
        logprob_n=logprob_n,
        ratio_n=ratio_n,
        entropy_n=entropy_n,
        distance_n=distance_n,
        stopped_n=stopped_n,
        kept_s=kept_s,
    )
