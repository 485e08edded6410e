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

_LEAST_LOG = -1e4
"""A probability of 0 has no logarithm, and no weight either."""


def surprise(scaled_rv: torch.Tensor, own_r: torch.Tensor, total_r: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """By how much each token is more probable than a draw is on average, in log-probability, and a draw's variance.

    Args:
        scaled_rv: Logits over temperature, of the whole vocabulary.
        own_r: Those of the recorded tokens.
        total_r: The log-sums of the rows.

    Returns:
        Two float32 [R].
    """
    logs_rv = (scaled_rv - total_r[:, None]).clamp_min(_LEAST_LOG)
    weighted_rv = logs_rv.exp().mul_(logs_rv)
    mean_r = weighted_rv.sum(1)
    variance_r = weighted_rv.mul_(logs_rv).sum(1) - mean_r.square()
    return own_r - total_r - mean_r, variance_r.clamp_min(0.0)


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
