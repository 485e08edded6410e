"""A stranger's machine joins a running pool with real services and workers: from keys to the returned stake.

The stranger follows the page for contributors, or has an own program that uses the TypeScript client.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from cli.configuration.sections import load_configuration
from ledger.artifacts import Contract
from ledger.deployment import Deployment
from protocol.identity.keystores import read_keystore
from tests.kit.devnet import Devnet, Said, run_muster, start_devnet, stop_devnet, wait_until
from tests.kit.typescript import TypescriptClient


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Devnet]:
    """Runs a whole devnet with one worker, whose tasks run in the process sandbox."""
    directory = tmp_path_factory.mktemp("devnet") / "net"
    process = start_devnet(directory, "--workers", "1", "--runtime", "process", "--task", "hello")
    try:
        yield Devnet(process, directory)
    finally:
        assert stop_devnet(process) == 0


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "contributors.md").read_text()
INSTALL, SETUP = (block.splitlines() for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
OWN = ("muster", "__editable__", "_editable")
"""Beginnings of the names in the environment's packages that belong to Muster itself, not to its dependencies."""


@dataclass(frozen=True, slots=True)
class Stranger:
    """A contributor with an empty home who follows `docs/contributors.md`."""

    home: Path
    environment: dict[str, str]

    def runs(self, line: str, *, folder: Path | None = None) -> Said:
        """Runs a line in a shell of this user."""
        ran = subprocess.run(
            ["bash", "-c", line],
            cwd=folder or self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        return Said(ran.returncode, ran.stdout, ran.stderr)

    def muster(self, *arguments: str) -> Said:
        """Runs `muster …` with this user's files, in this process, which is quicker than a shell."""
        return run_muster(*arguments)

    def address(self, name: str) -> str:
        return str(self.muster("keys", "show", name, "--json").json()["address"])


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stranger:
    """Gives a contributor a home; the dependencies come from this environment, because tests use no package index."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for each in Path(sysconfig.get_path("purelib")).iterdir():
        if not each.name.startswith(OWN) and each.suffix != ".pth":
            (packages / each.name).symlink_to(each)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("MUSTER_CONFIG", raising=False)
    monkeypatch.chdir(home)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "PYTHON", "XDG_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    pip = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    # The runtime is the devnet's own: the image of its task is in no registry.
    worker = {"MUSTER_WORKER_WAIT_AT_MOST_S": "2", "MUSTER_WORKER_RUNTIME": "process"}
    return Stranger(home, {**kept, **pip, **worker, "HOME": str(home), "PATH": path, "PYTHONPATH": str(packages)})


def node_state(network: Devnet, address: str) -> str:
    nodes = network.muster("pool", "nodes", "--json").json()
    return next((node["state"] for node in nodes if node["address"] == address), "unknown")


@pytest.mark.needs_node
def test_the_typescript_client_is_a_node_and_an_owner_of_the_devnet(
    network: Devnet, typescript_client: TypescriptClient
) -> None:
    # This test comes first. The next one turns the chain's time forward, so that leases by this machine's clock have
    # expired on the ledger.
    muster, devnet, digest = network.muster, load_configuration(network.directory / "muster.toml"), "0x" + "5c" * 32
    muster("stake", "add", "100")
    muster("node", "register")
    muster("ledger", "announce", "0", digest, "--run", "devnet")
    addresses = {name: muster("keys", "show", name, "--json").json()["address"] for name in ("node", "orchestrator")}
    orchestrator, (finder,) = str(devnet.pool.orchestrator), devnet.pool.discovery
    discovery, _, discovery_address = finder.partition("#")
    for name, url in (("orchestrator", orchestrator), ("discovery", discovery)):
        assert httpx.get(f"{url}/openapi.json").json() == typescript_client.documents[name]

    password = (network.directory / "password").read_text().strip()
    settings = {
        "MUSTER_ORCHESTRATOR": orchestrator,
        "MUSTER_ORCHESTRATOR_ADDRESS": addresses["orchestrator"],
        "MUSTER_DISCOVERY": discovery,
        "MUSTER_DISCOVERY_ADDRESS": discovery_address,
        "MUSTER_POOL": "1",
        "MUSTER_NODE_KEY": "0x" + read_keystore(network.directory / "keys" / "node.json", password).reveal().hex(),
        "MUSTER_TOKEN": (network.directory / "owner-token").read_text().strip(),
        "MUSTER_READER": (network.directory / "reader-token").read_text().strip(),
        "MUSTER_DIGEST": digest,
    }
    assert typescript_client.test("devnet", settings=settings) == 5

    # The ledger has the work and the exit, and not only the services' answers.
    (work,) = muster("work", "list", "--json").json()
    assert (work["node"], work["units"]) == (addresses["node"], 7)
    assert muster("node", "show", "--json").json()["member"] is False


def test_a_contributor_joins_works_and_leaves_as_the_page_describes(network: Devnet, stranger: Stranger) -> None:
    muster, devnet = network.muster, load_configuration(network.directory / "muster.toml")
    assert INSTALL[-1] == 'export PATH="$HOME/muster/bin:$PATH"'
    for line in INSTALL[:-1]:
        done = stranger.runs(line, folder=ROOT)
        assert done.code == 0, done.out + done.err
    stranger.environment["PATH"] = f"{stranger.home}/muster/bin{os.pathsep}{stranger.environment['PATH']}"
    assert stranger.runs("command -v muster").out.strip() == f"{stranger.home}/muster/bin/muster"

    places = {"https://pool.example": str(devnet.pool.orchestrator), "https://rpc.example": devnet.chain.endpoint}
    assert devnet.chain.deployment is not None
    places["STAKE_MANAGER"] = Deployment.load(devnet.chain.deployment)[Contract.STAKE_MANAGER]
    plan, init, run = (re.sub("|".join(places), lambda place: places[place[0]], line) for line in SETUP)
    planned = stranger.runs(plan)
    assert planned.code == 0, planned.err
    assert "register the node with capacity 1" in planned.out
    assert not (stranger.home / ".config").exists()
    stopped = stranger.runs(init)
    provider, mine = stranger.address("provider"), stranger.address("node")
    assert (stopped.code, f"the provider {provider} lacks 20 MUST" in " ".join(stopped.err.split())) == (1, True)
    network.give_coin(provider)
    muster("ledger", "mint", provider, "20")
    done = stranger.runs(init)
    assert done.code == 0, done.out + done.err
    assert "FAILURE" not in done.out

    with (stranger.home / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {run}"], cwd=stranger.home, env=stranger.environment, stdout=log, stderr=log
        )
    try:
        works_and_leaves(network, stranger, process, mine)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def works_and_leaves(network: Devnet, stranger: Stranger, process: subprocess.Popen[bytes], mine: str) -> None:
    muster = network.muster
    wait_until(lambda: node_state(network, mine) == "healthy", within=120)
    assert stranger.muster("node", "show", "--json").json()["member"] is True
    assert stranger.muster("worker", "doctor").code == 0

    # The node runs the pool's task; contributor and pool owner can read its output.
    wait_until(lambda: f"hello from {mine}" in stranger.muster("worker", "logs").out, within=120)
    wait_until(lambda: "count" in muster("pool", "logs", mine).out, within=120)
    (task,) = muster("pool", "tasks", "--json").json()
    assert (task["spec"]["name"], task["assignments"]["running"]) == ("hello", 2)

    # After draining the node takes no new task; after leaving it is no member and the stake is returned.
    assert stranger.muster("worker", "drain").code == 0
    wait_until(lambda: node_state(network, mine) == "draining", within=120)
    assert stranger.muster("worker", "leave", "--yes").code == 0
    assert process.wait(timeout=60) == 0
    assert stranger.muster("node", "leave", "--yes", "--carrier", "provider").code == 0  # the node's key has no gas
    assert stranger.muster("node", "show", "--json").json()["member"] is False
    assert stranger.muster("stake", "unbond", "20").code == 0
    network.warp(timedelta(seconds=161))
    assert "withdrew 20 MUST" in stranger.muster("stake", "withdraw").out


def test_the_doctor_reports_a_healthy_devnet_as_healthy(network: Devnet) -> None:
    configuration = str(network.directory / "muster.toml")
    told = run_muster("worker", "doctor", "--config", configuration)
    assert (told.code, "a member of pool 1" in told.out) == (0, True), told.out
    findings = run_muster("--config", configuration, "worker", "doctor", "--json").json()
    # Findings about the machine that runs the tests depend on it; all others are about the devnet.
    of_the_machine = {"gpu", "nvidia toolkit", "cpu", "memory", "disk", "docker", "sandbox"}
    assert {"settings", "discovery", "orchestrator", "chain", "wallet", "registration", "stake", "pool"} <= {
        each["check"] for each in findings
    }
    assert [each for each in findings if each["level"] != "ok" and each["check"] not in of_the_machine] == []
    status = run_muster("--config", configuration, "worker", "status", "--json").json()
    assert status["node"] == network.muster("keys", "show", "worker-1", "--json").json()["address"]
