"""Trainers started by torchrun, and the distance of their weights from those of one process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.kit.served_pool import ServedPool
from tests.kit.trained_pool import until
from trainer.run.state.journal import Recorded

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
MESH_TIMEOUT_S = 3600.0
"""Longer than a test may take: a mesh ends at once when connections close, and on a busy machine one process may start
long after the other."""


@dataclass
class Launched:
    """Two trainer processes and their torchrun."""

    agent: asyncio.subprocess.Process
    log: Path
    ranks: dict[int, int]
    """Rank to process id."""

    def kill(self, rank: int) -> None:
        """Kills a process as the kernel does when memory runs out."""
        os.kill(self.ranks[rank], signal.SIGKILL)

    async def ended(self) -> int:
        """Waits until torchrun and its processes have ended; returns its status."""
        status = await self.agent.wait()
        await until(lambda: not any(map(_lives, self.ranks.values())))
        return status

    @property
    def said(self) -> str:
        """Returns the output of all processes."""
        return self.log.read_text()


@asynccontextmanager
async def launched(served: ServedPool, *, steps: int, **changes: Any) -> AsyncIterator[Launched]:
    """Starts two trainers and waits until they have learned a step; ends all processes after the block."""
    log, before = served.pool.folder / "log", len(served.pool.progress("step"))
    log.write_bytes(b"")
    settings = {"steps": steps, "mesh_timeout_s": MESH_TIMEOUT_S, **changes}
    # torchrun would leave a folder among the system's temporary files, however it ends
    agent = await served.start(*TORCHRUN, "--log-dir", str(served.pool.folder / "torchrun"), log=log, **settings)
    found = Launched(agent, log, {})
    try:
        await until(lambda: len(served.pool.progress("step")) > before or agent.returncode is not None)
        assert agent.returncode is None or agent.returncode == 0, found.said[-4000:]
        found.ranks = {_rank(child): child for child in _children(agent.pid)}
        yield found
    finally:
        with suppress(ProcessLookupError):
            agent.kill()
        await agent.wait()
        for process in found.ranks.values():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def farthest(served: ServedPool, recorded: Recorded) -> float:
    """Returns the largest distance of a version's weights from those of one process, relative to the way from the
    base.
    """
    folder = served.pool.folder
    served.pool.learned_at_once(recorded)
    base = _weights(folder / "base")
    found = 0.0
    for version in range(1, max(recorded.written) + 1):
        one, several = _weights(folder / "at-once" / str(version)), _weights(folder / "policies" / str(version))
        found = max(found, float((several - one).norm() / (one - base).norm()))
    return found


def _weights(version: Path) -> torch.Tensor:
    return torch.cat([weight.flatten() for _, weight in sorted(load_file(version / "model.safetensors").items())])


def _children(process: int) -> list[int]:
    tasks = Path(f"/proc/{process}/task")
    return [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]


def _rank(process: int) -> int:
    variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    [rank] = [int(each[5:]) for each in variables if each.startswith(b"RANK=")]
    return rank


def _lives(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
