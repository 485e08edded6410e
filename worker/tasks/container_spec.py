"""Builds a container spec from an assignment: variables, volumes, GPUs and fingerprint.

All functions are pure.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Self

from protocol.identifiers import Address
from protocol.wire.nodes import Gpu
from protocol.wire.tasks import VARIABLES, Assignment, GpuNeeds
from worker.runtime.interface import ContainerSpec, LaunchRefused, Mount, name_prefix
from worker.state import StateDirectory

BRIDGE_DIRECTORY = "/muster/bridge"
BRIDGE_SOCKET = f"{BRIDGE_DIRECTORY}/bridge.sock"
DATA_DIRECTORY = "/muster/data"
SHARED_DIRECTORY = "/muster/shared"
TOKEN_VARIABLE = "MUSTER_BRIDGE_TOKEN"  # noqa: S105 - the variable's name, not a token
"""Environment variable with the bridge token.

Every task has this variable in addition to `VARIABLES`. Commands can't use it as `${…}`, because other users can see
command lines.
"""

_VARIABLE = re.compile(r"\$\{(MUSTER_[^}]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledGpu:
    """A GPU of this machine, with the UUID by which a container engine assigns it."""

    gpu: Gpu
    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Volumes:
    """Host directories of one task's volumes."""

    task: Path
    """Parent directory of the task's own volumes."""
    shared: Path
    """Directory of the shared volume."""
    bridge: Path
    """Directory of the bridge's socket."""

    @classmethod
    def of(cls, state: StateDirectory, *, task_id: str, assignment_id: str) -> Self:
        """Returns the directories for a task and its assignment.

        A task's own volumes outlive its assignments; the bridge directory does not.
        """
        return cls(task=state.tasks / task_id, shared=state.shared, bridge=state.bridges / assignment_id)

    @property
    def data(self) -> Path:
        """Directory of the task's data volume, the only one from which files can be delivered."""
        return self.task / "data"

    def further(self, target: str) -> Path:
        """Returns the directory of the task's additional volume with this mount target."""
        return self.task / f"volume-{hashlib.sha256(target.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlacement:
    """Everything besides the assignment that a container spec depends on."""

    node: Address
    pool_id: int
    volumes: Volumes
    gpus: tuple[InstalledGpu, ...]
    bridge_token: str


def container_spec(
    assignment: Assignment, placement: ContainerPlacement, *, fingerprint: str, number: int
) -> ContainerSpec:
    """Returns the spec of the container to start.

    Args:
        assignment: Assignment from the orchestrator.
        placement: Node, pool, volumes, GPUs and bridge token.
        fingerprint: Result of `fingerprint()`.
        number: Number of the launch, which is part of the container's name.

    Raises:
        LaunchRefused: A `${MUSTER_…}` variable or a kind of network or restart is unknown, or this machine has too few
            matching GPUs.
    """
    spec = assignment.spec
    for name, value in (("network", spec.network), ("restart", spec.restart.kind)):
        if not value.is_known:
            raise LaunchRefused(
                f"the task's {name} is {value!s}, which this release does not know",
                hint="upgrade: muster worker upgrade",
                code="unknown-value",
            )
    gpus = choose_gpus(spec.gpus, placement.gpus)
    mounts, data, shared = _mounts(assignment, placement.volumes)
    values = variables(assignment, placement, gpu_count=len(gpus), data=data, shared=shared)
    environment = {name: expand(value, values) for name, value in spec.environment.items()}
    secrets = {name: secret.get_secret_value() for name, secret in assignment.secrets.items()}
    return ContainerSpec(
        name=f"{name_prefix(placement.node)}{assignment.id[:12]}-{number}",
        assignment_id=assignment.id,
        fingerprint=fingerprint,
        restart_nonce=assignment.restart_nonce,
        image=spec.image,
        entrypoint=None if spec.entrypoint is None else tuple(expand(text, values) for text in spec.entrypoint),
        command=tuple(expand(text, values) for text in spec.command),
        environment={**environment, **secrets, **values, TOKEN_VARIABLE: placement.bridge_token},
        mounts=mounts,
        resources=spec.resources,
        gpu_uuids=tuple(gpu.uuid for gpu in gpus),
        gpu_indices=tuple(gpu.gpu.index for gpu in gpus),
        network=spec.network,
        read_only_root=spec.read_only_root,
        stop_grace=timedelta(seconds=spec.stop_grace_seconds),
    )


