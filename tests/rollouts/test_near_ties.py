"""Near-tie budgets over many files: honest nodes stay within them, and steering near-ties file by file exceeds them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rollouts.calibration.limits import RolloutCalibration, float32_limits
from rollouts.calibration.near_ties import DRIFT, MOST_FILES, MOST_TOKENS, NearTieCount, near_ties, newest, over_budget
from rollouts.calibration.noise_model import FALSE_ALARM

RATE, SIZE, TOKENS = 0.0025, 0.075, 3_000
"""Rate and size of near-ties of vLLM in bfloat16, and the tokens of a small model's file."""


def files_of(draw: np.random.Generator, count: int, *, rate: float = RATE, times: float = 1.0) -> list[NearTieCount]:
    """Returns files whose deviations are `times` as large as those of honest machines."""
    numbers = draw.poisson(rate * TOKENS, count)
    sums = times * draw.gamma(np.maximum(numbers, 1e-9), SIZE)
    return [NearTieCount(tokens=TOKENS, deviations=float(one), rate=RATE, size=SIZE) for one in sums]


@pytest.mark.parametrize("drift", [1.0, 1.2], ids=["as calibrated", "a fifth above"])
def test_honest_nodes_stay_within_the_near_tie_budget_after_every_file(drift: float) -> None:
    draw, alarms, judged = np.random.default_rng(7), 0, 0
    for _ in range(400):
        files = files_of(draw, 60, rate=drift * RATE)
        alarms += sum(bool(over_budget(files[:count])) for count in range(1, 61))
        judged += 60
    assert alarms <= 5 * FALSE_ALARM * judged + 1


@pytest.mark.parametrize(("times", "within"), [(2.0, 60), (3.0, 25), (5.0, 10)])
def test_a_node_that_steers_near_ties_exceeds_the_budget_after_few_files(times: float, within: int) -> None:
    draw = np.random.default_rng(3)
    for _ in range(20):
        files = files_of(draw, within, times=times)
        assert any(over_budget(files[:count]) for count in range(1, within + 1))


def test_a_rate_tolerated_in_one_file_is_rejected_over_many() -> None:
    one = NearTieCount(tokens=TOKENS, deviations=3 * RATE * TOKENS * SIZE, rate=RATE, size=SIZE)
    assert not over_budget([one])
    words = over_budget([one] * 12)
    assert "36000 tokens in the node's newest 12 files" in words
    assert "per 10,000 tokens" in words


def test_files_of_several_calibrations_are_counted_together() -> None:
    other = NearTieCount(tokens=TOKENS, deviations=0.0, rate=2 * RATE, size=SIZE / 2)
    assert not over_budget([other, replace(other, deviations=RATE * TOKENS * SIZE, rate=RATE, size=SIZE)])
    assert over_budget([other, replace(other, deviations=100.0)])


def test_the_counted_files_are_bounded_in_number_and_tokens() -> None:
    small = NearTieCount(tokens=1, deviations=0.0, rate=RATE, size=SIZE)
    large = replace(small, tokens=MOST_TOKENS)
    assert newest([small] * 1_000) == MOST_FILES
    assert newest([small, large]) == 1
    assert newest([large, small, small]) == 2
    assert newest([replace(large, tokens=10 * MOST_TOKENS)]) == 1


def test_a_files_near_tie_counts_use_its_calibration() -> None:
    entries = RolloutCalibration.shipped().entries
    with_scatter = next(one for one in entries if one.scatter is not None)
    found = near_ties(tokens=10, deviations=0.1, limits=with_scatter)
    assert with_scatter.scatter is not None
    assert found is not None
    assert (found.rate, found.size) == (with_scatter.scatter.mismatch_rate, with_scatter.scatter.mismatch_size)
    without = next(one for one in entries if one.scatter is None and one.headroom > 1)
    found = near_ties(tokens=10, deviations=0.1, limits=without)
    assert found is not None
    assert (found.rate, found.size) == (without.sampling.mismatch_share / 2, without.sampling.largest / 2)
    assert near_ties(tokens=0, deviations=0.0, limits=float32_limits(("x",))) is None


def test_the_budget_tolerates_a_varying_rate() -> None:
    assert 1.2 < DRIFT < 1.5
