"""Top-k and top-p masks with margins.

Top-k keeps the k largest scaled logits. Top-p orders the tokens that top-k keeps by falling probability, renormalises
their probabilities, and keeps the shortest prefix with a sum of at least `top_p`, but at least one token. Both masks
reduce to one number per row, the edge: scaled logits of at least this value are kept, including ties with the last kept
token.

Two honest machines may disagree about a token next to the edge. Replay therefore needs the token's margin: the smallest
difference in scaled logits between the two machines that would explain why one machine kept the token and the other did
not.

Shapes: b rows, v tokens of the vocabulary, k largest values, r selected rows, m values per row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from rollouts.sampling.parameters import NO_TOP_K, SamplingParameters

_FIRST_LOOK = 1024
"""Number of most probable tokens that top-p examines before it sorts the whole vocabulary."""
_ALMOST_ONE = 1.0 - 2.0**-24
"""Sums of probabilities are capped at this value, so that their log-odds are finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """The mask of each row of a batch.

    Args:
        edge_b: The smallest kept scaled logit; -inf if all are kept.
        last_b: The k-th largest scaled logit; -inf without top-k.
        next_b: The largest scaled logit that top-k removes; -inf if there is none.
        head_bk: The largest scaled logits in falling order; empty without top-p.
        before_bk: Cumulative probability before each entry of the head, then of the whole head (one more entry).
        top_p: The parameter `top_p`.
    """

    edge_b: torch.Tensor
    last_b: torch.Tensor
    next_b: torch.Tensor
    head_bk: torch.Tensor
    before_bk: torch.Tensor
    top_p: float

    def margins(self, rows_r: torch.Tensor, values_rm: torch.Tensor) -> torch.Tensor:
        """Returns margins by which scaled logits are kept (≥ 0) or removed (≤ 0), float32 [r, m].

        Args:
            rows_r: int64, rows of the batch.
            values_rm: Scaled logits: m values for each row of `rows_r`.
        """
        last_r1, next_r1 = self.last_b[rows_r, None], self.next_b[rows_r, None]
        margins_rm = values_rm - torch.where(values_rm >= last_r1, next_r1, last_r1)
        margins_rm = margins_rm.masked_fill(values_rm == -torch.inf, -torch.inf)
        if self.top_p == 1.0:
            return margins_rm
        larger_rm = torch.searchsorted(-self.head_bk[rows_r], -values_rm)  # number of larger entries in the head
        before_rm = self.before_bk[rows_r].gather(1, larger_rm).clamp_max(_ALMOST_ONE)
        odds_rm = math.log(self.top_p) - math.log1p(-self.top_p) - torch.logit(before_rm)
        below_edge_rm = values_rm - self.edge_b[rows_r, None]
        within_p_rm = torch.where(below_edge_rm < 0, torch.maximum(odds_rm, below_edge_rm), odds_rm)
        margins_rm = torch.minimum(margins_rm, within_p_rm)
        # Rounding may flip the sign of the margin of a token next to the edge.
        return torch.where(below_edge_rm < 0, margins_rm.clamp_max(0.0), margins_rm.clamp_min(0.0))


def mask_of(scaled_bv: torch.Tensor, parameters: SamplingParameters) -> Mask:
    """Returns the mask of each row of scaled logits, float32 [B, V]."""
    nothing_b = torch.full_like(scaled_bv[:, 0], -torch.inf)
    last_b, next_b = nothing_b, nothing_b
    head_bk = scaled_bv[:, :0]
    if parameters.top_k != NO_TOP_K:
        largest_bk = scaled_bv.topk(min(parameters.top_k + 1, scaled_bv.shape[1]), dim=1).values
        if parameters.top_k < scaled_bv.shape[1]:
            next_b = largest_bk[:, -1]
        head_bk = largest_bk[:, : parameters.top_k]
        last_b = head_bk[:, -1]
    if parameters.top_p == 1.0:
        return Mask(edge_b=last_b, last_b=last_b, next_b=next_b, head_bk=head_bk, before_bk=head_bk, top_p=1.0)
    head_bk, before_bk = _head(scaled_bv, head_bk, parameters.top_p)
    kept_b1 = (before_bk[:, :-1] < parameters.top_p).sum(1, keepdim=True)
    edge_b = head_bk.gather(1, kept_b1 - 1)[:, 0]
    return Mask(
        edge_b=edge_b, last_b=last_b, next_b=next_b, head_bk=head_bk, before_bk=before_bk, top_p=parameters.top_p
    )


def _head(scaled_bv: torch.Tensor, head_bk: torch.Tensor, top_p: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the largest values in falling order, enough to reach `top_p`, and the probability before each."""
    if head_bk.shape[1]:
        return head_bk, _sums(head_bk, head_bk.logsumexp(1))
    total_b = scaled_bv.logsumexp(1)
    head_bk = scaled_bv.topk(min(_FIRST_LOOK, scaled_bv.shape[1]), dim=1).values
    before_bk = _sums(head_bk, total_b)
    if bool((before_bk[:, -1] >= top_p).all()):
        return head_bk, before_bk
    head_bk = scaled_bv.sort(dim=1, descending=True).values
    return head_bk, _sums(head_bk, total_b)


def _sums(head_bk: torch.Tensor, total_b: torch.Tensor) -> torch.Tensor:
    """Returns the cumulative probability before each value and, as a last entry, that of all values."""
    return torch.nn.functional.pad((head_bk - total_b[:, None]).exp().cumsum(1), (1, 0))
