"""Creates the run's learner: in this process alone, or sharded over all processes of torchrun."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import torch
from pydantic import ValidationError

from protocol.errors import plain_message
from protocol.runtime.threads import run_in_thread
from trainer.distributed.channel import Channel
from trainer.distributed.leader import Leader
from trainer.distributed.leading_learner import LeadingLearner
from trainer.distributed.ranks import RankInfo, device_of
from trainer.distributed.shutdown import ShutdownSignal
from trainer.errors import BadSettings
from trainer.learning.settings import LearningSettings
from trainer.policy.base_model import PolicyBase
from trainer.policy.policy_learner import PolicyLearner
from trainer.run.learner.follower import terms_command
from trainer.run.learner.thread import LearnerThread
from trainer.run.settings import TrainerSettings
from trainer.run.state.journal import Value


def learning_settings(settings: TrainerSettings) -> LearningSettings:
    """Validates the `learning` table of the settings.

    Raises:
        BadSettings: A value is invalid, or the algorithm does not support streaming.
    """
    try:
        learning = LearningSettings.model_validate(settings.learning)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadSettings(
            f"trainer.learning.{place}: {plain_message(first['msg'])}",
            hint="docs/learning.md lists the settings of learning",
        ) from error
    if settings.knobs.stream and learning.algorithm.needs_whole_batch:
        raise BadSettings(
            f"{learning.algorithm.name} compares all answers of a batch, and stream trains on groups as they arrive",
            hint="turn stream off, or choose an algorithm that compares the answers of a group",
        )
    return learning


def learned_under(
    settings: TrainerSettings, learning: LearningSettings, *, device: str, processes: int = 1
) -> dict[str, Value]:
    """Returns all settings that determine the trained weights, by name as in the settings file."""
    knobs = settings.knobs
    settings_by_name: dict[str, Any] = {
        "learning": learning.model_dump(mode="json"),
        "pools": settings.pools.model_dump(mode="json"),
        "device": device,
        "processes": processes,
        "dtype": settings.dtype.value,
        "groups_per_step": settings.groups_per_step,
        "most_groups_per_step": settings.most_groups,
        "reload_every": knobs.reload_every,
        "max_staleness": knobs.max_staleness,
        "stream": knobs.stream,
    }
    return dict(_flat(settings_by_name))


@asynccontextmanager
async def open_learner(
    base: PolicyBase,
    learning: LearningSettings,
    settings: TrainerSettings,
    *,
    place: RankInfo | None,
    stop: asyncio.Event,
    in_thread: LearnerThread,
) -> AsyncIterator[PolicyLearner]:
    """Yields the learner.

    In a mesh, the learner commands the other processes, which end when the block ends.

    Args:
        base: The base with the initial weights.
        learning: Learning settings.
        settings: Settings of the run.
        place: Rank of this process, which is 0; None if there is no mesh.
        stop: Event that is set when another process has ended or received a request to shut down.
        in_thread: Thread that runs the learner.

    Raises:
        MeshBroken: Another process has ended, before or inside the `async with` block.
        MusterError: The base can't be trained, or the device does not exist.
    """
    device = device_of(settings.device, place)
    torch.manual_seed(settings.seed)  # so that a run killed before its first save repeats the same steps
    if device.type == "cpu":
        torch.set_num_threads(1)  # more threads are slower on small models and not bit-identical
    if place is None:
        yield await in_thread(PolicyLearner, base, learning, device=device, dtype=settings.dtype)
        return
    loop, ending = asyncio.get_running_loop(), ShutdownSignal()
    channel = await run_in_thread(Channel, place, device, timeout=settings.mesh_timeout)
    leader = Leader(channel, ending=ending, on_end=lambda: _stop(loop, stop))
    try:
        yield await in_thread(
            leader.together,
            terms_command(base, learning, settings),
            lambda: LeadingLearner(base, learning, leader, device=device, dtype=settings.dtype, mesh=channel.mesh),
        )
    finally:
        await run_in_thread(leader.close)
    leader.check()


def _stop(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(stop.set)


def _flat(settings_by_name: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Value]]:
    for name, value in settings_by_name.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
