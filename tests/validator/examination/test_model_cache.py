"""Weights within a memory budget: the least used are evicted first, and no version is mistaken for another."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from structlog.testing import capture_logs

from protocol.identifiers import digest
from rollouts.checks import CheckedVersion
from rollouts.errors import BadVersionFolder, OutOfMemory
from rollouts.precision import Dtype
from tests.kit.rollout_files import as_version
from tests.kit.tiny_model import tiny_folder
from validator.examination.model_cache import ModelCache
from validator.examination.process import weights_of
from validator.service import budgeted
from validator.settings import ValidatorSettings

CPU = torch.device("cpu")


def test_weights_stay_within_the_budget_and_the_least_used_are_evicted_first(tmp_path: Path) -> None:
    one, other = (as_version(tiny_folder(tmp_path / str(seed), seed=seed)) for seed in (1, 2))
    size = 4 * one.model.parameters
    models = ModelCache(CPU, budget=size + size // 2)
    first = models.policy(one, Dtype.FLOAT32)
    half = models.policy(one, Dtype.BFLOAT16)
    assert models.held == size + size // 2
    assert models.policy(one, Dtype.FLOAT32) is first
    models.policy(other, Dtype.BFLOAT16)  # evicts the bfloat16 weights, which were used least recently
    assert models.held == size + size // 2
    assert models.policy(one, Dtype.FLOAT32) is first
    assert models.policy(one, Dtype.BFLOAT16) is not half


def test_the_number_of_loaded_policies_is_bounded_at_any_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("validator.examination.model_cache.MOST_LOADED", 2)
    models = ModelCache(CPU, budget=1 << 40)
    versions = [as_version(tiny_folder(tmp_path / str(seed), seed=seed)) for seed in (1, 2, 3)]
    for each in versions:
        models.policy(each, Dtype.FLOAT32)
    assert models.held == 2 * 4 * versions[0].model.parameters


def test_a_version_beyond_the_budget_is_refused(version: CheckedVersion) -> None:
    with pytest.raises(OutOfMemory):
        ModelCache(CPU, budget=1000).policy(version, Dtype.FLOAT32)


def test_without_a_setting_a_version_over_the_budget_is_held_alone(tmp_path: Path) -> None:
    """The process's share of memory is an estimate, so a larger version is loaded if the device has room for it."""
    one, other = (as_version(tiny_folder(tmp_path / str(seed), seed=seed)) for seed in (1, 2))
    models = ModelCache(CPU, budget=1000, strict=False)
    for version in (one, other):
        models.policy(version, Dtype.FLOAT32)
        assert models.held == 4 * version.model.parameters


def test_a_folder_that_is_another_version_is_refused(version: CheckedVersion) -> None:
    models = ModelCache(CPU, budget=1000)
    assert models.version(version.digest, version.folder) is models.version(version.digest, version.folder)
    with pytest.raises(BadVersionFolder):
        models.version(digest(b"\1" * 32), version.folder)


@pytest.mark.parametrize(("told", "each"), [({}, 1000), ({"workers": 5}, 400), ({"policy_memory_bytes": 7}, 7)])
def test_workers_share_half_of_the_machines_memory_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: dict[str, int], each: int
) -> None:
    for module in ("service", "examination.process"):
        monkeypatch.setattr(f"validator.{module}.machine_memory", lambda: 4000)
    settings = ValidatorSettings.model_validate(
        {"pool_id": 1, "orchestrator": "http://127.0.0.1:1", "deployment": "x", "directory": tmp_path, **told}
    )
    with capture_logs() as logs:
        examiner = budgeted(settings)
    assert weights_of(examiner, CPU) == each
    line = next(line for line in logs if line["event"] == "weights-held")
    assert (line["bytes_per_worker"], line["memory_bytes"]) == (each, 4000)
    assert "versions-kept" in {line["event"] for line in logs}
