"""The loss: four parts that are chosen separately, plus distance to a reference and entropy.

    loss = -1/count * sum over tokens of weight * (term(ratio, advantage) - kl * distance + entropy * H)

`weight` and `count` come from the aggregation, `ratio` is the importance weight, `advantage` compares an answer with
others, and `term` combines ratio and advantage and decides which gradient flows. (RLAX decomposes losses in this way.)
`count` covers the whole global batch, and the division comes last, so that the gradients of any parts of a batch add up
to the gradient of the batch. All functions take and return tensors.

Shapes: N tokens of all answers, concatenated; S answers; G groups; V vocabulary. The suffix of a name gives its shape:
`logits_nv` is [N, V].
"""

from __future__ import annotations

from enum import StrEnum

import torch

STEADY = 1e-6
"""Added to a standard deviation before division, so that equal rewards give advantages of zero."""
MOST_LOG_RATIO = 20.0
"""Log-ratios are clamped to +-20, so that their exponential is finite; clamped log-ratios have no gradient."""


class Aggregation(StrEnum):
    """Weight of each token of an answer with T tokens, and divisor of the sum.

    The sum is over the global batch.
    """

    TOKENS = "tokens"
    """Weight 1, divided by the number of tokens of the batch. DAPO section 3.3, INTELLECT-2 section 3."""
    GROUP_TOKENS = "group-tokens"
    """Weight 1 / (tokens of the group), divided by the number of groups. DAPO equation (8)."""
    ANSWERS = "answers"
    """Weight 1 / T, divided by the number of answers. GRPO (DeepSeekMath, equation 3), GSPO equation (5)."""
    CONSTANT = "constant"
    """Weight 1 / (a fixed length), divided by the number of answers: no bias by length. Dr. GRPO section 3.2."""
    SEQUENCES = "sequences"
    """Weight 1, divided by the number of answers: an answer is one action. RLOO."""


class Count(StrEnum):
    """Divisor of a sum over the global batch."""

    TOKENS = "tokens"
    ANSWERS = "answers"
    GROUPS = "groups"


COUNTED = {
    Aggregation.TOKENS: Count.TOKENS,
    Aggregation.GROUP_TOKENS: Count.GROUPS,
    Aggregation.ANSWERS: Count.ANSWERS,
    Aggregation.CONSTANT: Count.ANSWERS,
    Aggregation.SEQUENCES: Count.ANSWERS,
}


class Importance(StrEnum):
    """Importance ratio pi/mu of two probabilities of a token.

    pi is the probability under the policy, mu under the policy that generated the token.
    """

    NONE = "none"
    """exp(log pi - detach(log pi)): the value 1 with the gradient of log pi, so answers are treated as on-policy."""
    TOKEN = "token"  # noqa: S105 - a unit of text, no secret
    """pi/mu of each token."""
    SEQUENCE = "sequence"
    """Geometric mean of pi/mu over the answer, equal for all its tokens. GSPO equation (7)."""


class Advantage(StrEnum):
    """Advantage of an answer with reward r. `std` is the population standard deviation."""

    GROUP = "group"
    """(r - mean) / (std + 1e-6), with mean and std of the answer's group. GRPO."""
    GROUP_MEAN = "group-mean"
    """r - mean of the answer's group. Dr. GRPO, INTELLECT-3."""
    LEAVE_ONE_OUT = "leave-one-out"
    """r - mean of the other answers of the group; 0 in a group of one. RLOO (Ahmadian et al.)."""
    BATCH = "batch"
    """(r - mean) / (std + 1e-6), with mean and std of the whole batch. REINFORCE++."""
    GROUP_MEAN_BATCH = "group-mean-batch"
    """d / (std + 1e-6), where d = r - mean of the answer's group, and std is that of d over the batch. REINFORCE++ with
    baseline."""


OF_WHOLE_BATCH = {Advantage.BATCH, Advantage.GROUP_MEAN_BATCH}
"""Advantages that need all answers of the batch."""


class Distance(StrEnum):
    """Estimators of KL(pi || reference) from one token each (Schulman, "Approximating KL Divergence")."""

    K1 = "k1"
    """log pi - log ref: unbiased, but its gradient is zero in expectation. For monitoring only."""
    K2 = "k2"
    """(log pi - log ref)^2 / 2: biased, but on-policy its gradient is that of the KL divergence."""
    K3 = "k3"
    """ref/pi - 1 - log(ref/pi): unbiased and never negative. GRPO (DeepSeekMath, equation 4)."""


def token_weights(
    kind: Aggregation, *, length_s: torch.Tensor, group_length_s: torch.Tensor, fixed: int
) -> torch.Tensor:
    """Returns the weight of each answer's tokens before division by `COUNTED[kind]`, float32 [S].

    Args:
        kind: The aggregation.
        length_s: Number of tokens of each answer.
        group_length_s: Number of tokens of each answer's group.
        fixed: Divisor of `CONSTANT`.
    """
    match kind:
        case Aggregation.TOKENS | Aggregation.SEQUENCES:
            return torch.ones_like(length_s, dtype=torch.float32)
        case Aggregation.GROUP_TOKENS:
            return 1.0 / group_length_s.float()
        case Aggregation.ANSWERS:
            return 1.0 / length_s.float()
        case Aggregation.CONSTANT:
            return torch.full_like(length_s, 1.0 / fixed, dtype=torch.float32)


