"""Registrations of nodes at a discovery service, and the node records that pools read."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import Field

from protocol.enumerations import WireEnum
from protocol.identifiers import WireAddress
from protocol.wire.base import Bytes, Labels, Milliseconds, PoolId, ShortText, WireModel


class NodeState(WireEnum):
    """State of a node, as the orchestrator sees it."""

    DISCOVERED = "discovered"
    INVITED = "invited"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DEAD = "dead"
    DRAINING = "draining"
    EVICTED = "evicted"
    BANNED = "banned"


class RuntimeKind(WireEnum):
    """Runtime in which a worker runs tasks."""

    DOCKER = "docker"
    PROCESS = "process"


class Gpu(WireModel):
    """One GPU, as NVML describes it."""

    index: Annotated[int, Field(ge=0, le=255)]
    model: ShortText
    memory_bytes: Bytes


def gpu_fits(gpu: Gpu, *, memory_bytes: int, models: Collection[str]) -> bool:
    """Returns whether a GPU has enough memory and is one of the models.

    If `models` is empty, any model fits.
    """
    return gpu.memory_bytes >= memory_bytes and (not models or gpu.model in models)


class Hardware(WireModel):
    """Hardware of a machine.

    Its GPUs may be of different models.
    """

    cpu_model: ShortText
    cpu_cores: Annotated[int, Field(ge=1, le=4096)]
    architecture: ShortText
    memory_bytes: Bytes
    disk_free_bytes: Bytes
    gpus: Annotated[tuple[Gpu, ...], Field(max_length=64)] = ()
    gpu_driver: ShortText | None = None


class Software(WireModel):
    """Software of a worker."""

    worker_version: ShortText
    protocol_version: Annotated[int, Field(ge=1, le=65535)]
    operating_system: ShortText
    runtimes: Annotated[tuple[RuntimeKind, ...], Field(min_length=1, max_length=4)]
    docker_version: ShortText | None = None
    gpu_containers: bool = False
    """Whether the Docker engine can pass GPUs to containers."""


class Registration(WireModel):
    """Body of `PUT /v1/nodes/{address}`, signed by the node.

    The node sends it again before the record expires.
    """

    pool_id: PoolId
    hardware: Hardware
    software: Software
    labels: Labels = {}


class NodeRecord(WireModel):
    """One node, as discovery shows it to the pool that the node wants to join."""

    address: WireAddress
    registration: Registration
    ip: ShortText
    """Source IP of the registration, as discovery saw it; empty if the node registered with another service only."""
    first_seen_ms: Milliseconds
    last_seen_ms: Milliseconds
    expires_at_ms: Milliseconds
    provider: WireAddress | None
    """Wallet that registered the node on the ledger; None if the node is not registered there."""
    stake: Annotated[str, Field(pattern=r"^[0-9]{1,78}$", examples=["50000000000000000000"])]
    """Active stake of the provider in the token's smallest unit, as decimal digits."""
    banned: bool
    """Whether the pool banned the node or its provider."""
    facts_as_of_ms: Milliseconds = 0
    """Time of discovery's last complete read of the ledger, from which provider, stake and ban come; 0 if there was
    none.
    """
    signed_for: WireAddress | None = None
    """Address of the discovery service to which the node sent the registration: this service, or a peer of it. None
    if an older release stored the record."""


class NodePage(WireModel):
    """Answer of `GET /v1/pools/{id}/nodes`."""

    nodes: tuple[NodeRecord, ...]
    next_cursor: str | None
