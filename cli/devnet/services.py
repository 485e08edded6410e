"""The services of a devnet: their settings files and their processes. No secret stands in a file but a key's own."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import httpx

from cli.devnet.directory import DevnetDirectory
from cli.devnet.options import RunOptions
from cli.devnet.settings_file import write_settings
from cli.devnet.supervisor import Gate, ProcessSpec
from protocol.http.tokens import hash_token, new_token
from protocol.identifiers import Address
from protocol.wire.nodes import RuntimeKind
from protocol.wire.pool import PAGE_PATH

POOL = 1
RUN = "devnet"
RELAYS = 2
GROUPS_PER_SLOT = 4
LANES = 4
"""Transactions with work, and with verdicts, that are under way at a time: nodes hand in together, and gas is free."""
ROOT = Path(__file__).resolve().parents[2]
"""Root folder of this code."""

WORKER = "worker"
"""The kind of the processes that are workers."""

_HEAD = "# Written by `muster devnet`; commands started above this folder find it.\n"
_BEAT_SECONDS = 1.0
"""Heartbeat interval of a devnet's nodes; in a real pool it is ten seconds or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlaces:
    """Addresses at which the services of a devnet reach each other."""

    rpc: str
    chain_id: int
    redis_url_file: Path
    discovery_port: int
    discovery_address: Address
    orchestrator_port: int
    origin_port: int
    relay_ports: tuple[int, ...]
    validator_ports: tuple[int, ...] = ()

    @property
    def discovery(self) -> str:
        """The discovery service with the address that it must have."""
        return f"http://127.0.0.1:{self.discovery_port}#{self.discovery_address}"

    @property
    def orchestrator(self) -> str:
        """The orchestrator's URL."""
        return f"http://127.0.0.1:{self.orchestrator_port}"

    @property
    def page(self) -> str:
        """The URL of the pool owner's web page."""
        return self.orchestrator + PAGE_PATH

    @property
    def origin(self) -> str:
        """The URL of the origin of checkpoints."""
        return f"http://127.0.0.1:{self.origin_port}"

    @property
    def relays(self) -> tuple[str, ...]:
        """The relays' URLs."""
        return tuple(f"http://127.0.0.1:{port}" for port in self.relay_ports)


def write_configuration(
    directory: DevnetDirectory, places: ServicePlaces, run: RunOptions, worker: tuple[str, RuntimeKind] | None
) -> None:
    """Writes `muster.toml`: what commands in another terminal and the services themselves read.

    Args:
        directory: Of the devnet.
        places: Of its services.
        run: How the run learns.
        worker: Name and runtime of the worker that `muster worker` commands are about; None where none runs.
    """
    tables: dict[str, Mapping[str, object]] = {
        "chain": {"rpc": places.rpc, "chain_id": places.chain_id, "deployment": "deployment.json"},
        "keys": {"directory": "keys", "password_file": "password"},
        "pool": {
            "id": POOL,
            "orchestrator": places.orchestrator,
            "discovery": [places.discovery],
            "token_file": directory.owner_token.name,
        },
        "discovery": {
            "port": places.discovery_port,
            "redis_url_file": places.redis_url_file,
            "chain_url": places.rpc,
            "deployment": directory.deployment,
            "keystore": directory.keys / "discovery.json",
            "password_file": directory.password,
            "poll_seconds": 0.5,
            "nodes_per_ip": 10_000,
        },
        "orchestrator": {
            "port": places.orchestrator_port,
            "public_url": places.orchestrator,
            "pool_id": POOL,
            "redis_url_file": places.redis_url_file,
            "chain_url": places.rpc,
            "deployment": directory.deployment,
            "keystore": directory.keys / "orchestrator.json",
            "manager_keystore": directory.keys / "manager.json",
            "manager_password_file": directory.password,
            "password_file": directory.password,
            "discovery": [places.discovery],
            "secrets_key_file": directory.path / "task-secrets.key",
            "storage_directory": directory.objects,
            "storage_reserve_bytes": 0,
            "shortest_interval_s": _BEAT_SECONDS,
            "unhealthy_after": 3.0,
            "dead_after": 10.0,
            "discovery_every_s": 1.0,
            "ledger_every_s": 0.2,
            "removals_every_s": 1.0,
            "eviction_rest_s": 3600.0,
            "webhooks_to_private_networks": True,
            "run": RUN,
            "run_async_level": run.async_level,
            "run_groups": run.groups,
            "run_groups_per_slot": GROUPS_PER_SLOT,
            "run_slots_per_node": 8,
            "run_lease_s": 60.0,
            "run_grace_s": 10.0,
            "run_pending_s": 90.0,
            "run_ask_again_s": 0.3,
            "run_kept_steps": 1_000,
            "relay_every_s": 0.5,
            "relay_transactions": LANES,
            "uploads_per_hour": 100_000,
            "node_rate_per_s": 100.0,
            "node_burst": 1_000,
        },
    }
    if worker is not None:
        tables["worker"] = _worker_table(directory, places, *worker)
    write_settings(directory.configuration, tables, head=_HEAD, tail=_token_table(directory))


