"""`muster keys`: keys are created once, never overwritten and never shown."""

from __future__ import annotations

import io
import json
import stat
import sys
from pathlib import Path

import pytest

from cli.configuration.sections import load_configuration
from cli.keys import node_of, open_node_key
from tests.kit.command_line import imports_of
from tests.kit.devnet import Said, run_muster

SECRET = "0x" + "11" * 32
ADDRESS = "0x19E7E376E7C213B7E7e7e46cc70A5dD086DAff2A"


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "muster.toml"
    path.write_text('[keys]\ndirectory = "keys"\npassword_file = "password"\n')
    return str(path)


def keys(config: str, *arguments: str) -> Said:
    return run_muster("--config", config, "keys", *arguments)


def test_a_new_key_is_encrypted_and_readable_by_its_owner_only(config: str, tmp_path: Path) -> None:
    made = keys(config, "new", "node", "--light", "--json")
    assert made.code == 0
    stored = tmp_path / "keys" / "node.json"
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "password").stat().st_mode) == 0o600
    assert "0x" + json.loads(stored.read_text())["address"] == made.json()["address"].lower()
    assert keys(config, "list", "--json").json() == [{"name": "node", "address": made.json()["address"]}]


def test_encrypting_a_key_imports_no_bls_signatures(config: str, tmp_path: Path) -> None:
    """Each process that uses the chain would need 0.4 CPU seconds for them."""
    slow = ["py_ecc.optimized_bls12_381", "py_ecc.bls.ciphersuites"]
    done = imports_of(["eth_keyfile.keyfile", *slow], "--config", config, "keys", "new", "node", "--light")
    assert done.found == ["eth_keyfile.keyfile"], done.err
    assert json.loads((tmp_path / "keys" / "node.json").read_text())["address"][:8] in done.out.lower()


def test_the_workers_keystore_is_used_for_the_node_unless_another_is_named(config: str, tmp_path: Path) -> None:
    machine, other = (keys(config, "new", name, "--light", "--json").json()["address"] for name in ("rig", "node"))
    found = load_configuration(Path(config))
    assert node_of(found, None) == open_node_key(found, None).address == other
    (tmp_path / "muster.toml").write_text(
        Path(config).read_text() + '[worker]\nkeystore = "keys/rig.json"\nlabels = {}\n'
    )
    found = load_configuration(Path(config))
    assert (node_of(found, None), node_of(found, "node")) == (machine, other)
    assert [open_node_key(found, name).address for name in (None, "node")] == [machine, other]


def test_a_key_is_never_overwritten(config: str) -> None:
    keys(config, "new", "node", "--light")
    again = keys(config, "new", "node", "--light")
    assert again.code == 1
    assert "exists" in again.err


def test_an_imported_key_comes_from_standard_input_and_is_not_repeated(
    config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(SECRET + "\n"))
    said = keys(config, "import", "provider", "--light")
    assert said.code == 0
    assert ADDRESS in said.out
    assert SECRET[2:] not in said.out + said.err
    shown = keys(config, "show", "provider")
    assert ADDRESS in shown.out
    assert SECRET[2:] not in shown.out + shown.err


@pytest.mark.parametrize("text", ["", "nonsense", "0x12", "00" * 32, "zz" * 32])
def test_an_invalid_key_is_refused_and_not_repeated(config: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text + "\n"))
    said = keys(config, "import", "provider", "--light")
    assert said.code == 1
    assert not text or text not in said.err


@pytest.mark.parametrize("name", ["../evil", "a/b", "", ".", "x" * 65])
def test_a_key_name_cannot_leave_the_keys_folder(config: str, name: str) -> None:
    said = keys(config, "new", name, "--light")
    assert said.code == 1
    assert "is not a name for a key" in said.err


def test_a_missing_key_is_reported_with_the_existing_names(config: str) -> None:
    keys(config, "new", "node", "--light")
    said = keys(config, "show", "ghost")
    assert said.code == 1
    assert "ghost" in said.err
