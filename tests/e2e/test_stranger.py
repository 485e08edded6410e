"""A stranger's machine joins a running pool with real services and workers: from keys to the returned stake."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from cli.configuration import load_configuration
from tests.kit.devnet import Devnet, Said, run_muster, start_devnet, stop_devnet, wait_until


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Devnet]:
    """Runs a whole devnet with one worker, whose tasks run in the process sandbox."""
    directory = tmp_path_factory.mktemp("devnet") / "net"
    process = start_devnet(directory, "--workers", "1", "--runtime", "process", "--task", "hello")
    try:
        yield Devnet(process, directory)
    finally:
        assert stop_devnet(process) == 0


PAGE = (Path(__file__).parents[2] / "docs" / "contributors.md").read_text()
SETTINGS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)[0]
COMMANDS = re.findall(r"^muster ([^#\n]*?) *(?:#.*)?$", PAGE, re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Stranger:
    """A contributor who follows `docs/contributors.md` in a separate folder."""

    process: subprocess.Popen[bytes]
    address: str

    def muster(self, *arguments: str) -> Said:
        """Runs `muster …` in that folder."""
        return run_muster(*arguments)

    def as_printed(self, line: str) -> Said:
        """Runs a command from docs/contributors.md."""
        assert line in COMMANDS
        said = run_muster(*line.split())
        assert said.code == 0 or line == "worker doctor", f"{line}: {said.out}{said.err}"
        return said


@pytest.fixture
def stranger(network: Devnet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stranger]:
    """Sets up a contributor with keys and a running worker; the provider has not staked yet."""
    devnet = load_configuration(network.directory / "muster.toml")
    text = SETTINGS.replace("https://rpc.example", devnet.chain.rpc)
    text, places = re.subn(r"discovery = \[.*?\]", f'discovery = ["{devnet.pool.discovery[0]}"]', text)
    assert places == 1
    (tmp_path / "muster.toml").write_text(text)
    shutil.copy(network.directory / "deployment.json", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MUSTER_CONFIG", raising=False)
    monkeypatch.setenv("MUSTER_WORKER_WAIT_AT_MOST_S", "2")
    # as the devnet's own worker does, because the image is in no registry
    monkeypatch.setenv("MUSTER_WORKER_RUNTIME", "process")
    for line in COMMANDS[:2]:
        assert run_muster(*line.split()).code == 0
    provider, node = (run_muster("keys", "show", name, "--json").json()["address"] for name in ("provider", "node"))
    network.give_coin(provider)
    network.muster("ledger", "mint", provider, "20")
    assert "worker run" in COMMANDS
    with (tmp_path / "stranger.log").open("wb") as log:
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        process = subprocess.Popen(
            [sys.executable, "-m", "cli", "worker", "run"], stdout=log, stderr=log, env=environment
        )
        try:
            yield Stranger(process, node)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


def node_state(network: Devnet, address: str) -> str:
    nodes = network.muster("pool", "nodes", "--json").json()
    return next((node["state"] for node in nodes if node["address"] == address), "unknown")


def test_a_contributor_joins_works_and_leaves_as_the_page_describes(network: Devnet, stranger: Stranger) -> None:
    muster, mine = network.muster, stranger.address
    assert [line.partition(" --")[0] for line in COMMANDS[:6]] == [
        "keys new provider",
        "keys new node",
        "stake add 20",
        "node register",
        "worker doctor",
        "worker run",
    ]

    # Without stake the node gets no invite; the worker waits and reports the reason.
    wait_until(lambda: "waiting" in stranger.muster("worker", "status").out, within=120)
    assert node_state(network, mine) in {"unknown", "discovered"}
    for line in COMMANDS[2:4]:
        stranger.as_printed(line)
    wait_until(lambda: node_state(network, mine) == "healthy", within=120)
    assert stranger.muster("node", "show", "--json").json()["member"] is True
    examined = stranger.as_printed("worker doctor")
    assert examined.code in {0, 1}, examined.out
    assert "FAILURE" not in examined.out

    # The node runs the pool's task; contributor and pool owner can read its output.
    wait_until(lambda: f"hello from {mine}" in stranger.muster("worker", "logs").out, within=120)
    wait_until(lambda: "count" in muster("pool", "logs", mine).out, within=120)
    (task,) = muster("pool", "tasks", "--json").json()
    assert (task["spec"]["name"], task["assignments"]["running"]) == ("hello", 2)

    # After draining the node takes no new task; after leaving it is no member and the stake is returned.
    assert stranger.muster("worker", "drain").code == 0
    wait_until(lambda: node_state(network, mine) == "draining", within=120)
    assert stranger.muster("worker", "leave", "--yes").code == 0
    assert stranger.process.wait(timeout=60) == 0
    assert stranger.muster("node", "leave", "--yes", "--carrier", "provider").code == 0  # the node's key has no gas
    assert stranger.muster("node", "show", "--json").json()["member"] is False
    assert stranger.muster("stake", "unbond", "20").code == 0
    network.warp(timedelta(seconds=161))
    assert "withdrew 20 MUST" in stranger.muster("stake", "withdraw").out


def test_the_doctor_reports_a_healthy_devnet_as_healthy(network: Devnet) -> None:
    configuration = str(network.directory / "muster.toml")
    for line in (["--config", configuration, "worker", "doctor"], ["worker", "doctor", "--config", configuration]):
        examined = run_muster(*line)
        assert examined.code in {0, 1}, examined.out
        assert "a member of pool 1" in examined.out
    status = run_muster("--config", configuration, "worker", "status", "--json").json()
    assert status["node"] == network.muster("keys", "show", "worker-1", "--json").json()["address"]
