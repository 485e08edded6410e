"""Fixtures: a real Docker engine with an image built here, and the worker's folders."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException

from cli.devnet.image import make_image
from protocol.identifiers import Address
from protocol.identity.keys import Key
from tests.kit.chain import development_chain, development_process
from tests.kit.world import founded, world
from worker.runtime.docker import DockerRuntime, engine_socket
from worker.runtime.docker_arguments import LABEL_WORKER
from worker.runtime.process import ProcessRuntime
from worker.state import StateDirectory

__all__ = ["development_chain", "development_process", "founded", "world"]  # fixtures: one chain for all tests here


def _skip_or_fail(part: str, message: str) -> None:
    if part in os.environ.get("MUSTER_REQUIRE", "").replace(",", " ").split():
        pytest.fail(message)
    pytest.skip(message)


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine, an image in it, and a client that sees every container."""

    socket: Path
    image: str
    client: docker.DockerClient


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """Returns the local Docker engine with a small image for tests."""
    socket = engine_socket()
    try:
        client = docker.DockerClient(base_url=f"unix://{socket}", version="auto", timeout=60)
        client.ping()
    except DockerException as error:
        _skip_or_fail("docker", f"no Docker engine at {socket} (deploy/setup/engine.sh starts one): {error}")
    tag = "muster/test-python:local"
    if not client.images.list(name=tag):
        make_image(client, tag)
    yield Engine(socket, tag, client)
    client.close()


@pytest.fixture
def node() -> Address:
    """Returns a different node address for each test.

    So tests do not see each other's containers.
    """
    return Key.generate().address


@pytest.fixture
async def docker_runtime(engine: Engine, node: Address) -> AsyncIterator[DockerRuntime]:
    """Yields the Docker runtime of one worker; removes leftover containers afterwards."""
    runtime = DockerRuntime(node, socket=engine.socket)
    yield runtime
    # If a test ends while a container is being created, the call continues in its thread, so the container may appear
    # only now.
    quiet = 0
    for _ in range(100):
        for container in await runtime.containers():
            await runtime.remove(container.name)
        left = engine.client.containers.list(all=True, filters={"label": f"{LABEL_WORKER}={node}"})
        quiet = 0 if left else quiet + 1
        if quiet == 2:
            break
        await asyncio.sleep(0.1)
    await runtime.remove_network()
    await runtime.close()
    assert not left


@pytest.fixture
async def process_runtime(node: Address, tmp_path: Path) -> AsyncIterator[ProcessRuntime]:
    """Returns the sandboxed runtime of one worker."""
    if shutil.which("bwrap") is None:
        _skip_or_fail("sandbox", "no bubblewrap")
    runtime = ProcessRuntime(node, directory=tmp_path / "processes")
    yield runtime
    for container in await runtime.containers():
        await runtime.remove(container.name)
    await runtime.close()


@pytest.fixture
def state(tmp_path: Path) -> StateDirectory:
    """Returns a prepared state directory."""
    state = StateDirectory(tmp_path / "state")
    state.prepare()
    return state


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests that use a Docker engine.

    pytest passes all tests to this hook, and other folders have other fixtures named `engine`.
    """
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and "engine" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.needs_docker)
