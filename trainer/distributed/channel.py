"""Communication of a process group: process 0 broadcasts commands, and all processes report their outcome.

The channel uses gloo, even where NCCL moves the policy's tensors. A process that ends closes its connections, so the
other processes notice its end at once. They notice the loss of a machine only after the time limit. Traffic is neither
encrypted nor signed: run the processes on a private network.
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

# torch does not annotate its distributed functions
_DISTRIBUTED: Any = distributed


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroupStatus:
    """Outcome of a command over all processes.

    Args:
        failed: Number of processes in which the command failed.
        ending: Whether any process received a request to shut down.
    """

    failed: int
    ending: bool


class Channel:
    """Channel to the other processes of a mesh; creating it joins the mesh.

    Args:
        place: Rank of this process.
        device: Device of this process.
        timeout: Maximum wait for another process.

    Raises:
        MeshBroken: The other processes did not join in time.
    """

    def __init__(self, place: RankInfo, device: torch.device, *, timeout: timedelta) -> None:
        self.place = place
        self.device = device
        self.timeout = timeout
        with mesh_errors("joining the other processes"):
            if device.type == "cuda":
                torch.cuda.set_device(device)
            _DISTRIBUTED.init_process_group("gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl", timeout=timeout)
            self._group = _DISTRIBUTED.new_group(backend="gloo", timeout=timeout)
            self.mesh: DeviceMesh = make_mesh(device.type)

    def send(self, command: GroupCommand) -> None:
        """Sends a command from process 0 to all others.

        Raises:
            MeshBroken: A process has ended.
        """
        encoded = torch.frombuffer(bytearray(command.encode()), dtype=torch.uint8)
        with mesh_errors(f"sending {command.word.value!r}"):
            self._broadcast(torch.tensor([len(encoded)]))
            self._broadcast(encoded)

    def receive(self) -> GroupCommand:
        """Receives the next command of process 0.

        Raises:
            MeshBroken: Process 0 has ended.
        """
        length = torch.zeros(1, dtype=torch.int64)
        with mesh_errors("waiting for process 0"):
            self._broadcast(length)
            encoded = torch.empty(int(length), dtype=torch.uint8)
            self._broadcast(encoded)
        return GroupCommand.decode(encoded.numpy().tobytes())

    def agree(self, *, failed: bool, ending: bool) -> ProcessGroupStatus:
        """Reports this process's outcome and returns the outcome of all processes.

        Raises:
            MeshBroken: A process has ended.
        """
        outcome = torch.tensor([int(failed), int(ending)])
        with mesh_errors("waiting for all processes"):
            _DISTRIBUTED.all_reduce(outcome, group=self._group)
        return ProcessGroupStatus(failed=int(outcome[0]), ending=bool(outcome[1]))

    def leave(self) -> None:
        """Leaves the mesh. A process that ends without this call waits for the other processes."""
        with suppress(RuntimeError):  # torch raises it if the other processes closed their connections first
            _DISTRIBUTED.destroy_process_group()

    def _broadcast(self, numbers: torch.Tensor) -> None:
        _DISTRIBUTED.broadcast(numbers, group_src=0, group=self._group)


@contextmanager
def mesh_errors(what: str) -> Iterator[None]:
    """Translates torch's runtime errors, except `OutOfMemoryError`, into `MeshBroken`.

    Args:
        what: Operation that the error text names, such as "waiting for process 0".

    Raises:
        MeshBroken: torch raised a runtime error.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        why = str(error).strip().split("\n")[0][:200]
        raise MeshBroken(f"another process of the mesh ended or can't be reached, while {what}: {why}") from error
