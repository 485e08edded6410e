"""Publishes the trainer's demand for rollouts, and repeats it when the orchestrator lost it."""

from __future__ import annotations

from collections.abc import Awaitable

from protocol.clients.orchestrator import OrchestratorClient
from protocol.wire.runs import Demand, RunView, StepView
from trainer.run.asynchrony import StepStanding, steps_to_open
from trainer.run.lease import RunLease
from trainer.run.outages import OutageRetry


class DemandPublisher:
    """States demand, and remembers what was stated.

    Args:
        client: The orchestrator.
        patience: Waits for it.
        lease: Fences what is said.
    """

    def __init__(self, client: OrchestratorClient, *, patience: OutageRetry, lease: RunLease) -> None:
        self._client = client
        self._lease = lease
        self._patience = patience
        self._stated: dict[int, int] = {}

    async def view(self) -> RunView:
        """The run as it stands."""
        return await self._patience(self._client.run, what="looking at the run")

    async def open(
        self, step: int, last: int, view: RunView, *, groups: int, most_waiting: int, ahead: int = 1
    ) -> None:
        """Asks for a step and, as far as that is wanted now, for those after it.

        Args:
            step: The one that is learned from now.
            last: The last that may be served.
            view: How steps stand.
            groups: What a step is asked for at first.
            most_waiting: See `steps_to_open`.
            ahead: So many steps beyond the window are told that they want nothing yet: the next version opens them.
        """
        standing = standings(view)
        await self._state(step, max(groups, self._stated.get(step, 0)), standing)
        later = steps_to_open(step, last, standing, groups=groups, most_waiting=most_waiting)
        for each in range(step + 1, view_end(view, last) + ahead + 1):
            await self._state(each, later.get(each, 0), standing)

    async def raise_to(self, step: int, groups: int) -> None:
        """Asks for more of a step."""
        self._stated[step] = groups
        await self._put(step, groups)

    async def close(self, step: int) -> None:
        """Wants nothing more of a step."""
        await self._put(step, 0, closed=True)
        self._stated = {each: groups for each, groups in self._stated.items() if each > step}

    def forget(self) -> None:
        """Publishes all demand again, because the orchestrator lost it."""
        self._stated.clear()

    async def _state(self, step: int, groups: int, standing: dict[int, StepStanding]) -> None:
        now = standing.get(step)
        known = self._stated.get(step)
        if known is not None and known >= groups and (now is None or now.closed or now.demand >= groups):
            return
        self._stated[step] = max(groups, known or 0)
        await self._put(step, groups)

    async def _put(self, step: int, groups: int, *, closed: bool = False) -> None:
        def put(lease: str) -> Awaitable[StepView]:
            return self._client.put_demand(Demand(step=step, groups=groups, closed=closed, trainer=lease))

        await self._patience(lambda: self._lease.say(put), what=f"stating the demand of step {step}")


def standings(view: RunView) -> dict[int, StepStanding]:
    """Returns the counts of the steps in the window."""
    return {
        each.step: StepStanding(
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
    """The last step that the orchestrator may lease: what it is not told of has its default demand."""
    return max([last, *(each.step for each in view.steps)])