def ratios(
    kind: Importance, *, logprob_n: torch.Tensor, old_n: torch.Tensor, answer_n: torch.Tensor, length_s: torch.Tensor
) -> torch.Tensor:
    """Returns the importance ratio pi/mu, [N]; the gradient flows through `logprob_n`.

    Args:
        kind: Kind of the importance weight.
        logprob_n: Log-probabilities of the policy.
        old_n: Log-probabilities of the policy that generated.
        answer_n: Index of each token's answer, from 0 to S - 1.
        length_s: Number of tokens of each answer.
    """
    difference_n = _log_ratio(logprob_n, logprob_n.detach() if kind == Importance.NONE else old_n)
    if kind == Importance.SEQUENCE:
        sum_s = torch.zeros_like(length_s, dtype=difference_n.dtype).index_add(0, answer_n, difference_n)
        difference_n = (sum_s / length_s)[answer_n]
    return difference_n.exp()


def kept_answers(floor: float, *, ratio_n: torch.Tensor, answer_n: torch.Tensor, answers: int) -> torch.Tensor:
    """Returns a mask of the answers without a token whose ratio is below the floor, [S].

    INTELLECT-3 section 3 describes this filter.
    """
    low_s = torch.zeros(answers, dtype=torch.int64, device=ratio_n.device)
    return low_s.index_add(0, answer_n, (ratio_n.detach() < floor).long()) == 0


def advantages(kind: Advantage, *, reward_s: torch.Tensor, group_s: torch.Tensor) -> torch.Tensor:
    """Returns the advantage of each answer, [S].

    Args:
        kind: The advantage.
        reward_s: Rewards, float64.
        group_s: Group index of each answer, from 0.
    """
    if kind == Advantage.BATCH:
        centred_s = reward_s - reward_s.mean()
        return centred_s / (_std(centred_s) + STEADY)
    size_g = torch.bincount(group_s)
    mean_g = torch.zeros_like(size_g, dtype=reward_s.dtype).index_add(0, group_s, reward_s) / size_g
    centred_s, size_s = reward_s - mean_g[group_s], size_g[group_s]
    match kind:
        case Advantage.GROUP_MEAN:
            return centred_s
        case Advantage.LEAVE_ONE_OUT:
            return centred_s * size_s / (size_s - 1).clamp(min=1)
        case Advantage.GROUP_MEAN_BATCH:
            return centred_s / (_std(centred_s) + STEADY)
        case Advantage.GROUP:
            variance_g = torch.zeros_like(mean_g).index_add(0, group_s, centred_s.square()) / size_g
            return centred_s / (variance_g.sqrt()[group_s] + STEADY)


def clipped_term(
    *, ratio_n: torch.Tensor, advantage_n: torch.Tensor, low: float, high: float, cap: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns min(min(ratio, cap) * A, clip(ratio, 1 - low, 1 + high) * A): PPO's term, two-sided with a cap.

    A is the advantage. Without the cap, the ratio of a token with negative advantage has no upper bound (INTELLECT-2
    section 3).

    Returns:
        The term, and a mask of tokens without gradient, both [N].
    """
    capped_n = ratio_n if cap is None else ratio_n.clamp(max=cap)
    inside_n = ratio_n.clamp(1.0 - low, 1.0 + high)
    term_n = torch.minimum(capped_n * advantage_n, inside_n * advantage_n)
    outside_n = ((ratio_n > 1.0 + high) & (advantage_n > 0)) | ((ratio_n < 1.0 - low) & (advantage_n < 0))
    if cap is not None:
        outside_n |= (ratio_n > cap) & (advantage_n < 0)
    return term_n, outside_n


def truncated_term(
    *, ratio_n: torch.Tensor, logprob_n: torch.Tensor, advantage_n: torch.Tensor, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns detach(clip(ratio, low, high)) * A * log pi.

    Each token keeps a gradient, with a bounded weight.

    A is the advantage. AIPO (LlamaRL) bounds the weight above only, CISPO (MiniMax-M1, equation 4) on both sides.

    Returns:
        The term, and a mask of the tokens whose weight was clipped, both [N].
    """
    weight_n = ratio_n.detach()
    bounded_n = (weight_n > high) | (weight_n < low)
    return weight_n.clamp(low, high) * advantage_n * logprob_n, bounded_n


def masked_term(
    *, ratio_n: torch.Tensor, advantage_n: torch.Tensor, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ratio * A where low <= ratio <= high and 0 elsewhere: IcePop, as in INTELLECT-3 section 3.

    Returns:
        The term, and a mask of omitted tokens, both [N].
    """
    outside_n = (ratio_n < low) | (ratio_n > high)
    return (ratio_n * advantage_n).masked_fill(outside_n, 0.0), outside_n


def distances(kind: Distance, *, logprob_n: torch.Tensor, reference_n: torch.Tensor) -> torch.Tensor:
    """Returns an estimate of KL(pi || reference) from each token, [N]."""
    log_ratio_n = _log_ratio(logprob_n, reference_n)
    match kind:
        case Distance.K1:
            return log_ratio_n
        case Distance.K2:
            return 0.5 * log_ratio_n.square()
        case Distance.K3:
            return torch.expm1(-log_ratio_n) + log_ratio_n


def logprobs_and_entropies(
    logits_nv: torch.Tensor, token_n: torch.Tensor, *, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the tokens' log-probabilities and the distributions' entropies at a temperature, both float32 [N]."""
    logprobs_nv = torch.log_softmax(logits_nv.float() / temperature, dim=-1)
    entropy_n = -(logprobs_nv.exp() * logprobs_nv).sum(dim=-1)
    return logprobs_nv.gather(1, token_n[:, None])[:, 0], entropy_n


def _log_ratio(logprob_n: torch.Tensor, other_n: torch.Tensor) -> torch.Tensor:
    return (logprob_n - other_n).clamp(-MOST_LOG_RATIO, MOST_LOG_RATIO)


def _std(values_s: torch.Tensor) -> torch.Tensor:
    return values_s.std(correction=0)
