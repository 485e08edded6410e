"""Sets the demand of the steps that workers may serve now."""

from __future__ import annotations

import math

from protocol.wire.runs import RunView
from trainer.run.dependencies import Dependencies
from trainer.run.state import TrainerState


async def open_window(parts: Dependencies, state: TrainerState, step: int, view: RunView, *, version: int) -> None:
    """Sets the demand of a step and of the later steps in the window.

    Args:
        parts: Dependencies of the run.
        state: State of the run.
        step: The current step.
        view: The orchestrator's view of the run.
        version: Policy version that generates rollouts.
    """
    settings = parts.settings
    await parts.demand.open(
        step,
        settings.knobs.last_step(version=version, async_level=view.async_level),
        view,
        groups=first_demand(settings.groups_per_step, state.signal_share),
        most_waiting=settings.most_waiting_groups or settings.groups_per_step,
        ahead=settings.knobs.reload_every,
    )


def first_demand(groups: int, share: float) -> int:
    """Returns the initial demand, with which about five of six steps get a full batch with signal.

    It is one standard deviation above the expected need, because missing groups cost another round trip.
    """
    return math.ceil((groups + math.sqrt(groups * (1 - share))) / max(share, 0.001))
