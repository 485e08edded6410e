"""A loss's parts put together: from logits of answers to what is to be made larger.

Shapes: S answers, N tokens of all answers, V vocabulary. A name's last letters are its shape.
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
        total: Weighted and summed, not yet divided; its gradient is followed upwards.
        logprob_n: The policy's.
        ratio_n: Importance weights.
        entropy_n: In nats.
        distance_n: Estimates of the distance to the reference, if there is one.
        stopped_n: Tokens that the term stopped, bounded or left out.
        kept_s: Answers that were not left out whole.
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
    """Puts an algorithm's parts together.

    Args:
        algorithm: Which parts.
        answers: What is learned from.
        logprob_n: The policy's log-probabilities of the answers' tokens, with their gradient.
        entropy_n: Of the distributions that they are from, with its gradient.
        reference_n: The reference's log-probabilities.
        old_policy: Whose log-probabilities the ratio is taken against.
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
