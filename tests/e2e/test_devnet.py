"""The devnet started and stopped by a user, cleanly and by kill."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from ledger.devchain.anvil import find_anvil
from ledger.errors import AnvilMissing
from tests.kit.devnet import run_muster, start_devnet, stop_devnet, wait_until


def members(directory: Path) -> list[psutil.Process]:
    """Returns living processes that work in the devnet's folder, and the supervisor's orphan reaper."""
    found = []
    for process in psutil.process_iter():
        try:
            here = str(directory) in " ".join(process.cmdline())
            if here and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def test_a_devnet_owns_its_folder_stops_cleanly_and_resumes_with_keep(tmp_path: Path) -> None:
    """One test covers several stages of a devnet, because each start takes seconds."""
    directory, configuration = tmp_path / "net", str(tmp_path / "net" / "muster.toml")
    process = start_devnet(directory, "--ledger-only")
    try:
        assert members(tmp_path)
        second = run_muster("devnet", "--plain", "--directory", str(directory))
        assert second.code == 1
        assert "a devnet is running in" in second.err
        added = run_muster("--config", configuration, "stake", "add", "7")
        assert added.code == 0, added.err
    finally:
        assert stop_devnet(process, signal.SIGTERM) == 0
    assert not members(tmp_path)

    down = run_muster("--config", configuration, "pool", "show")
    assert down.code == 75
    assert "can't be reached" in down.err
    assert "hint:" in down.err

    process = start_devnet(directory, "--ledger-only", "--keep")
    try:
        staked = run_muster("--config", configuration, "stake", "status", "--json").json()
        assert staked["active"] == str(7 * 10**18)
    finally:
        assert stop_devnet(process, signal.SIGINT) == 0
    assert not members(tmp_path)


def test_kill_9_leaves_no_process_and_the_next_devnet_starts(tmp_path: Path) -> None:
    process = start_devnet(tmp_path / "net", "--workers", "1", "--runtime", "process", "--task", "hello")
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    wait_until(lambda: not members(tmp_path))
    assert stop_devnet(start_devnet(tmp_path / "net", "--ledger-only")) == 0


def test_a_folder_with_other_files_is_not_touched(tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")
    said = run_muster("devnet", "--plain", "--directory", str(tmp_path))
    assert said.code == 1
    assert "holds files that no devnet made" in said.err
    assert precious.read_text() == "mine"


@pytest.mark.needs_anvil
def test_anvil_can_replace_the_embedded_chain(tmp_path: Path) -> None:
    try:
        find_anvil()
    except AnvilMissing as missing:
        pytest.skip(missing.detail)
    said = run_muster("devnet", "--check", "--chain", "anvil", "--ledger-only", "--directory", str(tmp_path / "net"))
    assert said.code == 0, said.err
    assert "pool 1 is active" in said.out
