"""The learning rate is a function of the step: it rises to its peak, falls to its final value, and stays there."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.learning.schedules import LearningRateSchedule, learning_rate


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        (LearningRateSchedule.CONSTANT, 60, 1.0),
        (LearningRateSchedule.LINEAR, 60, 0.5 + 0.5 * 0.2),
        (LearningRateSchedule.COSINE, 60, 0.5 + 0.5 * 0.2),
        (LearningRateSchedule.LINEAR, 85, 0.25 + 0.75 * 0.2),
        (LearningRateSchedule.COSINE, 110, 0.2),
        (LearningRateSchedule.LINEAR, 400, 0.2),
        (LearningRateSchedule.COSINE, 0, 0.1),
        (LearningRateSchedule.COSINE, 9, 1.0),
    ],
)
def test_learning_rates_follow_their_schedule(schedule: LearningRateSchedule, step: int, expected: float) -> None:
    found = learning_rate(step, steps=111, peak=1.0, schedule=schedule, warm_up_steps=10, final_share=0.2)
    assert found == pytest.approx(expected)


@given(
    st.sampled_from(LearningRateSchedule), st.integers(1, 300), st.integers(0, 400), st.floats(0, 1), st.floats(1e-8, 1)
)
def test_learning_rates_rise_once_and_never_exceed_the_peak(
    schedule: LearningRateSchedule, steps: int, warm_up: int, final: float, peak: float
) -> None:
    rates = [
        learning_rate(step, steps=steps, peak=peak, schedule=schedule, warm_up_steps=warm_up, final_share=final)
        for step in range(steps)
    ]
    assert all(0 <= rate <= peak * (1 + 1e-12) for rate in rates)
    rising, falling = rates[:warm_up], rates[warm_up:]
    assert rising == sorted(rising)
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(falling))
