"""Limits of whole files by size: honest files rarely exceed them, and larger files have tighter limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.calibration.noise_model import FALSE_ALARM, GroupFigures, HonestNoise, equally_large

MEASURED = HonestNoise(
    distance_mean=0.8, distance_shape=2.7, mismatch_rate=0.003, mismatch_size=0.05, groups=800, group_rows=16
)
FILES = 100_000
"""Of this number of files, one exceeds a limit now and then."""


def honest_groups(count: int, *, seed: int, tokens: int = 100) -> list[GroupFigures]:
    """Returns groups with the scatter of `MEASURED`."""
    draw = np.random.default_rng(seed)
    distances = draw.gamma(MEASURED.distance_shape, MEASURED.distance_mean / MEASURED.distance_shape, count)
    numbers = draw.poisson(MEASURED.mismatch_rate * tokens, count)
    return [
        GroupFigures(
            rows=16,
            distance=float(distance),
            tokens=tokens,
            mismatches=int(number),
            deviations=float(draw.exponential(MEASURED.mismatch_size, number).sum()),
        )
        for distance, number in zip(distances, numbers, strict=True)
    ]


@pytest.mark.parametrize("groups", [1, 4, 64])
def test_honest_averages_of_proof_distances_rarely_exceed_the_limit(groups: int) -> None:
    shape = groups * MEASURED.distance_shape
    files = np.random.default_rng(groups).gamma(shape, MEASURED.distance_mean / shape, FILES)
    limit = MEASURED.distance_of(rows=16 * groups, groups=groups)
    assert (files > limit).sum() <= 5 * FALSE_ALARM * FILES + 2
    assert np.quantile(files, 1 - 1e-3) < limit < 1.7 * np.quantile(files, 1 - 1e-3), (
        "and it is no wider than necessary"
    )


@pytest.mark.parametrize(
    "sizes", [[10, *[1] * 15], [*range(1, 17)], [2**number for number in range(8)]], ids=["one", "rising", "doubling"]
)
def test_an_honest_file_of_unequal_groups_rarely_exceeds_the_limit(sizes: list[int]) -> None:
    of_groups = np.random.default_rng(len(sizes)).gamma(
        MEASURED.distance_shape, MEASURED.distance_mean / MEASURED.distance_shape, (FILES, len(sizes))
    )
    files = of_groups @ np.array(sizes) / sum(sizes)
    limit = MEASURED.distance_of(rows=16 * len(sizes), groups=equally_large(sizes))
    assert (files > limit).sum() <= 5 * FALSE_ALARM * FILES + 2
    assert (files > MEASURED.distance_of(rows=16 * len(sizes), groups=len(sizes))).sum() > 4 * FALSE_ALARM * FILES


@pytest.mark.parametrize(
    ("sizes", "groups"), [([], 0), ([0], 0), ([7], 1), ([5] * 9, 9), ([1000, 1], 1.001), ([2, 1, 1], 2)]
)
def test_unequal_groups_count_as_fewer_equal_ones(sizes: list[int], groups: float) -> None:
    assert equally_large(sizes) == pytest.approx(groups)


@pytest.mark.parametrize("tokens", [100, 1_000, 100_000])
def test_honest_sums_of_deviations_rarely_exceed_the_limit(tokens: int) -> None:
    draw = np.random.default_rng(tokens)
    numbers = draw.poisson(MEASURED.mismatch_rate * tokens, FILES)
    sums = draw.gamma(np.maximum(numbers, 1e-9), MEASURED.mismatch_size)  # a sum of that number of exponential values
    assert (sums > MEASURED.deviations_of(tokens)).sum() <= 5 * FALSE_ALARM * FILES + 2


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_a_larger_file_has_a_tighter_limit_and_never_below_the_honest_average(one: int, other: int) -> None:
    fewer, more = sorted((one, other))
    wide, narrow = (MEASURED.distance_of(rows=16 * groups, groups=groups) for groups in (fewer, more))
    assert MEASURED.distance_mean < narrow <= wide
    a_token = [MEASURED.deviations_of(100 * groups) / groups for groups in (fewer, more)]
    assert 100 * MEASURED.mismatch_rate * MEASURED.mismatch_size < a_token[1] <= a_token[0]


def test_rows_of_one_group_and_few_rows_of_many_have_wider_limits() -> None:
    whole = MEASURED.distance_of(rows=64, groups=4)
    assert MEASURED.distance_of(rows=64, groups=1) == MEASURED.distance_of(rows=16, groups=1) > whole
    assert MEASURED.distance_of(rows=6, groups=4) > MEASURED.distance_of(rows=16, groups=1)
    assert MEASURED.distance_of(rows=1, groups=1) < np.inf


def test_measured_noise_is_widened_slightly_and_covers_every_group() -> None:
    honest = honest_groups(2_000, seed=1)
    found = HonestNoise.around(honest)
    assert found is not None
    assert (found.groups, found.group_rows) == (2_000, 16)
    for name in ("distance_mean", "mismatch_rate", "mismatch_size"):
        assert 1 < getattr(found, name) / getattr(MEASURED, name) < 1.4, name
    assert found.distance_shape < MEASURED.distance_shape
    strange = GroupFigures(rows=16, distance=20.0, tokens=100, mismatches=1, deviations=3.0)
    covering = HonestNoise.around([*honest, strange])
    assert covering is not None
    assert covering.distance_of(rows=16, groups=1) >= strange.distance
    assert covering.deviations_of(100) >= strange.deviations


@pytest.mark.parametrize(
    "honest",
    [
        [],
        honest_groups(1, seed=2),
        [GroupFigures(rows=16, distance=0.0, tokens=9, mismatches=0, deviations=0.0)] * 9,
        [GroupFigures(rows=16, distance=at, tokens=9, mismatches=1, deviations=0.0) for at in (0.1, 0.2)],
    ],
)
def test_too_few_or_identical_groups_give_no_measurement(honest: list[GroupFigures]) -> None:
    assert HonestNoise.around(honest) is None


def test_nearly_equal_groups_give_a_valid_distribution() -> None:
    alike = [
        GroupFigures(rows=16, distance=0.1 + at * 1e-12, tokens=9, mismatches=1, deviations=0.1) for at in range(9)
    ]
    found = HonestNoise.around(alike)
    assert found is not None
    assert found.distance_of(rows=16, groups=1) == pytest.approx(0.1, rel=1e-3)


@given(st.floats(1, 100))
def test_all_limits_are_widened_together(factor: float) -> None:
    wide = MEASURED.widened(factor)
    assert wide.distance_of(rows=64, groups=4) == pytest.approx(factor * MEASURED.distance_of(rows=64, groups=4))
    assert wide.deviations_of(400) == pytest.approx(factor * MEASURED.deviations_of(400))


def test_the_widest_of_two_limits_accepts_all_that_either_accepts() -> None:
    first, second = (HonestNoise.around(honest_groups(50, seed=seed)) for seed in (3, 4))
    assert first is not None
    assert second is not None
    both = first.widest(second)
    for one in (first, second):
        for groups in (1, 4, 100):
            assert both.distance_of(rows=16 * groups, groups=groups) >= one.distance_of(rows=16 * groups, groups=groups)
            assert both.deviations_of(100 * groups) >= one.deviations_of(100 * groups)
    assert both.groups == 100
