"""Fixtures: one version and one honest file for all checks."""

from __future__ import annotations

import pytest
import torch

from rollouts.checks import CheckedVersion, SlotFacts
from rollouts.files.samples import RolloutFile
from rollouts.models.policy import Policy, load_policy
from rollouts.precision import Dtype
from tests.kit.rollout_files import as_version, facts_of, make
from tests.kit.tiny_model import tiny_folder


@pytest.fixture(scope="package")
def version(tmp_path_factory: pytest.TempPathFactory) -> CheckedVersion:
    return as_version(tiny_folder(tmp_path_factory.mktemp("version") / "model"))


@pytest.fixture(scope="package")
def facts(version: CheckedVersion) -> SlotFacts:
    return facts_of(version)


@pytest.fixture(scope="package")
def honest(version: CheckedVersion, facts: SlotFacts) -> RolloutFile:
    return make(version, facts=facts)


@pytest.fixture(scope="package")
def policy(version: CheckedVersion) -> Policy:
    return load_policy(version.folder, dtype=Dtype.FLOAT32, device=torch.device("cpu"))
