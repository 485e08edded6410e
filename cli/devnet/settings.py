"""Settings files of the devnet's services.

The files are TOML, readable by the owner only, and written atomically. They hold no secrets; keys and tokens are in
separate files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from cli.devnet.base import make_base
from cli.devnet.directory import DevnetDirectory
from cli.devnet.economy import VALIDATORS
from cli.devnet.options import RunOptions, RunScale
from protocol.http.tokens import hash_token, new_token
from protocol.identifiers import Address
from protocol.identity.scopes import Scope
from protocol.runtime.files import write_atomically
from protocol.wire.me import ME_PATH
from protocol.wire.nodes import RuntimeKind
from protocol.wire.pool import PAGE_PATH
from protocol.wire.public import PUBLIC_PATH
from trainer.presets import devnet_base

POOL = 1
RUN = "devnet"
CLOCKS_DIFFER = timedelta(seconds=10)
"""Tolerated difference between the chain's time and a service's clock; small, because all use this machine's clock."""
LANES = 4
"""Maximum number of unconfirmed transactions of the relayer, and of each validator. This is more than the default of 2,
because many nodes submit at once, and the additional gas costs nothing in a devnet."""
ROOT = Path(__file__).resolve().parents[2]
"""Folder that holds this code's packages."""

Tables = Mapping[str, Mapping[str, object]]

_HEAD = "# Written by `muster devnet`; read by `muster` commands started in this folder, or above a folder .devnet.\n"
_HEARTBEAT_SECONDS = 1.0
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
    gateway_port: int = 0
    trainer_metrics_port: int | None = None
    worker_metrics_ports: Mapping[str, int] = field(default_factory=dict)
    """Ports of the workers' metrics, by name of the worker."""

    @property
    def gateway(self) -> str:
        """URL of the gateway (`--serve`)."""
        return f"http://127.0.0.1:{self.gateway_port}"

    @property
    def discovery(self) -> str:
        """URL of the discovery service, with the address of its key as the fragment."""
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
    def public_page(self) -> str:
        """The URL of the pool's public web page."""
        return self.orchestrator + PUBLIC_PATH

    @property
    def contributor_page(self) -> str:
        """The URL of the contributors' web page, which needs a one-time link of `muster worker page`."""
        return self.orchestrator + ME_PATH

    @property
    def origin(self) -> str:
        """The URL of the origin of checkpoints."""
        return f"http://127.0.0.1:{self.origin_port}"

    @property
    def relays(self) -> tuple[str, ...]:
        """The relays' URLs."""
        return tuple(f"http://127.0.0.1:{port}" for port in self.relay_ports)


def write_configuration(
    directory: DevnetDirectory,
    places: ServicePlaces,
    run: RunOptions,
    worker: tuple[str, RuntimeKind] | None,
    *,
    gateway: Mapping[str, object] | None = None,
) -> None:
    """Writes `muster.toml`, which the services and the user's `muster` commands read.

    Args:
        directory: Folder of the devnet.
        places: Addresses of the devnet's services.
        run: Options of the run.
        worker: Name and runtime of the worker on which the user's `muster worker` commands act; None if no worker runs.
        gateway: Settings of the gateway; None for a run that trains.
    """
    serving = {} if gateway is None else {"run_serving": True, "run_gateway_url": places.gateway}
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
            "shortest_interval_s": _HEARTBEAT_SECONDS,
            "unhealthy_after": 3.0,
            "dead_after": 10.0,
            "discovery_every_s": 1.0,
            "ledger_every_s": 0.2 * run.scale.polling,
            "removals_every_s": 1.0,
            "eviction_rest_s": 3600.0,
            "webhooks_to_private_networks": True,
            "run": RUN,
            "run_async_level": run.async_level,
            "run_groups": run.scale.groups,
            "run_groups_per_slot": run.scale.groups_per_slot,
            "run_slots_per_node": run.scale.slots_per_node,
            "run_lease_s": run.scale.lease.total_seconds(),
            "run_grace_s": 10.0,
            "run_pending_s": 1.5 * run.scale.judge_period.total_seconds(),
            "run_ask_again_s": 0.3 * run.scale.polling,
            "run_kept_steps": 1_000,
            "relay_every_s": 0.5,
            "relay_transactions": LANES,
            "uploads_per_hour": 100_000,
            "node_rate_per_s": 100.0,
            "node_burst": 1_000,
            **serving,
        },
    }
    if gateway is not None:
        tables["gateway"] = gateway
    if worker is not None:
        tables["worker"] = _worker_table(directory, places, *worker, run=run)
    _write_settings(directory.configuration, tables, head=_HEAD, tail=_token_tables(directory))


def write_ledger_configuration(directory: DevnetDirectory, rpc: str, chain_id: int) -> None:
    """Writes `muster.toml` for a devnet without services."""
    tables: dict[str, Mapping[str, object]] = {
        "chain": {"rpc": rpc, "chain_id": chain_id, "deployment": "deployment.json"},
        "keys": {"directory": "keys", "password_file": "password"},
        "pool": {"id": POOL},
    }
    _write_settings(directory.configuration, tables, head=_HEAD)


