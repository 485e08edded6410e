"""Deployments of another contract version are refused, on disk and on the chain."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ledger import deployment as deployments
from ledger.artifacts import Contract
from ledger.client import Ledger
from ledger.deployment import Deployment, DeploymentDiffers
from protocol.errors import InvalidInput
from protocol.identifiers import ZERO_ADDRESS
from tests.kit.world import World

FILE = Deployment(chain_id=5, block=1, contracts=dict.fromkeys(Contract, ZERO_ADDRESS))


def test_a_saved_deployment_contains_its_version(tmp_path: Path) -> None:
    FILE.save(tmp_path / "deployment.json")
    assert json.loads((tmp_path / "deployment.json").read_text())["version"] == "2"
    assert Deployment.load(tmp_path / "deployment.json") == FILE


@pytest.mark.parametrize("version", [None, "1", 3, "x" * 1000], ids=["none", "former", "later", "long"])
def test_a_file_of_another_version_is_refused(tmp_path: Path, version: object) -> None:
    FILE.save(tmp_path / "deployment.json")
    content = json.loads((tmp_path / "deployment.json").read_text())
    content = {name: value for name, value in content.items() if name != "version"}
    if version is not None:
        content["version"] = version
    (tmp_path / "deployment.json").write_text(json.dumps(content))
    with pytest.raises(InvalidInput, match="this release uses version 2") as refused:
        Deployment.load(tmp_path / "deployment.json")
    assert refused.value.code == "other-contract-version"
    assert len(refused.value.detail) < 400 + len(str(tmp_path))


async def test_contracts_of_another_version_are_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments, "VERSION", "3")
    with pytest.raises(DeploymentDiffers, match="have version 2; this release uses 3"):
        async with Ledger.connect(world.url, world.deployment):
            pass


async def test_a_contract_without_a_version_is_refused(world: World) -> None:
    other = {**world.deployment.contracts, Contract.WORK_LEDGER: world.deployment[Contract.STAKE_MANAGER]}
    with pytest.raises(DeploymentDiffers, match="have version unknown"):
        async with Ledger.connect(world.url, replace(world.deployment, contracts=other)):
            pass
