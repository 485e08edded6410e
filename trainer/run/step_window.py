"""The steps that workers may serve now, as the run asks the orchestrator for them."""

from __future__ import annotations

import math

from protocol.wire.runs import RunView
from trainer.run.dependencies import RunParts
from trainer.run.state import TrainerState


async def open_window(parts: RunParts, state: TrainerState, step: int, view: RunView, *, version: int) -> None:
    """Asks for a step and, as far as that is wanted now, for those after it.

    Args:
        parts: Of the run.
        state: Where it is.
        step: The one that is learned from now.
        view: The run, as the orchestrator has it.
        version: The policy that rollouts are made with.
    """
    settings = parts.settings
    await parts.desk.open(
        step,
        settings.knobs.last_step(version=version, async_level=view.async_level),
        view,
        groups=first_demand(settings.groups_per_step, state.signal_share),
        most_waiting=settings.most_waiting_groups or settings.groups_per_step,
        ahead=settings.knobs.reload_every,
    )


def first_demand(groups: int, share: float) -> int:
    """Returns the initial demand in groups, such that a full batch results in five of six steps.

    It is one standard deviation above the expectation, because a missing group costs another round trip.
    """
    return math.ceil((groups + math.sqrt(groups * (1 - share))) / max(share, 0.001))
