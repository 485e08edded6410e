"""Shards weights, gradients and optimiser averages over processes (FSDP2).

It also distributes the rows of a batch over the processes.

    torchrun --nproc-per-node 2 ...    # each process: make_mesh, then Learner(..., mesh=mesh)

Every process gets the same global batch and arranges it in the same rows, so every process can compute the divisor of
the loss. Each process trains on its own rows. A process with fewer rows repeats rows of other processes without
counting them, because gathering weights needs all processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import Module

from protocol.errors import InvalidInput
from trainer.learning.forward import layers_of
from trainer.learning.groups import TrainingGroup
from trainer.learning.layout import PackedBatch


def make_mesh(device: str) -> DeviceMesh:
    """Connects the processes that torchrun started: with gloo on CPUs, with NCCL on accelerators."""
    if not distributed.is_initialized():
        distributed.init_process_group("gloo" if device == "cpu" else "nccl")
    return init_device_mesh(device, (distributed.get_world_size(),))


def shard(model: Module, mesh: DeviceMesh) -> None:
    """Shards a model's weights over processes; a layer's weights are gathered only while it is computed."""
    for layer in layers_of(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def own_share(rows: Sequence[PackedBatch], mesh: DeviceMesh | None) -> Iterator[tuple[PackedBatch, bool]]:
    """Yields this process's rows, each with a flag whether the row counts.

    A row that is repeated only to keep the processes in step does not count.

    Each row counts in exactly one process.
    """
    processes, rank = (1, 0) if mesh is None else (mesh.size(), mesh.get_local_rank())
    for first in range(0, len(rows), processes):
        turn = first + rank
        yield (rows[turn], True) if turn < len(rows) else (rows[first], False)


def agreed(values: Sequence[float], mesh: DeviceMesh) -> list[float]:
    """Returns the first process's values on all processes, so that all processes make the same decision."""
    shared = torch.tensor(values, dtype=torch.float64, device=mesh.device_type)
    processes: Any = mesh.get_group()
    distributed.broadcast(shared, group_src=0, group=processes)
    return shared.tolist()


def check_same_batch(groups: Sequence[TrainingGroup], mesh: DeviceMesh) -> None:
    """Checks that all processes were given the same groups.

    Raises:
        InvalidInput: The groups differ; raised on all processes.
    """
    digest = hashlib.sha256()
    for group in groups:
        digest.update(b"group" + group.prompt_tokens.tobytes())
        for sample in group.samples:
            digest.update(repr(sample.reward).encode() + sample.output_tokens.tobytes() + sample.logprobs.tobytes())
            for turn in sample.turns:
                digest.update(b"turn" + turn.drawn.to_bytes(8, "big") + turn.given.tobytes())
    own = torch.frombuffer(bytearray(digest.digest()[:8]), dtype=torch.int64).to(mesh.device_type)
    processes: Any = mesh.get_group()  # torch does not annotate its distributed functions
    largest, smallest = own.clone(), own.clone()
    distributed.all_reduce(largest, op=distributed.ReduceOp.MAX, group=processes)
    distributed.all_reduce(smallest, op=distributed.ReduceOp.MIN, group=processes)
    if not torch.equal(largest, smallest):
        raise InvalidInput(
            "processes were given different groups", hint="give every process the same groups in the same order"
        )
