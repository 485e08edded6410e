"""The committed artifacts are the compiled form of the committed sources."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ledger import artifacts, build
from ledger.artifacts import Artifact, Contract, artifact, source_hash, sources
from ledger.build import OPENZEPPELIN, SIZE_LIMIT, SOLC, compile_contracts, tools_directory
from protocol.errors import InvalidInput, Unavailable
from tests.kit.chain import COMPILING

NPM = Path(__file__).parents[2] / "deploy" / "npm"


@pytest.fixture(params=list(Contract), ids=str)
def committed(request: pytest.FixtureRequest) -> Artifact:
    return artifact(request.param)


def test_an_artifact_names_its_sources_and_compiler(committed: Artifact) -> None:
    assert committed.source_hash == source_hash(sources()), "compile again: python -m ledger.build"
    assert committed.compiler.startswith(f"{SOLC}+")
    assert committed.openzeppelin == OPENZEPPELIN


def test_a_contract_fits_the_chains_code_size_limit(committed: Artifact) -> None:
    assert 0 < committed.deployed_size <= SIZE_LIMIT
    assert len(committed.bytecode) >= committed.deployed_size
    assert any(entry["type"] == "function" for entry in committed.abi)


def test_contracts_revert_with_custom_errors_only() -> None:
    for text in sources().values():
        assert "require(" not in text
        assert 'revert("' not in text


def test_every_contract_has_the_same_compiler_version_and_license() -> None:
    for path, text in sources().items():
        assert text.startswith(f"// SPDX-License-Identifier: Apache-2.0\npragma solidity {SOLC};\n"), path


def test_the_source_hash_changes_with_any_name_or_text() -> None:
    texts = {"a.sol": "one", "b.sol": "two"}
    same = {"b.sol": "two", "a.sol": "one"}
    others = [{"a.sol": "one"}, {"a.sol": "two", "b.sol": "one"}, {"a.sol": "one", "c.sol": "two"}]
    assert source_hash(texts) == source_hash(same)
    assert source_hash(texts) not in {source_hash(other) for other in others}


def test_a_missing_artifact_is_reported_with_the_command_that_makes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(artifacts, "ARTIFACTS", tmp_path)
    artifact.cache_clear()
    with pytest.raises(Unavailable, match="StakeManager") as caught:
        artifact(Contract.STAKE_MANAGER)
    assert "python -m ledger.build" in caught.value.hint


def test_missing_build_tools_are_reported_with_the_command_that_installs_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MUSTER_TOOLS", str(tmp_path))
    with pytest.raises(Unavailable, match="node_modules") as caught:
        tools_directory()
    assert "deploy/npm" in caught.value.hint


def test_npm_pins_are_exact_and_name_no_registry() -> None:
    pins = json.loads((NPM / "package.json").read_text())["devDependencies"]
    assert (pins["solc"], pins["@openzeppelin/contracts"]) == (SOLC, OPENZEPPELIN)
    assert all(version[0].isdigit() for version in pins.values())
    packages = json.loads((NPM / "package-lock.json").read_text())["packages"]
    assert all("resolved" not in entry for entry in packages.values())
    assert all(entry["integrity"].startswith("sha512-") for path, entry in packages.items() if path)


@pytest.fixture
def tools() -> Path:
    """Returns the pinned npm packages; without them the compiling tests are skipped."""
    try:
        return tools_directory()
    except Unavailable as missing:
        pytest.skip(f"{missing.detail}: {missing.hint}")


@pytest.mark.needs_solc
@pytest.mark.usefixtures("tools")
def test_compiling_again_reproduces_the_committed_artifacts_byte_for_byte(pytestconfig: pytest.Config) -> None:
    compiling = pytestconfig.stash[COMPILING]
    said, _ = compiling.communicate(timeout=240)
    assert compiling.returncode == 0, said


@pytest.mark.needs_solc
@pytest.mark.usefixtures("tools")
def test_a_compiler_error_is_reported_with_file_and_line(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = sources() | {"MusterToken.sol": "pragma solidity 0.8.37;\ncontract MusterToken { uint x = y; }\n"}
    monkeypatch.setattr(build, "sources", lambda: broken)
    with pytest.raises(InvalidInput, match=r"(?s)Undeclared identifier.*MusterToken.sol:2"):
        compile_contracts()
