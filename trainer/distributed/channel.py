"""Communication of a process group: rank 0 broadcasts commands, and all ranks report their outcome.

It uses gloo, whichever backend moves the policy's tensors. A process that ends closes its connections, so the others
notice at once; a lost machine is noticed after the time limit. Traffic is neither encrypted nor signed: run the
processes on a private network.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

from trainer.distributed.commands import GroupCommand
from trainer.distributed.ranks import RankInfo
from trainer.errors import MeshBroken
from trainer.learning.sharding import make_mesh

# torch gives its distributed functions no types
_DISTRIBUTED: Any = distributed


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroupStatus:
    """Outcome of a command over all processes.

    Args:
        failed: Number of processes that could not do it.
        ending: Whether any process was asked to end.
    """

    failed: int
    ending: bool


class Channel:
    """Joins the mesh.

    Args:
        place: Which process this is.
        device: Its own.
        timeout: How long a process is waited for.

    Raises:
        MeshBroken: The others did not come.
    """

    def __init__(self, place: RankInfo, device: torch.device, *, timeout: timedelta) -> None:
        self.place = place
        self.device = device
        self.timeout = timeout
        with spoken("joining the other processes"):
            if device.type == "cuda":
                torch.cuda.set_device(device)
            _DISTRIBUTED.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl", timeout=timeout)
            self._group = _DISTRIBUTED.new_group(backend="gloo", timeout=timeout)
            self.mesh: DeviceMesh = make_mesh(device.type)

    def send(self, command: GroupCommand) -> None:
        """Tells all others; for process 0.

        Raises:
            MeshBroken: One of them is gone.
        """
        told = torch.frombuffer(bytearray(command.encode()), dtype=torch.uint8)
        with spoken(f"saying {command.word.value!r}"):
            self._broadcast(torch.tensor([len(told)]))
            self._broadcast(told)

    def receive(self) -> GroupCommand:
        """Receives the next command of rank 0.

        Raises:
            MeshBroken: It is gone.
        """
        length = torch.zeros(1, dtype=torch.int64)
        with spoken("waiting for process 0"):
            self._broadcast(length)
            told = torch.empty(int(length), dtype=torch.uint8)
            self._broadcast(told)
        return GroupCommand.decode(told.numpy().tobytes())

    def stand(self, *, failed: bool, ending: bool) -> ProcessGroupStatus:
        """Waits for the outcome of all processes and returns it.

        Raises:
            MeshBroken: One of them is gone.
        """
        said = torch.tensor([int(failed), int(ending)])
        with spoken("waiting for all processes"):
            _DISTRIBUTED.all_reduce(said, group=self._group)
        return ProcessGroupStatus(failed=int(said[0]), ending=bool(said[1]))

    def leave(self) -> None:
        """Leaves the mesh; a process that ends without doing so waits for the others."""
        with suppress(RuntimeError):  # connections that the others closed
            _DISTRIBUTED.destroy_process_group()

    def _broadcast(self, numbers: torch.Tensor) -> None:
        _DISTRIBUTED.broadcast(numbers, group_src=0, group=self._group)


@contextmanager
def spoken(what: str) -> Iterator[None]:
    """Translates torch's connection errors into an error about a lost process.

    Raises:
        MeshBroken: It is.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        why = str(error).strip().split("\n")[0][:200]
        raise MeshBroken(f"another process of the mesh ended or can't be reached, while {what}: {why}") from error
