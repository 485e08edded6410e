"""Learning rate schedules: the rate as a function of the step number only."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum


class LearningRateSchedule(StrEnum):
    """Shape of the learning rate's decay after the warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


_REMAINING: dict[LearningRateSchedule, Callable[[float], float]] = {
    LearningRateSchedule.CONSTANT: lambda _: 1.0,
    LearningRateSchedule.LINEAR: lambda done: 1.0 - done,
    LearningRateSchedule.COSINE: lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}


def learning_rate(
    step: int,
    *,
    steps: int,
    peak: float,
    schedule: LearningRateSchedule,
    warm_up_steps: int = 0,
    final_share: float = 0.0,
) -> float:
    """Returns the learning rate of one step.

    Args:
        step: Number of the step, from 0.
        steps: Total number of steps; later steps have the last step's rate.
        peak: Maximum rate, reached in the last warm-up step.
        schedule: Shape of the decay.
        warm_up_steps: Number of steps over which the rate rises linearly, from peak / warm_up_steps to peak.
        final_share: Final rate as a share of the peak.
    """
    if step < warm_up_steps:
        return peak * (step + 1) / warm_up_steps
    falling = max(1, steps - 1 - warm_up_steps)
    done = min(1.0, (step - warm_up_steps) / falling)
    return peak * (final_share + (1.0 - final_share) * _REMAINING[schedule](done))
