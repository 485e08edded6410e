"""Processes of the devnet's services."""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import httpx

from cli.devnet.directory import DevnetDirectory
from cli.devnet.economy import VALIDATORS
from cli.devnet.options import RunOptions, RunScale
from cli.devnet.settings import (
    CLOCKS_DIFFER,
    ROOT,
    RUN,
    ServicePlaces,
    write_trainer_settings,
    write_validator_settings,
)
from cli.devnet.supervisor import Gate, ProcessSpec
from protocol.http.trust import no_authorities

_MAPPED_BYTES = 2 << 20
"""Value of glibc's `MALLOC_MMAP_THRESHOLD_`: glibc maps each larger allocation separately, and unmaps it when the
process frees it. By default glibc raises the threshold up to 32 MiB as allocations are freed. The heap then keeps the
gaps between smaller tensors: 0.3 GB with a model of 135 million parameters (measured)."""

WORKER = "worker"
"""Kind of the worker processes, see `ProcessSpec.kind`."""


def discovery_spec(directory: DevnetDirectory, places: ServicePlaces) -> ProcessSpec:
    """Returns the spec of the process `muster discovery serve`."""
    command = python("cli", "discovery", "serve", "--config", directory.configuration)
    return ProcessSpec(
        name="discovery", command=command, environment=environment(), gate=responds(places.discovery_port, "readyz")
    )


def orchestrator_spec(directory: DevnetDirectory, places: ServicePlaces) -> ProcessSpec:
    """Returns the spec of the process `muster orchestrator serve`."""
    command = python("cli", "orchestrator", "serve", "--config", directory.configuration)
    gate = responds(places.orchestrator_port, "readyz")
    return ProcessSpec(name="orchestrator", command=command, environment=environment(), gate=gate)


def origin_spec(directory: DevnetDirectory, places: ServicePlaces) -> ProcessSpec:
    """Returns the spec of `muster shardcast origin`, which watches the folder of versions."""
    directory.policies.mkdir(exist_ok=True, mode=0o700)
    return _shardcast_spec(directory, "origin", places.origin_port, "origin", "--watch", directory.policies)


def relay_spec(
    directory: DevnetDirectory, places: ServicePlaces, number: int, *, keep: int | None = None
) -> ProcessSpec:
    """Returns the spec of a process `muster shardcast relay`.

    Args:
        directory: Folder of the devnet.
        places: Addresses of the devnet's services.
        number: Number of the relay, from 1.
        keep: Number of versions that the relay keeps on disk; None for the relay's default.
    """
    store = directory.relays / str(number)
    store.mkdir(parents=True, exist_ok=True, mode=0o700)
    tolerance = str(CLOCKS_DIFFER.total_seconds())
    kept = ("--keep", str(keep)) if keep else ()
    arguments = ("relay", "--upstream", places.origin, "--store", store, "--clocks-differ", tolerance, *kept)
    return _shardcast_spec(directory, f"relay-{number}", places.relay_ports[number - 1], *arguments)


def _shardcast_spec(directory: DevnetDirectory, name: str, port: int, *arguments: str | Path) -> ProcessSpec:
    options = ("--run", RUN, "--port", str(port))
    command = python("cli", "--config", directory.configuration, "shardcast", *arguments, *options)
    return ProcessSpec(
        name=name, command=command, environment=environment(), gate=responds(port, "readyz"), kind="shardcast"
    )


def trainer_spec(directory: DevnetDirectory, places: ServicePlaces, run: RunOptions) -> ProcessSpec:
    """Returns the spec of `muster trainer run`, which ends after the run's last step."""
    settings = write_trainer_settings(directory, places, run)
    return ProcessSpec(
        name="trainer",
        command=python("cli", "trainer", "run", "--config", settings),
        environment=_computing(run.scale),
        grace=timedelta(seconds=15),
        ends=True,
        kind="learner",
    )


def validator_spec(
    directory: DevnetDirectory, places: ServicePlaces, number: int, scale: RunScale = RunScale()
) -> ProcessSpec:
    """Returns the spec of a process `muster validator run`; validators are numbered from 1."""
    settings = write_validator_settings(directory, places, number, scale)
    return ProcessSpec(
        name=VALIDATORS[number - 1],
        command=python("cli", "validator", "run", "--config", settings),
        environment=_computing(scale),
        # Not `readyz`: it succeeds only after the validator's self-test, for which other processes need not wait.
        gate=responds(places.validator_ports[number - 1], "healthz"),
        grace=timedelta(seconds=10),
        kind="learner",
    )


def _computing(scale: RunScale) -> dict[str, str]:
    """Returns the environment variables of a process that computes with the model."""
    memory = {"MALLOC_MMAP_THRESHOLD_": str(_MAPPED_BYTES)} if scale.return_memory else {}
    return {**environment(), "OMP_NUM_THREADS": "1", **memory}


def worker_spec(name: str, settings: Path, *, cheat: str = "") -> ProcessSpec:
    """Returns the spec of `muster worker run`, or of a worker that runs an attack."""
    command = python("cli", "worker", "run", "--config", settings)
    if cheat:
        command = python("cli.devnet.attacks", "run", "--cheat", cheat, "--config", settings)
    return ProcessSpec(name=name, command=command, environment=environment(), grace=timedelta(seconds=15), kind=WORKER)


def image_spec(task: str) -> ProcessSpec:
    """Returns the spec of the process that makes the container image of a task."""
    return ProcessSpec(name="image", command=python("cli.devnet.image", task), environment=environment())


def python(module: str, *arguments: str | Path) -> list[str]:
    """Returns the command that runs a module of this code."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def environment() -> dict[str, str]:
    """Returns the environment variables that let Python import this code from any directory."""
    inherited = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": str(ROOT) if not inherited else f"{ROOT}{os.pathsep}{inherited}"}


def responds(port: int, path: str) -> Gate:
    """Returns a gate that opens when a GET of the path succeeds."""

    async def gate() -> bool:
        async with httpx.AsyncClient(trust_env=False, timeout=2, verify=no_authorities()) as client:
            return (await client.get(f"http://127.0.0.1:{port}/{path}")).is_success

    return gate
