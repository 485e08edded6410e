"""A devnet whose task runs in real containers, and what is left of them after `kill -9`: nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from cli.devnet.containers import WORKER_LABEL, engine_answers
from tests.e2e.conftest import Devnet, start_devnet, stop_devnet, wait_until

pytestmark = pytest.mark.needs_docker


@pytest.fixture
def engine() -> Iterator[docker.DockerClient]:
    if not engine_answers():
        pytest.skip("no Docker engine answers; deploy/setup/engine.sh starts one")
    client = docker.from_env()
    yield client
    client.close()


def containers(engine: docker.DockerClient, nodes: set[str]) -> list[str]:
    """Ids of the containers that workers of these nodes made."""
    listed = engine.api.containers(all=True, filters={"label": WORKER_LABEL})
    return [one["Id"] for one in listed if one["Labels"][WORKER_LABEL] in nodes]


def test_the_task_runs_in_containers_and_kill_9_leaves_none(tmp_path: Path, engine: docker.DockerClient) -> None:
    process = start_devnet(tmp_path / "net", "--workers", "2", "--runtime", "docker")
    try:
        network = Devnet(process, tmp_path / "net")
        nodes = {node["address"] for node in network.muster("pool", "nodes", "--json").json()}
        assert len(nodes) == 2
        running = containers(engine, nodes)
        assert len(running) == 2
        (detail, _) = (engine.api.inspect_container(each) for each in running)
        assert detail["HostConfig"]["CapDrop"] == ["ALL"]
        assert detail["HostConfig"]["ReadonlyRootfs"] is True
        process.kill()
        process.wait()
        wait_until(lambda: not containers(engine, nodes), within=40)
    finally:
        process.kill()
        assert process.stdout is not None
        process.stdout.close()


def test_ctrl_c_stops_containers_too(tmp_path: Path, engine: docker.DockerClient) -> None:
    process = start_devnet(tmp_path / "net", "--workers", "1", "--runtime", "docker", "--task", "hello")
    network = Devnet(process, tmp_path / "net")
    nodes = {node["address"] for node in network.muster("pool", "nodes", "--json").json()}
    assert stop_devnet(process) == 0
    assert not containers(engine, nodes)
