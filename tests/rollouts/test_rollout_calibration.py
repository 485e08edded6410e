"""Limits of whole files: found by version before architecture, measured with headroom, and built in for float32."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.calibration.limits import (
    FLOAT32_SAMPLING,
    RolloutCalibration,
    SamplingLimits,
    float32_limits,
    model_names,
)
from rollouts.models.facts import read_model
from rollouts.precision import Arithmetic, Dtype, EngineName
from rollouts.sampling.replay import Replay
from rollouts.toploc import BadCalibration, Thresholds

SINGLE = Arithmetic(engine=EngineName.TORCH, dtype=Dtype.FLOAT32)
HALF = Arithmetic(engine=EngineName.TORCH, dtype=Dtype.BFLOAT16)


def test_a_models_own_entry_precedes_that_of_its_architecture(qwen2: Path) -> None:
    own, architecture = model_names(read_model(qwen2), digest="0x" + "ab" * 32)
    assert (own, architecture) == ("ab" * 16, "qwen2-h96-l2-v64")
    entries = tuple(float32_limits((name,)) for name in (architecture, own))
    calibration = RolloutCalibration.from_json(RolloutCalibration(entries=entries).to_json())
    found = calibration.limits_for((own, architecture), prover=SINGLE, verifier=SINGLE)
    assert found == entries[1]
    assert calibration.limits_for((own, architecture), prover=HALF, verifier=SINGLE) is None
    assert calibration.limits_for(("other",), prover=SINGLE, verifier=SINGLE) is None


@pytest.mark.parametrize(("share", "tokens", "most"), [(0.0, 1000, 0), (0.001, 10, 1), (0.001, 5000, 6), (1.0, 5, 6)])
def test_a_short_file_may_have_one_mismatch_if_any_are_allowed(share: float, tokens: int, most: int) -> None:
    assert SamplingLimits(mismatch_share=share, largest=1.0, largest_sum=1.0).mismatches(tokens) == most


def test_limits_are_the_worst_values_of_honest_files_times_the_headroom() -> None:
    honest = [
        Replay(tokens=100, mismatches=2, largest=0.5, largest_sum=0.6, sum=0.7),
        Replay(tokens=100, mismatches=1, largest=0.2, largest_sum=0.9, sum=0.9),
    ]
    limits = SamplingLimits.around(honest, headroom=2.0)
    assert (limits.mismatch_share, limits.largest, limits.largest_sum) == (0.04, 1.0, 1.8)
    assert (limits.mismatches(25), limits.widened(2).mismatches(25)) == (1 + 3, 2 + 6), "with spare mismatches"


def test_the_widest_possible_limits_can_still_be_widened_by_the_margin() -> None:
    widest = SamplingLimits(mismatch_share=1.0, spare=1000, largest=1.0, largest_sum=1.0).widened(4)
    assert (widest.mismatch_share, widest.spare, widest.largest) == (1.0, 1024, 4.0)


def test_measured_limits_are_at_least_those_of_float32() -> None:
    clean = Replay(tokens=100, mismatches=0, largest=0.0, largest_sum=0.0, sum=0.0)
    assert SamplingLimits.around([clean], headroom=2.0) == FLOAT32_SAMPLING


@given(st.integers(1, 200), st.integers(1, 200))
def test_a_file_of_fewer_rows_may_scatter_more_and_a_single_row_like_a_sample(one: int, other: int) -> None:
    entry = next(each for each in RolloutCalibration.shipped().entries if each.prover == HALF)
    assert entry.rows == 64
    fewer, more = sorted((one, other))
    wide, narrow = entry.file_of(fewer), entry.file_of(more)
    for name in Thresholds.model_fields:
        assert getattr(entry.file, name) <= getattr(narrow, name) <= getattr(wide, name)
        assert getattr(wide, name) <= max(getattr(entry.sample, name), getattr(entry.file, name)) + 1e-9
    assert entry.file_of(1).distance_mean == pytest.approx(entry.sample.distance_mean)
    assert entry.file_of(64) == entry.file_of(0) == entry.file
    assert entry.logprob_mean_of(16) == pytest.approx(2 * entry.logprobs.mean)
    assert entry.logprob_mean_of(64) == entry.logprob_mean_of(640) == entry.logprobs.mean


def test_the_shipped_limits_are_readable_and_include_bfloat16() -> None:
    shipped = RolloutCalibration.shipped()
    assert {one.prover.dtype for one in shipped.entries} == set(Dtype)
    assert all(one.files > 1 and one.headroom > 1 for one in shipped.entries)
    both = [(one.prover.engine, one.verifier.dtype) for one in shipped.entries if one.prover.dtype is Dtype.BFLOAT16]
    assert sorted(both) == sorted((engine, dtype) for engine in EngineName for dtype in Dtype)


def test_bfloat16_limits_come_from_enough_honest_files() -> None:
    """Of 128 files of which half had the same draws, one honest file in 429 exceeded twice the largest."""
    half = [one for one in RolloutCalibration.shipped().entries if one.prover.dtype is Dtype.BFLOAT16]
    assert all(one.files >= 400 and one.headroom == 2 for one in half)
    assert all(one.sampling.largest > 0.2 for one in half)


def test_limits_for_large_vllm_bfloat16_files_are_below_the_error_of_8_bit_weights() -> None:
    """On the devnet's base proofs of 8-bit weights are off by 1.5 units on average, and honest ones by 0.8."""
    [scatter] = [
        one.scatter
        for one in RolloutCalibration.shipped().entries
        if (one.prover.engine, one.verifier.dtype) == (EngineName.VLLM, Dtype.BFLOAT16)
    ]
    assert scatter is not None
    assert scatter.groups >= 1000
    assert scatter.distance_mean < scatter.distance_of(rows=1024, groups=64) < 1.4


def test_a_calibration_of_format_1_is_read_without_scatter_and_later_ones_have_format_2() -> None:
    """Software for format 1 refuses format 2, because it would accept files that only the new limits reject."""
    entry = float32_limits(("tiny",)).model_dump(mode="json", exclude={"scatter"})
    before = RolloutCalibration.from_json(json.dumps({"format": 1, "entries": [entry]}).encode())
    assert (before.format, before.entries[0].scatter) == (1, None)
    assert RolloutCalibration(entries=before.entries).format == 2
    with pytest.raises(BadCalibration, match="format"):
        RolloutCalibration.from_json(json.dumps({"format": 3, "entries": [entry]}).encode())


def test_an_invalid_calibration_is_refused() -> None:
    with pytest.raises(BadCalibration, match="Field required"):
        RolloutCalibration.from_json(b'{"entries": [{"model": "a"}]}')
