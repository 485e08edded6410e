"""What the softmax of a row comes to, in one go through memory that is used again for the rows after it.

Shapes: b rows, v tokens of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import torch

from rollouts.sampling.sampler import check_normal

_LEAST = -1e4
"""A weight of 0 has no logarithm, and counts nothing whatever stands for it."""


@dataclass(frozen=True, slots=True)
class Softmax:
    """The sums over each row's tokens; float32 [B]. A token's weight is e to the power of what it is below the largest.

    Args:
        peak_b: The largest scaled logit.
        sum_b: Of the weights, 1 or more.
        first_b: Of the weights times by how much each token is below the largest, from -1e4 to 0.
        second_b: Of the weights times the square of that.
    """

    peak_b: torch.Tensor
    sum_b: torch.Tensor
    first_b: torch.Tensor
    second_b: torch.Tensor

    @classmethod
    def room(cls, rows: int, *, device: torch.device) -> Self:
        """Of so many rows, to be filled by `weigh`."""
        return cls(*torch.empty((len(fields(cls)), rows), device=device))

    def __getitem__(self, here: slice) -> Softmax:
        """Some of the rows, in the same memory."""
        return Softmax(self.peak_b[here], self.sum_b[here], self.first_b[here], self.second_b[here])

    def totals(self) -> torch.Tensor:
        """What turns scaled logits into log-probabilities, float32 [B].

        Raises:
            NotANumber: A row has a NaN, a positive infinity, or only negative ones.
        """
        return check_normal(self.sum_b.log() + self.peak_b)


def weigh(scaled_bv: torch.Tensor, softmax: Softmax, room_2bv: torch.Tensor) -> torch.Tensor:
    """Fills in the sums of rows of scaled logits, float32, and returns the weights themselves, [B, V].

    Args:
        scaled_bv: Scaled logits.
        softmax: Of so many rows.
        room_2bv: Memory, float32 [2, B, V]: the weights are its first half, and its second half is free afterwards.
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
        np.vecdot(one_bv.numpy(), other_bv.numpy(), out=out_b.numpy())  # reads both once, and writes nothing else
    else:
        torch.linalg.vecdot(one_bv, other_bv, out=out_b)