def write_worker_settings(
    directory: DevnetDirectory, places: ServicePlaces, name: str, runtime: RuntimeKind, run: RunOptions
) -> Path:
    """Writes the settings of one worker, and returns the file."""
    path = directory.path / "workers" / f"{name}.toml"
    path.parent.mkdir(exist_ok=True, mode=0o700)
    _write_settings(path, {"worker": _worker_table(directory, places, name, runtime, run=run)})
    return path


def _worker_table(
    directory: DevnetDirectory, places: ServicePlaces, name: str, runtime: RuntimeKind, *, run: RunOptions
) -> dict[str, object]:
    code = () if runtime is RuntimeKind.DOCKER else (ROOT,)  # the container image has its own copy of the code
    datasets = () if run.model is None else run.model.datasets
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
        "task_niceness": 5,  # so that services get CPU time before tasks
        "labels": {"devnet": name},
        "runtime": runtime,
        "metrics_port": places.worker_metrics_ports.get(name),
        # Relays listen on this machine's loopback, which a container can reach only through the host's network.
        "allow_host_network": True,
        "local_network": "allow",
        "readable": [str(path) for path in (*code, *datasets)],
    }


def write_trainer_settings(directory: DevnetDirectory, places: ServicePlaces, run: RunOptions) -> Path:
    """Writes the settings of the trainer, and returns the file."""
    table: dict[str, object] = {
        "run": RUN,
        "pool_id": POOL,
        "orchestrator": places.orchestrator,
        "chain_url": places.rpc,
        "deployment": directory.deployment,
        "keystore": directory.keys / "publisher.json",
        "password_file": directory.password,
        "start": devnet_base() if run.model is None else make_base(directory, run.model),
        "policies": directory.policies,
        "state": directory.trainer,
        "relays": list(places.relays),
        "dtype": "float32",
        "keep_versions": run.scale.keep_versions,
        "clocks_differ_s": CLOCKS_DIFFER.total_seconds(),
        "state_every": run.scale.state_every,
        "device": "cpu",
        "steps": run.steps,
        "seed": run.seed,
        "groups_per_step": run.scale.groups,
        "asynchrony": run.asynchrony,
        "linger_s": 0.0,
        "poll_s": 0.2 * run.scale.polling,
        "patience_s": 60.0,
        "metrics_port": places.trainer_metrics_port,
        "evaluate_every": run.scale.evaluate_every,
        "evaluation_prompts": run.scale.evaluation_prompts,
        "evaluation_samples": run.scale.evaluation_samples,
        "learning": run.scale.learning,
    }
    path = directory.path / "trainer.toml"
    _write_settings(path, {"trainer": table})
    return path


def write_validator_settings(
    directory: DevnetDirectory, places: ServicePlaces, number: int, scale: RunScale = RunScale()
) -> Path:
    """Writes the settings of a validator, numbered from 1, and returns the file."""
    name = VALIDATORS[number - 1]
    home = directory.path / "validators" / str(number)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    table: dict[str, object] = {
        "port": places.validator_ports[number - 1],
        "pool_id": POOL,
        "orchestrator": places.orchestrator,
        "redis_url_file": places.redis_url_file,
        "chain_url": places.rpc,
        "deployment": directory.deployment,
        "keystore": directory.keys / f"{name}.json",
        "password_file": directory.password,
        "directory": home,
        "workers": 1,
        "lease_s": 5.0,
        "poll_s": 0.04 * scale.polling,
        "takeover_s": 5.0,
        "verdict_transactions": LANES,
        "finalise_every_s": 3.0,
        "trial": 64,
        "first_pause_s": 0.2,
        "longest_pause_s": 2.0,
        "reserve_bytes": 0,
        "policy_memory_bytes": scale.policy_memory,
        "policies": directory.policies if scale.share_versions else None,
        "epoch_s": scale.judge_period.total_seconds(),  # a validator refuses epochs shorter than the judge period
        "device": "cpu",
    }
    path = directory.path / f"{name}.toml"
    _write_settings(path, {"validator": table})
    return path


def _token_tables(directory: DevnetDirectory) -> str:
    """Returns the TOML tables with the hashes of the pool owner's token and of a token that may only read.

    The first call makes the tokens.
    """
    places = (("owner", Scope.ADMIN, directory.owner_token), ("reader", Scope.READ, directory.reader_token))
    tables = ""
    for name, scope, path in places:
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(new_token() + "\n")
        hashed = json.dumps(hash_token(path.read_text()))
        tables += f'\n[[orchestrator.tokens]]\nname = "{name}"\nscope = "{scope.value}"\nhash = {hashed}\n'
    return tables


def _write_settings(path: Path, tables: Tables, *, head: str = "", tail: str = "") -> None:
    write_atomically(path, head + _as_toml(tables) + tail)


def _as_toml(tables: Tables) -> str:
    """Formats the tables as TOML."""
    lines = []
    for name, table in tables.items():
        lines.append(f"\n[{name}]")
        lines += [f"{key} = {_value(value)}" for key, value in table.items() if value is not None]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    """Formats a value as TOML.

    JSON text is valid TOML for strings, numbers, booleans and arrays; tables are written inline.
    """
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_value(item)}" for key, item in value.items()) + " }"
    return json.dumps(str(value) if isinstance(value, Path) else value)
