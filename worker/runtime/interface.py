"""The interface of a runtime, and the values that cross it.

A runtime sees containers of its own worker only. It decides nothing: `convergence` does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from protocol.errors import InvalidInput, NotFound, Unavailable
from protocol.identifiers import Address
from protocol.wire.nodes import RuntimeKind
from protocol.wire.tasks import NetworkMode, RegistryCredentials, Resources


class ImageMissing(NotFound):
    """No registry has the image, or none shows it to us."""

    code = "image-missing"
    default_hint = "check the image's name and tag, push it, or give the task registry credentials"


class PullFailed(Unavailable):
    """The image may exist but could not be fetched."""

    code = "pull-failed"
    default_hint = "check that this machine reaches the registry"


class LaunchRefused(InvalidInput):
    """This machine can't or may not start such a container."""

    code = "launch-refused"
    default_hint = "change the task, or choose nodes that have what it asks for"


class RuntimeDown(Unavailable):
    """The engine itself does not answer. Nobody's task is to blame."""

    code = "runtime-down"
    default_hint = "start the engine (`systemctl start docker`); containers that run are left alone meanwhile"


class NoSuchContainer(NotFound):
    """The container is gone, or belongs to another worker."""

    code = "no-such-container"


class ContainerStatus(StrEnum):
    """Where a container is."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A directory of the worker's, shown inside the container."""

    source: Path
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """Everything that a runtime needs to start one container. Variables are resolved, mounts are the worker's own.

    `environment` holds secrets, so it is left out of the text form.
    """

    name: str
    assignment_id: str
    fingerprint: str
    restart_nonce: int
    image: str
    entrypoint: tuple[str, ...] | None
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(repr=False)
    mounts: tuple[Mount, ...]
    resources: Resources
    gpu_uuids: tuple[str, ...]
    gpu_indices: tuple[int, ...]
    network: NetworkMode
    read_only_root: bool
    stop_grace: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container as the runtime sees it now."""

    name: str
    assignment_id: str
    fingerprint: str
    restart_nonce: int
    stop_grace: timedelta
    status: ContainerStatus
    exit_code: int | None = None
    out_of_memory: bool = False
    started_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLine:
    """One line that a container wrote. `time_ns` grows within a container, so that reading can be resumed after it."""

    time_ns: int
    stream: str
    text: str


Progress = Callable[[str], None]
"""Told in words how far a pull is; called from any thread."""


class Runtime(Protocol):
    """Runs containers of one worker and shows no others."""

    kind: RuntimeKind

    async def check(self) -> str:
        """Returns the engine's version.

        Raises:
            RuntimeDown: It does not answer.
        """
        ...

    async def pull(self, image: str, *, credentials: RegistryCredentials | None, progress: Progress) -> None:
        """Makes the image present.

        Raises:
            ImageMissing: It does not exist, or not for us.
            PullFailed: The registry could not be reached, or failed.
            RuntimeDown: The engine does not answer.
        """
        ...

    async def start(self, spec: ContainerSpec) -> None:
        """Creates and starts a container; when it can't be started, nothing is left of it.

        Raises:
            ImageMissing: The image is not present.
            LaunchRefused: The machine can't or may not run it; `detail` says what is missing.
            RuntimeDown: The engine does not answer.
        """
        ...

    async def containers(self) -> tuple[Container, ...]:
        """All containers of this worker, running or not."""
        ...

    async def stop(self, name: str, *, grace: timedelta) -> None:
        """Asks the container to end, kills it after `grace`, returns when it has ended. Nothing happens if it had."""
        ...

    async def remove(self, name: str) -> None:
        """Removes the container, killing it if it runs. Nothing happens if it is gone."""
        ...

    def output(self, name: str, *, after_ns: int) -> AsyncIterator[OutputLine]:
        """Follows what the container writes after `after_ns`, until it has ended and everything was read."""
        ...

    async def close(self) -> None:
        """Lets go of the engine; containers run on."""
        ...


def name_prefix(node: Address) -> str:
    """What the names of a worker's containers begin with. Two workers never share a node, so never a prefix."""
    return f"muster-{node[2:].lower()}-"


def refuse_foreign(name: str, node: Address) -> None:
    """Returns if the name is one of this worker's.

    Raises:
        NoSuchContainer: It is not: another worker's container is none of our business.
    """
    if not name.startswith(name_prefix(node)):
        raise NoSuchContainer(f"{name} is no container of the node {node}")
