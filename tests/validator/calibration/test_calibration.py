"""Calibration measures honest work, derives limits, and merges the entries of several machines."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from cli.lazy import mount
from cli.main import PARTS, app
from protocol.errors import InvalidInput
from rollouts.calibration.limits import FLOAT32_SAMPLING, RolloutCalibration
from rollouts.calibration.noise_model import HonestNoise
from rollouts.precision import Dtype, EngineName
from rollouts.toploc import ProofOutcome, judge
from tests.kit.rollout_files import as_version
from tests.kit.tiny_model import tiny_folder
from validator.calibration.honest import seed_of
from validator.calibration.limits import ArithmeticPair, merged
from validator.calibration.measuring import MeasuredEntry, Measurement, measure

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return as_version(tiny_folder(tmp_path_factory.mktemp("version") / "model")).folder


@pytest.fixture(scope="module")
def measured(model: Path) -> list[MeasuredEntry]:
    said: list[str] = []
    found = measure(Measurement(model=model, batches=(8, 3), files=2, groups=2), progress=said.append)
    assert said[0] == "torch in float32, batch 8: 1 of 2 files"
    return found


def test_every_dtype_is_checked_against_itself_and_float32(measured: list[MeasuredEntry]) -> None:
    pairs = {(one.limits.prover.dtype, one.limits.verifier.dtype) for one in measured}
    single, half = Dtype.FLOAT32, Dtype.BFLOAT16
    assert pairs == {(single, single), (half, half), (half, single)}
    assert {(one.limits.files, one.limits.samples) for one in measured} == {(4, 32)}


def test_measured_files_are_within_their_limits_by_the_headroom(measured: list[MeasuredEntry]) -> None:
    for one in measured:
        limits = one.limits
        assert one.figures.rejected(limits) == (0, 0)
        assert all(judge(sample, limits.sample).outcome is ProofOutcome.PASSED for sample in one.figures.samples)
        assert limits.logprobs.largest >= 2 * one.figures.largest_error
        assert limits.sampling.largest >= max(FLOAT32_SAMPLING.largest, 2 * one.figures.largest_gap)


def test_entries_of_other_machines_are_kept_and_equal_ones_replaced(measured: list[MeasuredEntry]) -> None:
    entries = [one.limits for one in measured]
    elsewhere = entries[0].model_copy(
        update={"prover": ArithmeticPair.of(EngineName.VLLM, Dtype.FLOAT32, verified_in=Dtype.FLOAT32).prover}
    )
    before = merged(None, [elsewhere, entries[1].model_copy(update={"files": 1})])
    after = merged(before, entries)
    assert len(after.entries) == 4
    assert elsewhere in after.entries
    assert {one.files for one in after.entries} == {4}
    assert RolloutCalibration.from_json(after.to_json()) == after


def test_a_widened_entry_accepts_all_that_either_accepted(measured: list[MeasuredEntry]) -> None:
    one = measured[0].limits
    [wide] = merged(merged(None, [one]), [one.widened(3)], widen=True).entries
    assert (wide.files, wide.samples) == (2 * one.files, 2 * one.samples)
    assert (wide.sample, wide.sampling, wide.logprobs) == (
        one.widened(3).sample,
        one.widened(3).sampling,
        one.widened(3).logprobs,
    )
    assert merged(merged(None, [one.widened(3)]), [one], widen=True).entries[0].file == wide.file


def test_scatter_is_measured_by_group_and_unknown_if_one_measurement_lacks_it(
    measured: list[MeasuredEntry],
) -> None:
    one = next(one for one in measured if one.limits.prover.dtype is Dtype.BFLOAT16)
    assert {group.rows for group in one.figures.groups} == {4}
    assert sum(group.tokens for group in one.figures.groups) == one.figures.tokens
    scatter = HonestNoise(
        distance_mean=1, distance_shape=1, mismatch_rate=0.01, mismatch_size=0.1, groups=8, group_rows=4
    )
    with_it = one.limits.model_copy(update={"scatter": scatter})
    without = one.limits.model_copy(update={"scatter": None})
    for entries in ((with_it, without), (without, with_it)):
        [both] = merged(merged(None, [entries[0]]), [entries[1]], widen=True).entries
        assert both.scatter is None
    [both] = merged(merged(None, [with_it]), [with_it.widened(2)], widen=True).entries
    assert both.scatter == scatter.widened(2).model_copy(update={"groups": 16})


def test_every_generation_method_has_its_own_reproducible_draws() -> None:
    """With common seeds, files of another batch size would repeat the same near-ties instead of adding new ones."""
    ways = ["torch in bfloat16, batch 64", "torch in bfloat16, batch 1", "vllm in bfloat16, batch 64"]
    seeds = [seed_of(way, number) for way in ways for number in range(8)]
    assert len(set(seeds)) == len(seeds)
    assert seeds == [seed_of(way, number) for way in ways for number in range(8)]


def test_an_empty_measurement_is_refused(model: Path) -> None:
    with pytest.raises(InvalidInput):
        measure(replace(Measurement(model=model), batches=()), progress=print)


def test_the_command_writes_the_file_and_reports_where_another_interpreter_is_needed(
    model: Path, tmp_path: Path
) -> None:
    mount(app, PARTS, ["validator"])
    out = tmp_path / "calibration.json"
    asked = ["validator", "calibrate", "--model", str(model), "--dtypes", "float32", "--samples", "4", "--groups", "1"]
    done = CliRunner().invoke(app, [*asked, "--batches", "4", "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)[0]["files"] == 1
    assert len(RolloutCalibration.read(out).entries) == 1
    assert "fewer than 32 files" in done.stderr
    refused = CliRunner().invoke(app, [*asked, "--engines", "vllm"])
    assert refused.exit_code == 1
    assert "its own Python environment" in refused.stderr


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (["--engines", "torch,vllm"], "its own Python environment"),
        (["--out", "no/such/folder/c.json"], "no/such/folder"),
    ],
    ids=["an engine that is not installed", "no output path"],
)
def test_options_that_would_spoil_a_calibration_are_refused_before_measuring(
    told: list[str], words: str, model: Path
) -> None:
    mount(app, PARTS, ["validator"])
    asked = ["validator", "calibrate", "--model", str(model), "--dtypes", "float32", "--samples", "1", "--groups", "1"]
    refused = CliRunner().invoke(app, [*asked, "--batches", "1", *told])
    assert refused.exit_code == 1
    assert words in refused.stderr
    assert "1 of 1 files" not in refused.stderr
