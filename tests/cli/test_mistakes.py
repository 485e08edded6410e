"""Errors of users, files, disks and foreign data: one line with the error, one with advice, no traceback."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.configuration.sections import load_configuration
from cli.connection import open_ledger
from cli.main import main
from cli.output import printing
from cli.output.tables import Columns
from ledger.artifacts import Contract
from ledger.deployment import Deployment
from protocol.errors import InvalidInput
from protocol.identifiers import ZERO_ADDRESS
from tests.kit.devnet import Said, run_muster

OURS = "this is a bug in Muster"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "muster.toml"
    Deployment(chain_id=5, block=1, contracts=dict.fromkeys(Contract, ZERO_ADDRESS)).save(tmp_path / "deployment.json")
    path.write_text(
        '[chain]\nrpc = "http://127.0.0.1:1"\nchain_id = 5\ndeployment = "deployment.json"\n'
        '[keys]\ndirectory = "keys"\npassword_file = "password"\n[pool]\nid = 1\n'
    )
    monkeypatch.setenv("MUSTER_NODE_KEY", "11" * 32)
    monkeypatch.setenv("MUSTER_GOVERNOR_KEY", "11" * 32)
    return str(path)


def told(said: Said, *, code: int = 1) -> str:
    """Returns the error of a command that failed with a user error."""
    assert said.code == code, said
    assert OURS not in said.err
    assert "Traceback" not in said.err
    assert said.err.startswith("error: ")
    return said.err


def test_an_ended_devnet_is_reported_with_the_command_that_starts_it(tmp_path: Path) -> None:
    folder = tmp_path / ".devnet"
    folder.mkdir()
    (folder / "token").write_text("x\n")
    (folder / "muster.toml").write_text('[pool]\nid = 1\norchestrator = "http://127.0.0.1:1"\ntoken_file = "token"\n')
    said = run_muster("--config", str(folder / "muster.toml"), "pool", "nodes")
    assert "make devnet ARGS=--keep" in told(said, code=75)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "EOF"),
        (b"{}", "Field required"),
        (b"\xff\xfe", "is not what this command reads"),
        (b"[" * 70_000, "more than 65536 bytes"),
        (b'{"signature": "0xsecret"}', "Field required"),
    ],
)
@pytest.mark.parametrize("command", [("node", "join"), ("work", "carry")])
def test_a_file_of_another_kind_is_reported_with_its_first_error(
    config: str, tmp_path: Path, command: tuple[str, ...], content: bytes, words: str
) -> None:
    file = tmp_path / "given.json"
    file.write_bytes(content)
    said = told(run_muster("--config", config, *command, str(file)))
    assert words in said
    assert str(file) in said
    assert "pydantic" not in said
    assert "secret" not in said


def test_a_chain_id_that_contradicts_the_deployment_stops_every_command(config: str) -> None:
    path = Path(config)
    path.write_text(path.read_text().replace("chain_id = 5", "chain_id = 6"))
    said = told(run_muster("--config", config, "ledger", "status"))
    assert "chain 6" in said
    assert "chain 5" in said


async def test_a_chain_id_conflict_is_found_before_the_chain_is_called(config: str) -> None:
    path = Path(config)
    path.write_text(path.read_text().replace("chain_id = 5", "chain_id = 6"))
    with pytest.raises(InvalidInput, match="says chain 6"):
        async with open_ledger(load_configuration(path)):
            pass


def test_nothing_is_deployed_if_the_deployment_file_cannot_be_written(config: str, tmp_path: Path) -> None:
    said = told(run_muster("--config", config, "ledger", "deploy", "--out", str(tmp_path / "ghost" / "d.json")))
    assert "nothing was deployed" in said  # the chain, which is down, was not called


def test_a_pool_number_above_the_contracts_range_is_a_usage_error(config: str) -> None:
    said = run_muster("--config", config, "pool", "show", "--pool", str(2**32))
    assert said.code == 2


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, "make room"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "permissions"),
        (errno.EIO, "refused"),
    ],
)
def test_a_disk_error_is_reported_with_its_path_and_a_hint(
    config: str, monkeypatch: pytest.MonkeyPatch, number: int, hint: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "/somewhere")

    monkeypatch.setattr("cli.keys.write_keystore", refuse)
    said = told(run_muster("--config", config, "keys", "new", "node", "--light"))
    assert "/somewhere" in said
    assert os.strerror(number) in said
    assert hint in said


@pytest.mark.parametrize("closing", ["> /dev/full", ">&-"])
def test_a_closed_or_full_output_ends_without_a_traceback(closing: str) -> None:
    command = f"{sys.executable} -m cli work reasons --json {closing}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert OURS not in done.stderr


def test_a_missing_or_unreadable_home_directory_is_tolerated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MUSTER_CONFIG", raising=False)

    def refuse(place: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(place))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "is_file", refuse)
        assert load_configuration().path is None

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert load_configuration().keys.directory == tmp_path / "keys"


def test_control_characters_in_foreign_text_are_replaced_before_printing(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b]0;owned\x07 \x9b2J [red]pool[/red] zw\u202eevil ok"
    printing.say(hostile)
    printing.show_fields({"data_uri": hostile}, as_json=False)
    printing.show_table(Columns.of("uri"), [(hostile,)], as_json=False, empty="")
    printing.warn(hostile)
    printing.show_error(InvalidInput(hostile, hint=hostile))
    seen = capsys.readouterr()
    for text in (seen.out, seen.err):
        assert all(letter.isprintable() or letter in "\n\t" for letter in text)
        assert "\N{REPLACEMENT CHARACTER}]0;owned" in text
        assert "[red]pool[/red]" in text


def test_the_version_option_prints_the_version() -> None:
    assert run_muster("--version").out == run_muster("version").out


def test_config_help_lists_the_keys_of_the_file() -> None:
    said = run_muster("config", "--help").out
    for key in ("[chain]", "chain_id", "deployment", "password_file", "token_file"):
        assert key in said


def test_an_interrupt_has_its_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cli.main.mount", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (BrokenPipeError(), 1, ""),
        (ExceptionGroup("two things at a time", [BrokenPipeError()]), 1, ""),
        (ExceptionGroup("one in another", [ExceptionGroup("", [InvalidInput("no such thing")])]), 1, "no such thing"),
        (BaseExceptionGroup("interrupted", [KeyboardInterrupt()]), 130, ""),
        (ValueError("surprise"), 1, OURS),
    ],
)
def test_the_exit_code_is_that_of_the_wrapped_error(
    error: BaseException, code: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.main.mount", lambda *_, **__: (_ for _ in ()).throw(error))
    monkeypatch.setattr(os, "dup2", lambda *_: None)  # the descriptor belongs to pytest
    said = run_muster("version")
    assert said.code == code
    assert words in said.err
    assert words or not said.err
