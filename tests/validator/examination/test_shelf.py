"""Weights within a budget: the least used go first, and nothing is taken for something else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from protocol.identifiers import digest
from rollouts.checks import CheckedVersion
from rollouts.engines.errors import OutOfMemory
from rollouts.engines.interface import Dtype
from rollouts.errors import BadVersionFolder
from tests.rollouts.made import as_version
from tests.rollouts.tiny import tiny_folder
from validator.examination.shelf import Shelf

CPU = torch.device("cpu")


def test_weights_stay_within_the_budget_and_the_least_used_go_first(tmp_path: Path) -> None:
    one, other = (as_version(tiny_folder(tmp_path / str(seed), seed=seed)) for seed in (1, 2))
    size = 4 * one.model.parameters
    shelf = Shelf(CPU, budget=size + size // 2)
    first = shelf.policy(one, Dtype.FLOAT32)
    half = shelf.policy(one, Dtype.BFLOAT16)
    assert shelf.held == size + size // 2
    assert shelf.policy(one, Dtype.FLOAT32) is first
    shelf.policy(other, Dtype.BFLOAT16)  # takes the place of the half that was not used since
    assert shelf.held == size + size // 2
    assert shelf.policy(one, Dtype.FLOAT32) is first
    assert shelf.policy(one, Dtype.BFLOAT16) is not half


def test_a_version_beyond_the_budget_is_refused(version: CheckedVersion) -> None:
    with pytest.raises(OutOfMemory):
        Shelf(CPU, budget=1000).policy(version, Dtype.FLOAT32)


def test_a_folder_that_is_another_version_is_refused(version: CheckedVersion) -> None:
    shelf = Shelf(CPU, budget=1000)
    assert shelf.version(version.digest, version.folder) is shelf.version(version.digest, version.folder)
    with pytest.raises(BadVersionFolder):
        shelf.version(digest(b"\1" * 32), version.folder)
