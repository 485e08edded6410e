"""One process of a mesh in which process 0 waits for the end, which only the other processes cause."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import torch

from protocol.errors import MusterError
from trainer.distributed.ranks import RankInfo, own_place
from trainer.policy.base_model import open_base
from trainer.run.learner.follower import follow_trainer
from trainer.run.learner.setup import learning_settings, open_learner
from trainer.run.learner.thread import LearnerThread
from trainer.run.settings import TrainerSettings
from trainer.run.signals import stop_on_signals


async def _lead(settings: TrainerSettings, place: RankInfo) -> None:
    stop, learning = asyncio.Event(), learning_settings(settings)
    with stop_on_signals(stop):
        base = open_base(settings.start)
        async with (
            LearnerThread() as in_thread,
            open_learner(base, learning, settings, place=place, stop=stop, in_thread=in_thread),
        ):
            sys.stderr.write("ready\n")
            sys.stderr.flush()
            await stop.wait()


def run(base: Path, timeout_s: float, variables: dict[str, str], said: Path) -> None:
    """Leads or follows; prints the reason for the end in one line.

    Args:
        base: The folder of the starting version.
        timeout_s: The time-out of the mesh, in seconds.
        variables: The variables that torchrun sets.
        said: The file for error output.
    """
    os.environ.update(variables)
    torch.set_num_threads(1)
    with said.open("wb", buffering=0) as errors, Path(os.devnull).open("wb") as nowhere:
        os.dup2(errors.fileno(), 2)
        os.dup2(nowhere.fileno(), 1)
    settings = TrainerSettings(
        run="main",
        pool_id=1,
        orchestrator="http://127.0.0.1:1",
        deployment=Path("none"),
        policies=Path("none"),
        start=base,
        device="cpu",
        mesh_timeout_s=timeout_s,
        learning={"row_tokens": 64},
    )
    place = own_place(os.environ)
    assert place is not None
    try:
        if place.leads:
            asyncio.run(_lead(settings, place))
        else:
            follow_trainer(settings, place)
    except MusterError as error:
        sys.exit(f"{error.code}: {error.detail}")
