"""Rank and device of this process under torchrun."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from protocol.errors import InvalidInput
from rollouts.models.devices import find_device
from trainer.errors import BadSettings

_NAMES = {"processes": "WORLD_SIZE", "rank": "RANK", "local_processes": "LOCAL_WORLD_SIZE", "local_rank": "LOCAL_RANK"}
_START = "start the trainer with torchrun, which sets these variables (docs/training-runs.md), or unset WORLD_SIZE"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """Rank of a process that torchrun started.

    Args:
        processes: Number of processes on all machines.
        rank: Rank of this process; rank 0 executes the run.
        local_processes: Number of processes on this machine.
        local_rank: Rank of this process on this machine.
    """

    processes: int
    rank: int
    local_processes: int
    local_rank: int

    @property
    def leads(self) -> bool:
        """Returns whether this process runs the training loop (rank 0)."""
        return self.rank == 0


def own_place(environment: Mapping[str, str]) -> RankInfo | None:
    """Returns the rank that torchrun gave this process; None if it is the only process.

    Args:
        environment: Environment variables of the process.

    Raises:
        BadSettings: Some of torchrun's variables are missing or invalid.
    """
    if environment.get("WORLD_SIZE", "1").strip() == "1":
        return None
    found: dict[str, int] = {}
    for field, name in {**_NAMES, "port": "MASTER_PORT"}.items():
        text = environment.get(name)
        if text is None:
            raise BadSettings(f"WORLD_SIZE is {environment['WORLD_SIZE'][:20]}, and {name} is not set", hint=_START)
        if not text.strip().isdecimal():
            raise BadSettings(f"{name} is {text[:20]!r}, not a number", hint=_START)
        found[field] = int(text)
    del found["port"]
    place = RankInfo(**found)
    if not (place.rank < place.processes and place.local_rank < place.local_processes <= place.processes):
        raise BadSettings(
            f"rank {place.rank} of {place.processes}, and local rank {place.local_rank} of "
            f"{place.local_processes} on this machine, are out of range",
            hint=_START,
        )
    return place


def device_of(name: str | None, place: RankInfo | None = None) -> torch.device:
    """Returns the named device; by default an accelerator if there is one.

    Each process of a mesh gets an accelerator of its own; on CPUs all processes share the device.

    Raises:
        InvalidInput: There is no such device, or there are fewer devices than processes.
    """
    device = find_device(name)
    if place is None or device.type == "cpu":
        return device
    if device.type != "cuda":
        raise InvalidInput(f"several processes can't train on {device}", hint="give cpu or cuda")
    if name is not None and ":" in name:
        raise InvalidInput(
            f"{place.local_processes} processes on this machine can't share {device}",
            hint="leave device out, or give cuda; CUDA_VISIBLE_DEVICES selects the GPUs that are used",
        )
    if (devices := torch.cuda.device_count()) < place.local_processes:
        raise InvalidInput(
            f"this machine has {devices} accelerators, and torchrun started {place.local_processes} processes on it",
            hint=f"start torchrun with --nproc-per-node {devices}, or the trainer with --device cpu",
        )
    return torch.device("cuda", place.local_rank)
