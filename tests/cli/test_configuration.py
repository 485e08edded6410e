"""Where `muster` looks for its configuration, and its error messages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.configuration.sections import load_configuration
from protocol.errors import InvalidInput, NotFound
from protocol.runtime.configuration_text import MOST_FILE_BYTES
from tests.kit.devnet import run_muster


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("MUSTER_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, pool: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[pool]\nid = {pool}\n")
    return path


def test_the_nearest_configuration_file_wins(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_configuration().pool.id is None
    write(elsewhere / "home" / ".config" / "muster" / "muster.toml", 1)
    assert load_configuration().pool.id == 1
    write(elsewhere / ".devnet" / "muster.toml", 2)
    assert load_configuration().pool.id == 2
    write(elsewhere / "muster.toml", 3)
    assert load_configuration().pool.id == 3
    monkeypatch.setenv("MUSTER_CONFIG", str(write(elsewhere / "other.toml", 4)))
    assert load_configuration().pool.id == 4
    assert load_configuration(write(elsewhere / "explicit.toml", 5)).pool.id == 5


def test_configuration_paths_are_relative_to_the_file(elsewhere: Path) -> None:
    (elsewhere / "deep").mkdir()
    path = elsewhere / "deep" / "m.toml"
    path.write_text('[chain]\ndeployment = "d.json"\n[keys]\ndirectory = "/keys"\n')
    read = load_configuration(path)
    assert read.chain.deployment == elsewhere / "deep" / "d.json"
    assert read.keys.directory == Path("/keys")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[pool]\nid = 0", "pool.id"),
        ("[pol]\nid = 1", "muster reads no table pol"),
        ("pool = 3", "pool is not a table"),
        ("poll_id = 3", "no setting outside of a table poll_id"),
        ("[chain]\nrpc = 'ftp://x'", "chain.rpc"),
        ("[chain", "is not TOML"),
        ("\x00", "is not TOML"),
        ("#" * (MOST_FILE_BYTES + 1), "longer than"),
    ],
)
def test_a_broken_configuration_file_is_reported_with_the_position(elsewhere: Path, text: str, words: str) -> None:
    path = elsewhere / "muster.toml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=words) as caught:
        load_configuration()
    assert str(path) in caught.value.detail


def test_the_access_key_in_the_chains_url_is_never_shown(elsewhere: Path) -> None:
    file = elsewhere / "muster.toml"
    file.write_text(
        "[chain]\nrpc = 'https://user:hunter2@rpc.example:8545/v2/hunter2?key=hunter2'\ndeployment = 'd.json'\n"
    )
    texts = []
    for words in (["config"], ["config", "--json"], ["config", "show"], ["config", "show", "chain", "--json"]):
        said = run_muster("--config", str(file), *words)
        assert said.code == 0, said.err
        texts.append(said.out + said.err)
        assert ("https://rpc.example:8545" if len(words) < 2 or words[1] == "--json" else "(hidden)") in said.out
    for broken in ("wss://rpc.example/hunter2", "https://[hunter2", "https://rpc.example:hunter2"):
        file.write_text(f"[chain]\nrpc = '{broken}'\n")
        said = run_muster("--config", str(file), "config")
        assert (said.code, "chain.rpc" in said.err) == (1, True)
        texts.append(said.out + said.err)
    assert "hunter2" not in "".join(texts)


def test_a_configuration_file_named_by_option_must_exist(elsewhere: Path) -> None:
    with pytest.raises(NotFound, match="no configuration file"):
        load_configuration(elsewhere / "ghost.toml")


def test_tables_of_services_are_allowed_in_the_same_file(elsewhere: Path) -> None:
    (elsewhere / "muster.toml").write_text('[pool]\nid = 3\n[worker]\nanything = 1\nkeystore = "k.json"\n')
    read = load_configuration()
    assert (read.pool.id, read.worker.keystore) == (3, elsewhere / "k.json")


BROKEN = {
    "worker run": ("worker", 'pool_id = "x"'),
    "discovery serve": ("discovery", 'port = "x"'),
    "orchestrator serve": ("orchestrator", 'port = "x"'),
    "validator status": ("validator", 'port = "x"'),
    "trainer run": ("trainer", 'steps = "x"'),
}


@pytest.mark.parametrize("command", BROKEN)
@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
def test_every_service_reads_the_config_option_before_and_after_its_name(
    elsewhere: Path, command: str, before: bool
) -> None:
    table, line = BROKEN[command]
    (elsewhere / "muster.toml").write_text(f"[{table}]\n")
    path = elsewhere / "deep" / "other.toml"
    path.parent.mkdir()
    path.write_text(f"[{table}]\n{line}\n")
    option = ["--config", "deep/other.toml"]
    words = command.split()
    said = run_muster(*option, *words) if before else run_muster(*words, *option)
    assert said.code == 1
    assert f"{path}: {table}.{line.partition(' ')[0]}" in said.err.replace("\n", "")
    assert "MUSTER_CONFIG" not in os.environ