def variables(
    assignment: Assignment, placement: ContainerPlacement, *, gpu_count: int, data: str, shared: str
) -> dict[str, str]:
    """Returns the value of every variable in `VARIABLES`."""
    group = assignment.group
    values = {
        "MUSTER_POOL_ID": str(placement.pool_id),
        "MUSTER_NODE_ADDRESS": placement.node,
        "MUSTER_TASK_ID": assignment.task_id,
        "MUSTER_TASK_NAME": assignment.spec.name,
        "MUSTER_ASSIGNMENT_ID": assignment.id,
        "MUSTER_GENERATION": str(assignment.generation),
        "MUSTER_GROUP_ID": group.id if group else "",
        "MUSTER_GROUP_RANK": str(group.rank) if group else "",
        "MUSTER_GROUP_SIZE": str(group.size) if group else "",
        "MUSTER_GPU_COUNT": str(gpu_count),
        "MUSTER_DATA_DIR": data,
        "MUSTER_SHARED_DIR": shared,
        "MUSTER_BRIDGE_SOCKET": BRIDGE_SOCKET,
    }
    return {name: values[name] for name in VARIABLES}


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replaces `${MUSTER_…}` variables in a text.

    Other dollar expressions stay, for the task's own shell.

    Raises:
        LaunchRefused: A variable is unknown.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name not in values:
            raise LaunchRefused(
                f"the variable ${{{name[:80]}}} is unknown",
                hint=f"known variables are {', '.join(sorted(values))}",
                code="unknown-variable",
            )
        return values[name]

    return _VARIABLE.sub(value, text)


def fingerprint(assignment: Assignment, *, secret: bytes) -> str:
    """Returns a hash of everything from which the container is made.

    A new container is needed only if the hash changes.

    The hash does not cover replicas, priority and other fields for scheduling. The hash covers the generation number
    only if the task uses `${MUSTER_GENERATION}`. The hash is an HMAC, because it covers secrets and is stored in labels
    that others can read.
    """
    spec = assignment.spec.model_dump_json(exclude=_NOT_THE_CONTAINERS)
    parts = [spec, assignment.task_id]
    parts += [f"{name}={value.get_secret_value()}" for name, value in sorted(assignment.secrets.items())]
    if assignment.group is not None:
        parts.append(assignment.group.model_dump_json())
    if "${MUSTER_GENERATION}" in spec:
        parts.append(str(assignment.generation))
    message = b"".join(len(part.encode()).to_bytes(8, "big") + part.encode() for part in parts)
    return hmac.new(secret, message, hashlib.sha256).hexdigest()[:32]


_NOT_THE_CONTAINERS = {
    "selector",
    "replicas",
    "group_size",
    "priority",
    "deadline_ms",
    "restart",
}
"""Fields of a task's spec that do not change its container."""


def choose_gpus(needs: GpuNeeds, installed: Sequence[InstalledGpu]) -> tuple[InstalledGpu, ...]:
    """Returns the first GPUs that meet the task's needs.

    Raises:
        LaunchRefused: Too few GPUs meet the needs.
    """
    if needs.count == 0:
        return ()
    fitting = [candidate for candidate in installed if needs.accepts(candidate.gpu)]
    if len(fitting) < needs.count:
        wanted = " or ".join(needs.models) or "GPU"
        raise LaunchRefused(
            f"the task needs {needs.count} of {wanted} with {needs.memory_bytes / 2**30:.0f} GiB; "
            f"{len(fitting)} of this machine's {len(installed)} GPUs match",
            code="too-few-gpus",
        )
    return tuple(fitting[: needs.count])


def _mounts(assignment: Assignment, volumes: Volumes) -> tuple[tuple[Mount, ...], str, str]:
    """Returns the mounts, and the paths of data volume and shared volume in the container."""
    mounts = [Mount(source=volumes.bridge, target=BRIDGE_DIRECTORY, read_only=True)]
    data = shared = ""
    for volume in assignment.spec.volumes:
        if volume.shared:
            source, shared = volumes.shared, shared or volume.target
        elif not data:
            source, data = volumes.data, volume.target
        else:
            source = volumes.further(volume.target)
        mounts.append(Mount(source=source, target=volume.target, read_only=volume.read_only))
    if not data:
        data = DATA_DIRECTORY
        mounts.append(Mount(source=volumes.data, target=data))
    if not shared:
        shared = SHARED_DIRECTORY
        mounts.append(Mount(source=volumes.shared, target=shared))
    for mount in mounts:
        refuse_target(mount.target)
    return tuple(mounts), data, shared


def refuse_target(target: str) -> None:
    """Checks that a volume may be mounted at this path in the container.

    Raises:
        LaunchRefused: The path would hide system files, or contains `..`.
    """
    path = Path("/" + target.lstrip("/"))  # pathlib keeps a leading `//`, which differs from `/`
    if ".." in path.parts or path == Path("/") or path.parts[1] in {"proc", "sys", "dev", "etc"}:
        raise LaunchRefused(f"a volume can't be mounted at {target}", hint="choose a path such as /data")
