"""Thresholds accept the statistics of honest proofs, and malformed proofs never pass."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from protocol.errors import InvalidInput
from rollouts.toploc import (
    Aggregate,
    Excess,
    Malformed,
    ProofErrors,
    ProofOutcome,
    ProofResult,
    Thresholds,
    aggregate,
    build,
    judge,
    verify,
)
from rollouts.toploc.thresholds import NAMES
from tests.rollouts.toploc.states import normal_states

NONE = Thresholds(**dict.fromkeys(NAMES, 0.0))


@st.composite
def measured(draw: st.DrawFn) -> ProofResult:
    """Returns a result as from a comparison."""
    exponents = draw(st.integers(0, 128))
    return ProofResult(
        malformed=None,
        points=128,
        exponent_mismatches=exponents,
        sign_mismatches=draw(st.integers(0, 128)),
        mantissa_total=draw(st.integers(0, 127 * (128 - exponents))),
        mantissa_median=draw(st.integers(0, 254)) / 2 if exponents < 128 else 128.0,
        distance_total=draw(st.integers(0, 128 * 128)),
    )


def result(**changes: float) -> ProofResult:
    """Returns a proof result without errors except the given ones."""
    values = {"exponent_mismatches": 0, "sign_mismatches": 0, "mantissa_total": 0, "mantissa_median": 0.0}
    return ProofResult(malformed=None, **{"points": 128, "distance_total": 0, **values, **changes})  # type: ignore[arg-type] # floats and integers by name


def test_proofs_without_error_pass_even_with_zero_tolerance() -> None:
    states = normal_states(70, 64)
    together = aggregate(verify(states, build(states)))
    assert together == Aggregate(3, 3 * 128, (), ProofErrors(**dict.fromkeys(NAMES, 0.0)))
    assert judge(together, NONE).outcome is ProofOutcome.PASSED


def test_statistics_are_means_over_points_and_the_worst_proof() -> None:
    figures = aggregate([
        result(exponent_mismatches=28, sign_mismatches=2, mantissa_total=50, mantissa_median=0.5, distance_total=640),
        result(exponent_mismatches=0, sign_mismatches=0, mantissa_total=64, mantissa_median=1.0, distance_total=64),
        result(points=64, sign_mismatches=6, mantissa_total=0, mantissa_median=7.0, distance_total=0),
    ]).figures  # fmt: skip
    assert figures == ProofErrors(
        exponent_mismatches=28 / 320,
        sign_mismatches=8 / 320,
        mantissa_mean=114 / 292,
        mantissa_median=1.0,
        distance_mean=704 / 320,
        distance_worst=5.0,
    )


@pytest.mark.parametrize("name", NAMES)
def test_each_statistic_fails_above_its_threshold_and_passes_at_it(name: str) -> None:
    figures = ProofErrors(**{**dict.fromkeys(NAMES, 0.0), name: 0.5})
    together = Aggregate(1, 128, (), figures)
    assert judge(together, NONE.model_copy(update={name: 0.5})).outcome is ProofOutcome.PASSED
    judgement = judge(together, NONE.model_copy(update={name: 0.25}))
    assert (judgement.outcome, judgement.excesses) == (ProofOutcome.STATISTICAL, (Excess(name, 0.5, 0.25),))


@given(sound=st.lists(measured(), max_size=4), reason=st.sampled_from(Malformed), place=st.integers(0, 4))
def test_one_malformed_proof_is_an_exact_failure_at_any_tolerance(
    sound: list[ProofResult], reason: Malformed, place: int
) -> None:
    widest = Thresholds(**{name: 1.0 if name.endswith("mismatches") else 128.0 for name in NAMES})
    judgement = judge(aggregate([*sound[:place], ProofResult.refused(reason), *sound[place:]]), widest)
    assert (judgement.outcome, judgement.malformed) == (ProofOutcome.EXACT, (reason,))


def test_only_malformed_proofs_have_the_worst_statistics() -> None:
    figures = aggregate([ProofResult.refused(Malformed.LENGTH)] * 2).figures
    assert [getattr(figures, name) for name in NAMES] == [1, 1, 128, 128, 128, 128]


def test_without_an_equal_exponent_the_mantissa_error_is_the_worst() -> None:
    together = aggregate([result(exponent_mismatches=128, mantissa_median=128.0, distance_total=128 * 128)])
    assert together.figures.mantissa_mean == 128


def test_an_empty_set_of_proofs_cannot_be_judged() -> None:
    with pytest.raises(InvalidInput, match="no proof results"):
        aggregate([])


@given(honest=st.lists(st.lists(measured(), min_size=1, max_size=4).map(aggregate), min_size=1, max_size=5),
       headroom=st.floats(1, 10))  # fmt: skip
def test_files_used_for_calibration_pass_its_thresholds(honest: list[Aggregate], headroom: float) -> None:
    thresholds = Thresholds.around(honest, headroom=headroom)
    assert all(judge(each, thresholds).outcome is ProofOutcome.PASSED for each in honest)


@pytest.mark.parametrize(
    ("honest", "headroom"),
    [([], 1.5), ([aggregate([ProofResult.refused(Malformed.MISSING)])], 1.5), ([aggregate([result()])], 0.9),
     ([aggregate([result()])], float("nan"))],
    ids=["no results", "a malformed one", "too little headroom", "no number"],
)  # fmt: skip
def test_bad_measurements_give_no_thresholds(honest: list[Aggregate], headroom: float) -> None:
    with pytest.raises(InvalidInput, match="thresholds can't be derived"):
        Thresholds.around(honest, headroom=headroom)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_threshold_outside_the_range_of_its_statistic_is_refused(value: float) -> None:
    with pytest.raises(ValidationError):
        Thresholds(**{**dict.fromkeys(NAMES, 0.0), "sign_mismatches": value})


def test_rounding_noise_passes_a_calibrated_threshold_and_another_model_does_not() -> None:
    def noisy(seed: int) -> Aggregate:
        states = normal_states(128, 256, seed=seed, dtype=torch.float32)
        other = states * (1 + 2e-3 * normal_states(128, 256, seed=seed + 100, dtype=torch.float32))
        return aggregate(verify(other, build(states)))

    thresholds = Thresholds.around([noisy(seed) for seed in range(8)], headroom=1.5)
    assert judge(noisy(9), thresholds).outcome is ProofOutcome.PASSED
    stranger = aggregate(verify(normal_states(128, 256, seed=1), build(normal_states(128, 256, seed=2))))
    assert judge(stranger, thresholds).outcome is ProofOutcome.STATISTICAL


@given(st.lists(measured(), min_size=1, max_size=3), st.floats(1, 10))
def test_wider_thresholds_accept_all_that_narrower_ones_accept(results: list[ProofResult], factor: float) -> None:
    together = aggregate(results)
    around = Thresholds.around([together], headroom=1)
    assert judge(together, around.widened(factor)).outcome is ProofOutcome.PASSED
    for name, value in around.widened(factor):
        assert value >= getattr(around, name)


def test_zero_thresholds_are_widened_by_the_smallest_step_of_each_statistic() -> None:
    wide = NONE.widened(4)
    assert (wide.mantissa_median, wide.sign_mismatches, wide.distance_mean) == (1.0, 1 / 128, 0.0)
