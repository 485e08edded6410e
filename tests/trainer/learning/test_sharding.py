"""Two processes with half of the weights each learn the same as one process with all weights."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.kit.training_groups import fresh
from tests.trainer.learning.sharded_run import RESUMED_AT, RUNS, STEPS, batches, results, settings_of
from trainer.learning.learner import Learner

TOLERANCE = {"muon": 0.2}
"""Allowed error of a weight relative to its change, 0.001 by default: gradients are summed in another order. Muon
computes in bfloat16, where the order has a larger effect."""


def alone(folder: Path, run: str) -> Learner:
    return Learner(fresh(folder), settings_of(run), reference=fresh(folder))


@pytest.fixture(scope="module")
def sharded(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs two processes; returns the folder of their results. They also restored the state of one process after two
    steps.
    """
    out = tmp_path_factory.mktemp("sharded")
    first = alone(llama, "adamw")
    for step, groups in enumerate(batches(llama)[:RESUMED_AT]):
        first.learn(groups, step=step)
    save_file(dict(first.state().tensors), out / "state.safetensors")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    module = ["-m", "tests.trainer.learning.sharded_run", str(llama), str(out)]
    done = subprocess.run(
        [*command, *module],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ".", "TMPDIR": str(out)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return out


def of_rank(out: Path, rank: int) -> dict[str, dict[str, Any]]:
    return {each["run"]: each for each in json.loads((out / f"{rank}.json").read_text())}


@pytest.mark.parametrize("run", RUNS)
def test_two_processes_learn_the_same_as_one(llama: Path, sharded: Path, run: str) -> None:
    learner = alone(llama, run)
    expected = results(llama, run, learner)["steps"]
    found = of_rank(sharded, 0)[run]["steps"]
    assert found == of_rank(sharded, 1)[run]["steps"], "processes report different steps"
    for one, two in zip(expected, found, strict=True):
        assert two["tokens"] == one["tokens"]
        assert {name: value for name, value in two.items() if name != "rows_tokens"} == pytest.approx(
            {name: value for name, value in one.items() if name != "rows_tokens"}, rel=2e-3, abs=1e-4
        )
    start, found_weights = alone(llama, run).weights(), load_file(sharded / f"{run}.safetensors")
    for name, weight in learner.weights().items():
        way = (weight - start[name]).norm()
        assert (found_weights[name] - weight).norm() < TOLERANCE.get(run, 1e-3) * way, name


def test_a_state_moves_from_one_process_to_two_and_back(llama: Path, sharded: Path) -> None:
    learner = alone(llama, "adamw")
    results(llama, "adamw", learner)
    expected = learner.state()
    found = load_file(sharded / "resumed.safetensors")
    assert set(found) == set(expected.tensors)
    for name, tensor in expected.tensors.items():
        if name != "rng":
            torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-5)
    learner.restore(dataclasses.replace(expected, tensors=found))
    assert len(of_rank(sharded, 0)["resumed"]["steps"]) == STEPS - RESUMED_AT


def test_processes_with_different_groups_report_an_error(sharded: Path) -> None:
    assert all("different groups" in of_rank(sharded, rank)["different"]["error"] for rank in range(2))


def test_a_step_with_nan_is_skipped_by_all_processes_or_by_none(sharded: Path) -> None:
    first, second = (of_rank(sharded, rank)["no-number"] for rank in range(2))
    assert first == second, "the finding of process 0 decides"
    assert (first["everywhere"], first["here"], first["skipped"]) == (True, False, 1)
