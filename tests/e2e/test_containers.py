"""A devnet whose task runs in real containers and leaves none behind."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from cli.devnet.containers import WORKER_LABEL, engine_answers
from tests.kit.devnet import Devnet, start_devnet, stop_devnet, wait_until

pytestmark = pytest.mark.needs_docker


@pytest.fixture
def engine() -> Iterator[docker.DockerClient]:
    if not engine_answers():
        pytest.skip("no Docker engine answers; deploy/setup/engine.sh starts one")
    client = docker.from_env()
    yield client
    client.close()


def containers(engine: docker.DockerClient, nodes: set[str]) -> list[str]:
    """Returns the ids of the containers made by workers of these nodes."""
    listed = engine.api.containers(all=True, filters={"label": WORKER_LABEL})
    return [one["Id"] for one in listed if one["Labels"][WORKER_LABEL] in nodes]


def test_a_run_in_containers_finishes_and_leaves_no_container(tmp_path: Path, engine: docker.DockerClient) -> None:
    directory = tmp_path / "net"
    options = ("--workers", "2", "--cheat", "none", "--steps", "2", "--rise", "-100", "--runtime", "docker")
    process = start_devnet(directory, *options)
    try:
        network = Devnet(process, directory)
        nodes = {node["address"] for node in network.muster("pool", "nodes", "--json").json()}
        assert len(nodes) == 2
        running = containers(engine, nodes)
        assert len(running) == 2
        (detail, _) = (engine.api.inspect_container(each) for each in running)
        assert detail["HostConfig"]["CapDrop"] == ["ALL"]
        assert detail["HostConfig"]["ReadonlyRootfs"] is True
        assert process.stdout is not None
        said = process.stdout.read()
        assert process.wait(timeout=60) == 0, said
        assert "no honest submission was judged forged: none of" in said
        assert (directory / "report" / "report.html").exists()
        assert not containers(engine, nodes)
    finally:
        stop_devnet(process)


def test_neither_ctrl_c_nor_kill_9_leaves_containers(tmp_path: Path, engine: docker.DockerClient) -> None:
    options = ("--workers", "1", "--runtime", "docker", "--task", "hello")
    for end in (stop_devnet, _kill):
        process = start_devnet(tmp_path / "net", *options)
        network = Devnet(process, tmp_path / "net")
        nodes = {node["address"] for node in network.muster("pool", "nodes", "--json").json()}
        assert containers(engine, nodes)
        end(process)
        wait_until(lambda nodes=nodes: not containers(engine, nodes), within=120)


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
