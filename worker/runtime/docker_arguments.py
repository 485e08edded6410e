"""Converts a container spec to arguments of the Docker SDK.

These are pure functions, so that all protections of a container can be reviewed in this file.

Whatever a task's spec says, the task's container gets no capabilities, no privilege escalation and no devices other
than its GPUs. Of the host's paths it gets only those that the contributor lists in `readable`, read-only. The container
gets no namespaces of the host either, except the network if the contributor allows it.

A container whose network is filtered shares the network namespace of its holder (`worker.runtime.network_holder`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from docker.types import DeviceRequest, LogConfig
from docker.types import Mount as DockerMount

from protocol.identifiers import Address
from protocol.wire.tasks import NetworkMode
from worker.runtime.interface import Container, ContainerSpec, ContainerStatus, LaunchRefused, Mount

LABEL_WORKER = "io.muster.worker"
LABEL_ASSIGNMENT = "io.muster.assignment"
LABEL_FINGERPRINT = "io.muster.fingerprint"
LABEL_RESTART_NONCE = "io.muster.restart-nonce"
LABEL_GRACE = "io.muster.stop-grace-ms"
LABEL_LOCAL_NETWORK = "io.muster.local-network"
"""Whether the task's container reaches the local network: `allow`, or `NetworkFilter.label`."""
ALLOW = "allow"

_LOG_FILES = {"max-size": "16m", "max-file": "2"}
"""Limits of the engine's own log. The engine's log may be small, because `muster worker logs` reads the worker's log
store.
"""


def creation_arguments(
    spec: ContainerSpec,
    *,
    node: Address,
    network: str,
    local_network: str = ALLOW,
    allow_host_network: bool,
    readable: Sequence[Path] = (),
    user: str | None,
) -> dict[str, Any]:
    """Returns the arguments for `containers.create` of the Docker SDK.

    Args:
        spec: Spec of the container.
        node: This node's address.
        network: The engine's network mode of a task with network `bridge`: the name of the worker's own Docker network,
            or `container:NAME` for the namespace of a holder.
        local_network: Value of the label `LABEL_LOCAL_NETWORK`.
        allow_host_network: Whether the contributor allows tasks to use the host's network.
        readable: Existing files and directories that are mounted read-only at the same paths.
        user: `uid:gid` of the task; None for the user of the image.

    Raises:
        LaunchRefused: The task requests the host's network, but the contributor does not allow it.
    """
    if spec.network is NetworkMode.HOST and not allow_host_network:
        raise LaunchRefused(
            "the task requests the host's network, which this contributor does not allow",
            hint="ask the contributor to set allow_host_network in [worker], or set the task's network to bridge",
            code="host-network-refused",
        )
    memory = spec.resources.memory_bytes
    arguments: dict[str, Any] = {
        "image": spec.image,
        "name": spec.name,
        "command": list(spec.command) or None,
        "environment": dict(spec.environment),
        "use_config_proxy": False,  # the contributor's proxy settings may contain a password
        "labels": {**labels(spec, node), LABEL_LOCAL_NETWORK: local_network},
        "detach": True,
        "mem_limit": memory,
        "memswap_limit": memory,  # limit of memory plus swap; equal values disable swap
        "nano_cpus": int(spec.resources.cpus * 1e9),
        "pids_limit": spec.resources.pids,
        "shm_size": spec.resources.shared_memory_bytes,
        **_NO_PRIVILEGES,
        "read_only": spec.read_only_root,
        "tmpfs": {"/tmp": "rw,nosuid,nodev,mode=1777"},  # noqa: S108 - the container's /tmp, not the host's
        "network_mode": _network(spec.network, network),
        "mounts": [_bind(mount) for mount in (*spec.mounts, *_same_paths(readable))],
        "log_config": LogConfig(type=LogConfig.types.JSON, config=_LOG_FILES),
    }
    if spec.entrypoint is not None:
        arguments["entrypoint"] = list(spec.entrypoint)
    if user is not None:
        arguments["user"] = user
    if spec.gpu_uuids:
        arguments["device_requests"] = [
            DeviceRequest(driver="nvidia", device_ids=list(spec.gpu_uuids), capabilities=[["gpu"]])
        ]
    return arguments


