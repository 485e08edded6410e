"""Whether recorded tokens are as probable as draws are, taken together: the second line behind replay.

A draw's log-probability is, on average, minus the entropy of what it was drawn from, and it varies about that by a
known variance. Over many tokens the sum is all but normal, however the tokens of one answer depend on each other. So
greedy answers, a lower temperature or chosen answers are too probable, and another model's too improbable, without
anybody knowing the noise (the token sampling check of INTELLECT-2, arXiv 2505.07291, 2.3.2, asks the same of the
histogram). It says nothing about single tokens, and where the noise is known, replay says more.

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
    """By how much each token is more probable than a draw is on average, in log-probability, and a draw's variance.

    Args:
        softmax: Of scaled logits, of the whole vocabulary.
        own_r: The scaled logits of the recorded tokens.

    Returns:
        Two float32 [R].
    """
    mean_r = softmax.first_b / softmax.sum_b
    variance_r = softmax.second_b / softmax.sum_b - mean_r.square()
    return own_r - softmax.peak_b - mean_r, variance_r.clamp_min(0.0)


def deviations_of(answers: Iterable[tuple[NDArray[np.float32], NDArray[np.float32]]]) -> float | None:
    """How many standard deviations the tokens of all answers together are off; above 0 they are too probable.

    Args:
        answers: Of each its excess and its variance, float32 [T].

    Returns:
        None if nothing was drawn: every token was certain.
    """
    excess = variance = 0.0
    for one, of_draws in answers:
        excess += float(one.sum(dtype=np.float64))
        variance += float(of_draws.sum(dtype=np.float64))
    return excess / math.sqrt(variance) if variance > 0 else None
