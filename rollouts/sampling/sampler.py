"""Draws tokens from logits and noise, and computes the recorded log-probabilities.

The order is fixed: temperature, top-k, top-p, noise, argmax; all in float32.

Shapes: b rows, v tokens of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from protocol.errors import MusterError
from rollouts.sampling.mask import mask_of
from rollouts.sampling.parameters import SamplingParameters


class NotANumber(MusterError):
    """A row of logits has no finite log-sum-exp: it contains NaN or +inf, or only -inf."""

    code = "not-a-number"
    default_hint = "the weights or the machine that computed them are broken; load the version again"


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """One drawn token per row.

    Args:
        tokens: int64 [B].
        logprobs: float32 [B], log-softmax(logits / temperature) over the whole vocabulary, before mask and noise.
    """

    tokens: torch.Tensor
    logprobs: torch.Tensor


def draw(logits_bv: torch.Tensor, noise_bv: torch.Tensor, parameters: SamplingParameters) -> DrawnTokens:
    """Draws a token for each row.

    With Gumbel noise, the drawn token follows the softmax distribution.

    Raises:
        NotANumber: A row has NaN or +inf, or only -inf.
    """
    scaled_bv = scale(logits_bv, parameters)
    total_b = log_sums(scaled_bv)
    tokens_b = first_largest(process(scaled_bv, noise_bv, parameters))
    chosen_b = scaled_bv.gather(1, tokens_b[:, None])[:, 0]
    return DrawnTokens(tokens_b, chosen_b - total_b)


def scale(logits_bv: torch.Tensor, parameters: SamplingParameters) -> torch.Tensor:
    """Returns logits / temperature in float32, [B, V]."""
    single = logits_bv.float()
    return single if parameters.temperature == 1.0 else single / parameters.temperature


def log_sums(scaled_bv: torch.Tensor) -> torch.Tensor:
    """Returns the log-sum-exp of each row of scaled logits, float32 [B].

    Subtracting it from a scaled logit gives the log-probability.

    Raises:
        NotANumber: A row has NaN or +inf, or only -inf.
    """
    return check_normal(torch.logsumexp(scaled_bv, dim=1))


def check_normal(total_b: torch.Tensor) -> torch.Tensor:
    """Returns the log-sums unchanged.

    Raises:
        NotANumber: A log-sum is not finite.
    """
    if not bool(torch.isfinite(total_b).all()):
        broken = int((~torch.isfinite(total_b)).sum())
        raise NotANumber(f"{broken} of {len(total_b)} rows of logits have no finite log-sum")
    return total_b


def process(scaled_bv: torch.Tensor, noise_bv: torch.Tensor, parameters: SamplingParameters) -> torch.Tensor:
    """Returns the scores whose argmax is drawn, float32 [B, V]: masked scaled logits plus noise."""
    scores = scaled_bv + noise_bv
    if not parameters.masks:
        return scores
    return scores.masked_fill_(scaled_bv < mask_of(scaled_bv, parameters).edge_b[:, None], -torch.inf)


def first_largest(scores_bv: torch.Tensor) -> torch.Tensor:
    """Returns each row's argmax, int64 [B]; ties go to the lowest token on every device."""
    if scores_bv.device.type == "cpu":
        return torch.from_numpy(scores_bv.numpy().argmax(1))  # guarantees the first index, and is 20 times faster
    largest_b1 = scores_bv.amax(dim=1, keepdim=True)
    places_v = torch.arange(scores_bv.shape[1], device=scores_bv.device)
    return torch.where(scores_bv == largest_b1, places_v, scores_bv.shape[1]).amin(dim=1)