def holder_arguments(
    *,
    name: str,
    node: Address | str,
    image: str,
    command: Sequence[str],
    network: str,
    readable: Sequence[Path],
) -> dict[str, Any]:
    """Returns the arguments for `containers.create` of a network holder.

    Args:
        name: Name of the holder.
        node: This node's address, the value of the label `LABEL_WORKER`.
        image: The holder's image.
        command: Program that the holder runs, with its arguments.
        network: Name of the worker's own Docker network.
        readable: Files and directories of this machine that are mounted read-only at the same paths.
    """
    return {
        "image": image,
        "name": name,
        "entrypoint": list(command),
        "user": "0:0",
        "use_config_proxy": False,
        "labels": {LABEL_WORKER: node},
        "detach": True,
        "mem_limit": _HOLDER_BYTES,
        "memswap_limit": _HOLDER_BYTES,
        "pids_limit": 16,
        **_NO_PRIVILEGES,
        "cap_add": ["NET_ADMIN", "NET_RAW"],  # for the command that installs the rules; `iptables` needs both
        "read_only": True,
        "tmpfs": {"/run": "rw,nosuid,nodev,noexec,mode=755"},  # for the lock file of iptables
        "network_mode": network,
        "mounts": [_bind(mount) for mount in _same_paths(readable)],
        "log_config": LogConfig(type=LogConfig.types.NONE),
    }


_NO_PRIVILEGES: dict[str, Any] = {
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
    "privileged": False,
    "ipc_mode": "private",
}
_HOLDER_BYTES = 64 << 20
"""Memory limit of a network holder, in bytes; its peak is 4 MB."""


def labels(spec: ContainerSpec, node: Address) -> dict[str, str]:
    """Returns the labels by which a restarted worker recognises the container."""
    return {
        LABEL_WORKER: node,
        LABEL_ASSIGNMENT: spec.assignment_id,
        LABEL_FINGERPRINT: spec.fingerprint,
        LABEL_RESTART_NONCE: str(spec.restart_nonce),
        LABEL_GRACE: str(int(spec.stop_grace.total_seconds() * 1000)),
    }


def observed(attributes: dict[str, Any]) -> Container:
    """Parses the engine's description of a container."""
    written = attributes["Config"]["Labels"]
    state = attributes["State"]
    status = _STATUS.get(state["Status"], ContainerStatus.EXITED)
    ended = status is ContainerStatus.EXITED
    return Container(
        name=attributes["Name"].removeprefix("/"),
        assignment_id=written.get(LABEL_ASSIGNMENT, ""),
        fingerprint=written.get(LABEL_FINGERPRINT, ""),
        restart_nonce=_number(written.get(LABEL_RESTART_NONCE)),
        stop_grace=timedelta(milliseconds=_number(written.get(LABEL_GRACE))),
        status=status,
        exit_code=state.get("ExitCode") if ended else None,
        out_of_memory=bool(state.get("OOMKilled")) if ended else False,
        started_at=_time(state.get("StartedAt", "")),
    )


_STATUS = {
    "created": ContainerStatus.CREATED,
    "running": ContainerStatus.RUNNING,
    "paused": ContainerStatus.RUNNING,
    "restarting": ContainerStatus.RUNNING,
    "removing": ContainerStatus.EXITED,
    "exited": ContainerStatus.EXITED,
    "dead": ContainerStatus.EXITED,
}


def _network(mode: NetworkMode, own: str) -> str:
    return {NetworkMode.NONE: "none", NetworkMode.HOST: "host", NetworkMode.BRIDGE: own}[mode]


def _bind(mount: Mount) -> DockerMount:
    return DockerMount(target=mount.target, source=str(mount.source), type="bind", read_only=mount.read_only)


def _same_paths(readable: Sequence[Path]) -> list[Mount]:
    return [Mount(source=path, target=str(path), read_only=True) for path in readable]


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def _time(text: str) -> datetime | None:
    """Parses a timestamp of the engine, which has nanoseconds.

    The year 1 means "never".
    """
    if not text or text.startswith("0001"):
        return None
    try:
        return datetime.fromisoformat(text[:19]).replace(tzinfo=UTC)
    except ValueError:
        return None
