"""Learning rate schedules: pure functions of the step's number."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum


class LearningRateSchedule(StrEnum):
    """Decay of the learning rate after its warm-up."""

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
        step: From 0.
        steps: How many there are in all; later ones have the last one's rate.
        peak: The largest rate, which the last warm-up step has.
        schedule: How it falls from there.
        warm_up_steps: It rises linearly over so many steps, from one share of the peak to all of it.
        final_share: What share of the peak the fall ends at.
    """
    if step < warm_up_steps:
        return peak * (step + 1) / warm_up_steps
    falling = max(1, steps - 1 - warm_up_steps)
    done = min(1.0, (step - warm_up_steps) / falling)
    return peak * (final_share + (1.0 - final_share) * _REMAINING[schedule](done))