def write_ledger_configuration(directory: DevnetDirectory, rpc: str, chain_id: int) -> None:
    """Writes `muster.toml` for a devnet without services."""
    tables: dict[str, Mapping[str, object]] = {
        "chain": {"rpc": rpc, "chain_id": chain_id, "deployment": "deployment.json"},
        "keys": {"directory": "keys", "password_file": "password"},
        "pool": {"id": POOL},
    }
    write_settings(directory.configuration, tables, head=_HEAD)


def write_worker_settings(directory: DevnetDirectory, places: ServicePlaces, name: str, runtime: RuntimeKind) -> Path:
    """Writes the settings of one worker, and returns where."""
    path = directory.path / "workers" / f"{name}.toml"
    path.parent.mkdir(exist_ok=True, mode=0o700)
    write_settings(path, {"worker": _worker_table(directory, places, name, runtime)})
    return path


def _worker_table(
    directory: DevnetDirectory, places: ServicePlaces, name: str, runtime: RuntimeKind
) -> dict[str, object]:
    return {
        "pool_id": POOL,
        "discovery": [places.discovery],
        "chain_url": places.rpc,
        "deployment": directory.deployment,
        "keystore": directory.keys / f"{name}.json",
        "password_file": directory.password,
        "state": directory.path / "workers" / name,
        "stop_grace_s": 5.0,
        "wait_at_most_s": 2.0,
        "task_niceness": 5,  # here they share the machine with everything that handles what they made
        "labels": {"devnet": name},
        "runtime": runtime,
        # Relays listen on this machine's loopback, which a container of its own network does not reach.
        "allow_host_network": True,
        "readable": [str(ROOT)],
    }


def discovery_spec(directory: DevnetDirectory, places: ServicePlaces) -> ProcessSpec:
    """`muster discovery serve`."""
    return _muster_spec(directory, "discovery", ["discovery", "serve"], ready(places.discovery_port))


def orchestrator_spec(directory: DevnetDirectory, places: ServicePlaces) -> ProcessSpec:
    """`muster orchestrator serve`."""
    return _muster_spec(directory, "orchestrator", ["orchestrator", "serve"], ready(places.orchestrator_port))


def worker_spec(name: str, settings: Path) -> ProcessSpec:
    """`muster worker run`."""
    command = [sys.executable, "-m", "cli", "worker", "run", "--config", str(settings)]
    return ProcessSpec(name=name, command=command, environment=environment(), grace=timedelta(seconds=15), kind=WORKER)


def image_spec(task: str) -> ProcessSpec:
    """Makes the image of a task."""
    command = [sys.executable, "-m", "cli.devnet.image", task]
    return ProcessSpec(name="image", command=command, environment=environment())


def origin_spec(directory: DevnetDirectory, places: ServicePlaces) -> ProcessSpec:
    """`muster shardcast origin` over the folder of versions."""
    directory.policies.mkdir(exist_ok=True, mode=0o700)
    arguments = ["origin", "--watch", str(directory.policies), "--run", RUN, "--port", str(places.origin_port)]
    return _shardcast_spec(directory, "origin", arguments, places.origin_port)


def relay_spec(directory: DevnetDirectory, places: ServicePlaces, number: int) -> ProcessSpec:
    """`muster shardcast relay`; numbered from 1."""
    port = places.relay_ports[number - 1]
    store = directory.path / "relays" / str(number)
    store.mkdir(parents=True, exist_ok=True, mode=0o700)
    arguments = ["relay", "--upstream", places.origin, "--store", str(store), "--run", RUN, "--port", str(port)]
    return _shardcast_spec(directory, f"relay-{number}", arguments, port)


def _shardcast_spec(directory: DevnetDirectory, name: str, arguments: list[str], port: int) -> ProcessSpec:
    command = [sys.executable, "-m", "cli", "--config", str(directory.configuration), "shardcast", *arguments]
    return ProcessSpec(name=name, command=command, environment=environment(), gate=ready(port), kind="shardcast")


def _muster_spec(directory: DevnetDirectory, name: str, arguments: list[str], gate: Gate) -> ProcessSpec:
    command = [sys.executable, "-m", "cli", *arguments, "--config", str(directory.configuration)]
    return ProcessSpec(name=name, command=command, environment=environment(), gate=gate)


def environment() -> dict[str, str]:
    """Returns the environment variables that let Python import this code from any directory."""
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": str(ROOT) if not inherited else f"{ROOT}{os.pathsep}{inherited}"}


def ready(port: int) -> Gate:
    """Returns a gate that opens when the service on this port reports that it is ready."""
    return _answers(port, "readyz")


def alive(port: int) -> Gate:
    """Returns a gate that opens when the service on this port answers; one with a self-test is ready later."""
    return _answers(port, "healthz")


def _answers(port: int, path: str) -> Gate:
    async def gate() -> bool:
        async with httpx.AsyncClient(trust_env=False, timeout=2) as client:
            return (await client.get(f"http://127.0.0.1:{port}/{path}")).is_success

    return gate


def _token_table(directory: DevnetDirectory) -> str:
    """The owner's token is made here, once; there is no default one."""
    if not directory.owner_token.exists():
        directory.owner_token.touch(mode=0o600)
        directory.owner_token.write_text(new_token() + "\n")
    hashed = hash_token(directory.owner_token.read_text())
    return f'\n[[orchestrator.tokens]]\nname = "owner"\nscope = "admin"\nhash = {json.dumps(hashed)}\n'
