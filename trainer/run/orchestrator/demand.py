"""Publishes the demand for rollouts per step to the orchestrator."""

from __future__ import annotations

from collections.abc import Awaitable

from protocol.clients.orchestrator import OrchestratorClient
from protocol.wire.runs import Demand, RunView, StepView
from trainer.run.gathering.asynchrony import StepProgress, first_demand, steps_to_open
from trainer.run.orchestrator.lease import RunLease
from trainer.run.orchestrator.outages import OutageRetry
from trainer.run.settings import TrainerSettings


class DemandPublisher:
    """Sends demand to the orchestrator and remembers the demand of each step.

    Args:
        client: Client of the orchestrator.
        retry: Retries while the orchestrator is down.
        lease: The trainer lease; the orchestrator refuses requests without it.
    """

    def __init__(self, client: OrchestratorClient, *, retry: OutageRetry, lease: RunLease) -> None:
        self._client = client
        self._lease = lease
        self._retry = retry
        self._sent: dict[int, int] = {}

    async def view(self) -> RunView:
        """Returns the orchestrator's view of the run."""
        return await self._retry(self._client.run, what="reading the run")

    async def open_window(
        self, settings: TrainerSettings, view: RunView, *, step: int, version: int, signal_share: float
    ) -> None:
        """Sets the demand of a step and of the later steps that workers may serve now.

        Args:
            settings: Settings of the run.
            view: The orchestrator's view of the run.
            step: The current step.
            version: Policy version that generates rollouts.
            signal_share: Smoothed share of groups whose rewards differ.
        """
        await self.open(
            step,
            settings.knobs.last_step(version=version, async_level=view.async_level),
            view,
            groups=first_demand(settings.groups_per_step, signal_share),
            most_waiting=settings.most_waiting_groups or settings.groups_per_step,
            ahead=settings.knobs.reload_every,
        )

    async def open(
        self, step: int, last: int, view: RunView, *, groups: int, most_waiting: int, ahead: int = 1
    ) -> None:
        """Sets the demand of a step and of the later steps in the window.

        Args:
            step: The current step.
            last: Last step that the orchestrator may lease.
            view: The orchestrator's view of the run.
            groups: Initial demand of a step.
            most_waiting: See `steps_to_open`.
            ahead: Number of steps beyond the window whose demand is set to 0; the next version opens them.
        """
        progress = step_progress(view)
        await self._state(step, max(groups, self._sent.get(step, 0)), progress)
        later = steps_to_open(step, last, progress, groups=groups, most_waiting=most_waiting)
        for each in range(step + 1, view_end(view, last) + ahead + 1):
            await self._state(each, later.get(each, 0), progress)

    async def raise_to(self, step: int, groups: int) -> None:
        """Raises the demand of a step."""
        self._sent[step] = groups
        await self._put(step, groups)

    async def close(self, step: int) -> None:
        """Closes a step: the orchestrator leases no more slots for it."""
        await self._put(step, 0, closed=True)
        self._sent = {each: groups for each, groups in self._sent.items() if each > step}

    def forget(self) -> None:
        """Clears the record of sent demand, so that all demand is sent again.

        This is needed after the orchestrator has lost its state.
        """
        self._sent.clear()

    async def _state(self, step: int, groups: int, progress: dict[int, StepProgress]) -> None:
        now = progress.get(step)
        known = self._sent.get(step)
        if known is not None and known >= groups and (now is None or now.closed or now.demand >= groups):
            return
        self._sent[step] = max(groups, known or 0)
        await self._put(step, groups)

    async def _put(self, step: int, groups: int, *, closed: bool = False) -> None:
        def put(lease: str) -> Awaitable[StepView]:
            return self._client.put_demand(Demand(step=step, groups=groups, closed=closed, trainer=lease))

        await self._retry(lambda: self._lease.with_token(put), what=f"sending the demand of step {step}")


def step_progress(view: RunView) -> dict[int, StepProgress]:
    """Returns the state of each step that the orchestrator lists."""
    return {
        each.step: StepProgress(
            demand=each.demand,
            rounds=each.rounds,
            closed=each.closed,
            accepted=each.accepted,
            pending=each.pending,
            leased=each.leased,
        )
        for each in view.steps
    }


def view_end(view: RunView, last: int) -> int:
    """Returns the last step that the orchestrator may lease.

    This can be a step without demand from the trainer, because the orchestrator gives such steps a default demand.
    """
    return max([last, *(each.step for each in view.steps)])
