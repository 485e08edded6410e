"""The interface of task runtimes, with its value types and errors.

A runtime handles only the containers of its own worker. A runtime only executes decisions;
`worker.tasks.reconcile_plan` makes the decisions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
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
    """The image does not exist, or access to it is denied."""

    code = "image-missing"
    default_hint = "check the image's name and tag, push it, or give the task registry credentials"


class PullFailed(Unavailable):
    """The image could not be pulled now; it may or may not exist."""

    code = "pull-failed"
    default_hint = "check that this machine can reach the registry"


class LaunchRefused(InvalidInput):
    """This machine can't start the container, or the contributor does not allow it."""

    code = "launch-refused"
    default_hint = "change the task, or choose nodes that meet its requirements"


class RuntimeDown(Unavailable):
    """The engine does not answer.

    This does not count as a failure of the task.
    """

    code = "runtime-down"
    default_hint = "start the engine (`systemctl start docker`); running containers continue meanwhile"


class FilterFailed(RuntimeDown):
    """The packet filter that keeps a task away from the local network can't be installed.

    This does not count as a failure of the task: the cause is this machine.
    """

    code = "local-network-not-denied"
    default_hint = (
        "install `iptables` on this machine, which Docker needs too, and run `muster worker doctor`; or set "
        'local_network = "allow" in [worker], which lets tasks reach your local network; see docs/contributors.md, '
        '"Local network"'
    )


class NoSuchContainer(NotFound):
    """The container does not exist or belongs to another worker."""

    code = "no-such-container"


class ContainerStatus(StrEnum):
    """State of a container."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A directory of the worker that is mounted into a container."""

    source: Path
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """Everything that a runtime needs to start a container.

    Variables are expanded, and mounts are directories of the worker.

    `environment` contains secrets and is therefore excluded from `repr`.
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
    """Observed state of a container."""

    name: str
    assignment_id: str
    fingerprint: str
    restart_nonce: int
    stop_grace: timedelta
    status: ContainerStatus
    exit_code: int | None = None
    out_of_memory: bool = False
    started_at: datetime | None = None
    network_denied: bool = False
    """Whether the container has a network that the contributor's settings don't allow it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLine:
    """A line of output.

    `time_ns` increases strictly within a container, so that a reader can continue after any line.
    """

    time_ns: int
    stream: str
    text: str


Progress = Callable[[str], None]
"""Function that receives the progress of a pull as text. It may be called from any thread."""


class Runtime(Protocol):
    """Runs the containers of one worker."""

    kind: RuntimeKind

    async def check(self) -> str:
        """Returns the engine's version.

        Raises:
            RuntimeDown: The engine does not answer.
        """
        ...

    async def pull(self, image: str, *, credentials: RegistryCredentials | None, progress: Progress) -> None:
        """Pulls the image if necessary.

        Raises:
            LaunchRefused: The contributor does not allow the image's registry.
            ImageMissing: The image does not exist or access is denied.
            PullFailed: The registry can't be reached, or failed.
            RuntimeDown: The engine does not answer.
        """
        ...

    async def start(self, spec: ContainerSpec) -> None:
        """Creates and starts a container.

        If it can't be started, the runtime removes it completely.

        Raises:
            ImageMissing: The image is not present.
            LaunchRefused: This machine can't run the container, or the contributor forbids it.
            RuntimeDown: The engine does not answer.
        """
        ...

    async def containers(self) -> tuple[Container, ...]:
        """Returns all containers of this worker, running or not."""
        ...

    async def stop(self, name: str, *, grace: timedelta) -> None:
        """Stops the container and waits for its end.

        The container is killed after `grace`. Nothing happens if the container has ended already.
        """
        ...

    async def remove(self, name: str) -> None:
        """Removes the container, and kills it first if it runs.

        Nothing happens if the container does not exist.
        """
        ...

    def output(self, name: str, *, after_ns: int) -> AsyncIterator[OutputLine]:
        """Yields output later than `after_ns`.

        The iterator ends when the container has ended and all output was read.
        """
        ...

    async def remove_unused_images(self, *, named: Collection[str], unused_for: timedelta) -> tuple[str, ...]:
        """Removes images that this worker pulled and no task used within `unused_for`; returns their references.

        Args:
            named: References that the present task names; they are kept.
            unused_for: The time without use.

        Raises:
            RuntimeDown: The engine does not answer.
        """
        ...

    async def remove_network(self) -> None:
        """Removes the worker's own network in the engine, if there is one.

        Call it when the worker runs no container; the next start of a container makes the network again.
        """
        ...

    async def close(self) -> None:
        """Closes the connections to the engine.

        Containers keep running.
        """
        ...


def name_prefix(node: Address) -> str:
    """Returns the prefix of the names of a worker's containers.

    The prefix is unique, because workers never share a node address.
    """
    return f"muster-{node[2:].lower()}-"


def refuse_foreign(name: str, node: Address) -> None:
    """Checks that a container name belongs to this worker.

    Raises:
        NoSuchContainer: The name belongs to another worker or program.
    """
    if not name.startswith(name_prefix(node)):
        raise NoSuchContainer(f"{name} is not a container of the node {node}")
