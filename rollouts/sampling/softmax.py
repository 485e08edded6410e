"""Sums over the tokens of softmax rows, computed in one pass in reusable memory.

Shapes: b rows, v tokens of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import torch

from rollouts.sampling.sampler import check_normal

_LEAST = -1e4
"""Lower bound of logarithms of weights. It replaces -inf for a weight of 0, which contributes 0 to every sum."""


@dataclass(frozen=True, slots=True)
class Softmax:
    """Sums over each row's tokens, float32 [B]. A token's weight is exp(scaled logit - largest).

    Args:
        peak_b: The largest scaled logit.
        sum_b: Sum of the weights, at least 1.
        first_b: Sum of the weights times (scaled logit - largest), clamped from -1e4 to 0.
        second_b: Sum of the weights times the square of that clamped difference.
    """

    peak_b: torch.Tensor
    sum_b: torch.Tensor
    first_b: torch.Tensor
    second_b: torch.Tensor

    @classmethod
    def room(cls, rows: int, *, device: torch.device) -> Self:
        """Allocates sums for this many rows, to be filled by `weigh`."""
        return cls(*torch.empty((len(fields(cls)), rows), device=device))

    def __getitem__(self, here: slice) -> Softmax:
        """Returns a view of some rows."""
        return Softmax(self.peak_b[here], self.sum_b[here], self.first_b[here], self.second_b[here])

    def totals(self) -> torch.Tensor:
        """Returns the log-sum-exp of each row of scaled logits, float32 [B].

        Raises:
            NotANumber: A row has NaN or +inf, or only -inf.
        """
        return check_normal(self.sum_b.log() + self.peak_b)


def weigh(scaled_bv: torch.Tensor, softmax: Softmax, room_2bv: torch.Tensor) -> torch.Tensor:
    """Fills in the sums of rows of scaled logits, float32, and returns the weights, [B, V].

    Args:
        scaled_bv: Scaled logits.
        softmax: Sums to fill, for as many rows.
        room_2bv: Scratch memory, float32 [2, B, V]: the weights are its first half; its second half is free afterwards.
    """
    weights_bv, below_bv = room_2bv.unbind()
    torch.amax(scaled_bv, 1, out=softmax.peak_b)
    torch.sub(scaled_bv, softmax.peak_b[:, None], out=below_bv).clamp_(min=_LEAST)
    torch.sum(torch.exp(below_bv, out=weights_bv), 1, out=softmax.sum_b)
    _dots(weights_bv, below_bv, softmax.first_b)
    _dots(weights_bv, below_bv.square_(), softmax.second_b)
    return weights_bv


def _dots(one_bv: torch.Tensor, other_bv: torch.Tensor, out_b: torch.Tensor) -> None:
    if out_b.device.type == "cpu":
        np.vecdot(one_bv.numpy(), other_bv.numpy(), out=out_b.numpy())  # one pass without temporary arrays
    else:
        torch.linalg.vecdot(one_bv, other_bv, out=out_b)
