"""Settings of a worker, in the table `[worker]` of the configuration file.

Settings can also come from `MUSTER_WORKER_…` variables and flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from protocol.runtime.settings import Settings, default_directory
from protocol.wire.base import Labels
from protocol.wire.nodes import RuntimeKind

GIBIBYTE = 1 << 30


class LocalNetwork(StrEnum):
    """Whether tasks may reach this machine and its local network."""

    DENY = "deny"
    ALLOW = "allow"


def default_state() -> Path:
    """Returns the default state directory."""
    return default_directory("worker")


class WorkerSettings(Settings):
    """Settings of one worker."""

    service: ClassVar[str] = "worker"

    pool_id: int = Field(ge=1, description="Number of the pool to join on the ledger")
    discovery: tuple[str, ...] = Field(
        min_length=1,
        max_length=16,
        description="URLs of discovery services to register with; `#0x…` adds the address that the service must have",
    )
    chain_url: SecretStr = Field(SecretStr("http://127.0.0.1:8545"), description="JSON-RPC endpoint of the chain")
    deployment: Path = Field(description="File that names the ledger's contracts")
    keystore: Path | None = Field(None, description="Keystore file of the node's key; or MUSTER_NODE_KEY")
    password_file: Path | None = Field(None, description="File with the keystore's password; or MUSTER_NODE_PASSWORD")
    state: Path = Field(
        default_factory=default_state, description="State directory with volumes, logs and queue; one per worker"
    )
    runtime: RuntimeKind | None = Field(
        None, description="docker or process; by default Docker if an engine answers, else the process sandbox"
    )
    docker_host: str | None = Field(None, description="The engine's unix socket, as unix:///path; default DOCKER_HOST")
    readable: tuple[Path, ...] = Field(
        (), description="Further files and directories that tasks may read, at the same paths (packages, data sets)"
    )
    task_niceness: int = Field(
        0, ge=0, le=19, description="Niceness added to tasks in the process sandbox, as by `nice`"
    )
    allow_host_network: bool = Field(
        False, description="Let tasks use this machine's network: tasks with network host; without Docker also bridge"
    )
    allow_plain_http: bool = Field(
        False, description="Allow plain http to other machines; only inside an encrypted network"
    )
    local_network: LocalNetwork | None = Field(
        None,
        description="deny keeps tasks in Docker away from private networks and this machine; by default deny, but "
        "allow with allow_host_network or allow_plain_http",
    )
    allow_networks: tuple[IPv4Network, ...] = Field(
        (),
        max_length=64,
        description="Networks that tasks reach, and where registries and stores may be, although local_network is "
        "deny, such as 10.0.0.5/32",
    )
    labels: Labels = Field({}, description="Labels by which tasks can select this machine")
    most_file_bytes: int = Field(2 * GIBIBYTE, ge=1, description="Maximum bytes of a file that a task delivers")
    most_spooled_bytes: int = Field(20 * GIBIBYTE, ge=1, description="Maximum bytes of all queued files together")
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="Serve /metrics on this port of the loopback interface; default: do not"
    )
    unused_kept_s: float = Field(
        14 * 86_400.0,
        ge=0,
        description="Seconds after which Docker images that Muster pulled, and policy versions, are removed if no task "
        "used them; 0: never",
    )
    stop_grace_s: float = Field(60.0, ge=0, le=3600, description="Seconds after SIGTERM for delivering queued files")
    wait_at_most_s: float = Field(
        60.0, gt=0, le=3600, description="Longest pause in seconds between attempts to reach a service that is down"
    )

    @field_validator("local_network")
    @classmethod
    def _no_host_network(cls, value: LocalNetwork | None, info: ValidationInfo) -> LocalNetwork | None:
        if value is LocalNetwork.DENY and info.data.get("allow_host_network"):
            raise ValueError(
                "allow_host_network = true lets tasks use this machine's network, and so its local network; remove one "
                "of the two settings"
            )
        return value

    @field_validator("allow_networks")
    @classmethod
    def _only_with_deny(cls, value: tuple[IPv4Network, ...], info: ValidationInfo) -> tuple[IPv4Network, ...]:
        data = info.data
        chosen, local = data.get("local_network"), data.get("allow_host_network") or data.get("allow_plain_http")
        if value and "local_network" in data and not _denies(chosen, pool_is_local=bool(local)):
            raise ValueError('these networks are exceptions to local_network = "deny", which is not set')
        return value

    @classmethod
    def applied_defaults(cls, given: Mapping[str, Any]) -> Mapping[str, object]:
        """Returns what applies without the setting `local_network`."""
        local = any(str(given.get(name)).lower() in _TRUE for name in ("allow_host_network", "allow_plain_http"))
        return {"local_network": LocalNetwork.DENY if _denies(None, pool_is_local=local) else LocalNetwork.ALLOW}

    @property
    def denies_local_network(self) -> bool:
        """Whether tasks in Docker are kept away from the local network."""
        return _denies(self.local_network, pool_is_local=self.allow_host_network or self.allow_plain_http)


_TRUE = frozenset({"true", "1", "yes", "on", "y", "t"})
"""Texts of environment variables that pydantic reads as true."""


def _denies(chosen: LocalNetwork | None, *, pool_is_local: bool) -> bool:
    """Returns whether local_network is deny, chosen or by default.

    Args:
        chosen: The setting.
        pool_is_local: Whether other settings say that the relays of the pool may be in a private network: tasks use
            this machine's network, or plain http is allowed.
    """
    return not pool_is_local if chosen is None else chosen is LocalNetwork.DENY
