"""Converts a container spec to Docker SDK arguments. Pure functions, so that all protections are visible here.

No task spec can obtain capabilities, privilege escalation, the host's namespaces (except the network, if the
contributor allows it), paths of the host, or devices other than its GPUs.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from docker.types import DeviceRequest, LogConfig
from docker.types import Mount as DockerMount

from protocol.identifiers import Address
from protocol.wire.tasks import NetworkMode
from worker.runtime.interface import Container, ContainerSpec, ContainerStatus, LaunchRefused

LABEL_WORKER = "io.muster.worker"
LABEL_ASSIGNMENT = "io.muster.assignment"
LABEL_FINGERPRINT = "io.muster.fingerprint"
LABEL_RESTART_NONCE = "io.muster.restart-nonce"
LABEL_GRACE = "io.muster.stop-grace-ms"

_LOG_FILES = {"max-size": "16m", "max-file": "2"}
"""Limits of the engine's own log; `muster worker logs` reads the worker's log store instead."""


def creation_arguments(
    spec: ContainerSpec, *, node: Address, network: str, allow_host_network: bool, user: str | None
) -> dict[str, Any]:
    """Returns the arguments of the SDK's `containers.create`.

    Args:
        spec: Spec of the container.
        node: This node's address.
        network: Name of the worker's own network.
        allow_host_network: Whether the contributor allows tasks to use the host's network.
        user: `uid:gid` to run as instead of the image's user.

    Raises:
        LaunchRefused: The task requests the host's network and the contributor does not allow it.
    """
    if spec.network is NetworkMode.HOST and not allow_host_network:
        raise LaunchRefused(
            "the task asks for the host's network, which this contributor does not allow",
            hint="ask the contributor to set allow_host_network in [worker], or give the task the network bridge",
            code="host-network-refused",
        )
    memory = spec.resources.memory_bytes
    arguments: dict[str, Any] = {
        "image": spec.image,
        "name": spec.name,
        "command": list(spec.command) or None,
        "environment": dict(spec.environment),
        "use_config_proxy": False,  # the contributor's proxy settings may contain a password
        "labels": labels(spec, node),
        "detach": True,
        "mem_limit": memory,
        "memswap_limit": memory,  # memory plus swap: equal values disable swap
        "nano_cpus": int(spec.resources.cpus * 1e9),
        "pids_limit": spec.resources.pids,
        "shm_size": spec.resources.shared_memory_bytes,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "privileged": False,
        "read_only": spec.read_only_root,
        "tmpfs": {"/tmp": "rw,nosuid,nodev,mode=1777"},  # noqa: S108 - the container's own, not the host's
        "ipc_mode": "private",
        "network_mode": _network(spec.network, network),
        "mounts": [
            DockerMount(target=mount.target, source=str(mount.source), type="bind", read_only=mount.read_only)
            for mount in spec.mounts
        ],
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


def labels(spec: ContainerSpec, node: Address) -> dict[str, str]:
    """Returns the labels by which the worker recognises the container after a restart."""
    return {
        LABEL_WORKER: node,
        LABEL_ASSIGNMENT: spec.assignment_id,
        LABEL_FINGERPRINT: spec.fingerprint,
        LABEL_RESTART_NONCE: str(spec.restart_nonce),
        LABEL_GRACE: str(int(spec.stop_grace.total_seconds() * 1000)),
    }


def observed(attributes: dict[str, Any]) -> Container:
    """Parses the engine's description of one of this worker's containers."""
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


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0


def _time(text: str) -> datetime | None:
    """Parses the engine's time stamp, which has nanoseconds; year 1 means never."""
    if not text or text.startswith("0001"):
        return None
    try:
        return datetime.fromisoformat(text[:19]).replace(tzinfo=UTC)
    except ValueError:
        return None
