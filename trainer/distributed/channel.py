"""How the processes of a mesh talk: process 0 says what is done next, and all say whether it was done.

It goes over gloo, whatever the policy's own numbers go over: a process that ended closes its connections, so the others
know at once, and one whose machine is gone is waited for no longer than the time limit. Nothing here is encrypted or
signed: the processes need a network of their own.
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
    """How all processes stand after a command.

    Args:
        failed: How many could not do it.
        ending: Whether one of them was told to end.
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
        """What process 0 says next.

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
        """How all processes stand, when all have said so.

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
    """Says in words that a process is gone, where torch says which connection is.

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
