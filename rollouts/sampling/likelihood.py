"""Tests whether recorded tokens are as probable as honest draws: the fallback if replay is impossible.

The expected log-probability of a draw is minus the entropy of its distribution, and its variance is known. Over many
tokens the sum of the differences from the expected values is nearly normal, even though the tokens of one answer depend
on each other. Greedy answers, answers at a lower temperature and selected answers are too probable, and another model's
answers are too improbable. The test does not need the noise. (The token sampling check of INTELLECT-2, arXiv
2505.07291, 2.3.2, does the same with a histogram.) It can't judge single tokens; if the noise is known, replay is
stronger.

Shapes: r rows of any answers, v tokens of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from rollouts.sampling.softmax import Softmax


def surprise(softmax: Softmax, own_r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns each token's log-probability minus its expected value, and the variance of a draw.

    Args:
        softmax: Softmax of scaled logits over the whole vocabulary.
        own_r: The scaled logits of the recorded tokens.

    Returns:
        The difference (called excess) and the variance, float32 [R] each.
    """
    mean_r = softmax.first_b / softmax.sum_b
    variance_r = softmax.second_b / softmax.sum_b - mean_r.square()
    return own_r - softmax.peak_b - mean_r, variance_r.clamp_min(0.0)


def deviations_of(answers: Iterable[tuple[NDArray[np.float32], NDArray[np.float32]]]) -> float | None:
    """Returns the z-score of all answers' tokens together; positive if they are too probable.

    Args:
        answers: Excess and variance of each answer, float32 [T].

    Returns:
        None if the variance is 0, because every token was certain.
    """
    excess = variance = 0.0
    for one, of_draws in answers:
        excess += float(one.sum(dtype=np.float64))
        variance += float(of_draws.sum(dtype=np.float64))
    return excess / math.sqrt(variance) if variance > 0 else None
