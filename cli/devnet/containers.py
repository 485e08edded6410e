"""Detects a Docker engine, and removes the containers of workers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import docker
from docker.errors import DockerException
from requests.exceptions import RequestException

WORKER_LABEL = "io.muster.worker"
"""Label of every container that a worker made; its value is the node's address."""


def engine_answers() -> bool:
    """Returns True if this user can reach a Docker engine."""
    try:
        with _engine(timeout=5) as client:
            return bool(client.ping())
    except (DockerException, RequestException):
        return False


def remove_containers(nodes: Iterable[str]) -> None:
    """Removes the containers of these nodes' workers; does nothing if no Docker engine responds."""
    with contextlib.suppress(DockerException, RequestException), _engine(timeout=30) as client:
        for node in nodes:
            for container in client.api.containers(all=True, filters={"label": f"{WORKER_LABEL}={node}"}):
                with contextlib.suppress(DockerException, RequestException):
                    client.api.remove_container(container["Id"], force=True)


@contextlib.contextmanager
def _engine(*, timeout: int) -> Iterator[docker.DockerClient]:
    client = docker.from_env(timeout=timeout)
    try:
        yield client
    finally:
        client.close()
