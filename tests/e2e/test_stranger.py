"""A stranger's machine joins a running pool: from keys to the stake that comes back, with real services and workers."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from tests.e2e.conftest import Devnet, Said, run_muster, start_devnet, stop_devnet, wait_until


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Devnet]:
    """A whole devnet with one worker of its own, whose tasks run in the process sandbox."""
    directory = tmp_path_factory.mktemp("devnet") / "net"
    process = start_devnet(directory, "--workers", "1", "--runtime", "process", "--task", "hello")
    try:
        yield Devnet(process, directory)
    finally:
        assert stop_devnet(process) == 0


@dataclass(frozen=True, slots=True)
class Stranger:
    """A worker of the devnet's `provider` and `node` keys, whom nobody else runs."""

    process: subprocess.Popen[bytes]
    settings: Path

    def worker(self, *arguments: str) -> Said:
        """Runs `muster worker …` as the contributor."""
        return run_muster("worker", *arguments, "--config", str(self.settings))


@pytest.fixture
def stranger(network: Devnet, tmp_path: Path) -> Iterator[Stranger]:
    """Started on a machine that is ready; the provider has not staked yet."""
    template = (network.directory / "workers" / "worker-1.toml").read_text()
    settings = tmp_path / "stranger.toml"
    settings.write_text(
        template.replace("keys/worker-1.json", "keys/node.json").replace("workers/worker-1", "stranger")
    )
    command = [sys.executable, "-m", "cli", "worker", "run", "--config", str(settings)]
    with (tmp_path / "stranger.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield Stranger(process, settings)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(timeout=60)


def node_state(network: Devnet, address: str) -> str:
    nodes = network.muster("pool", "nodes", "--json").json()
    return next((node["state"] for node in nodes if node["address"] == address), "unknown")


def test_a_strangers_whole_life(network: Devnet, stranger: Stranger) -> None:
    muster = network.muster
    mine = muster("keys", "show", "node", "--json").json()["address"]

    # Without stake nobody invites it; the worker waits, and says for what.
    wait_until(lambda: "waiting" in stranger.worker("status").out, within=120)
    assert node_state(network, mine) in {"unknown", "discovered"}
    muster("stake", "add", "50")
    muster("node", "register", "--capacity", "1")
    wait_until(lambda: node_state(network, mine) == "healthy", within=120)
    assert muster("node", "show", "--json").json()["member"] is True

    # It runs the pool's task; its output is there for the contributor and for the pool's owner.
    wait_until(lambda: f"hello from {mine}" in stranger.worker("logs").out, within=120)
    wait_until(lambda: "count" in muster("pool", "logs", mine).out, within=120)
    (task,) = muster("pool", "tasks", "--json").json()
    assert (task["spec"]["name"], task["assignments"]["running"]) == ("hello", 2)

    # Draining, it takes nothing new; leaving, it is no member, and the stake comes back.
    assert stranger.worker("drain").code == 0
    wait_until(lambda: node_state(network, mine) == "draining", within=120)
    assert stranger.worker("leave").code == 0
    assert stranger.process.wait(timeout=60) == 0
    assert muster("node", "show", "--json").json()["member"] is False
    muster("stake", "unbond", "50")
    network.warp(timedelta(seconds=161))
    assert "withdrew 50 MUST" in muster("stake", "withdraw").out
