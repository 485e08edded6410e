"""Keeps a run's chronicle while it runs, and gathers what else is known of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

from cli.devnet.chronicle.chain import ChainWatch
from cli.devnet.chronicle.data import Contributor, Material
from cli.devnet.chronicle.files import ArrivalWatch, read_progress, stored_at
from cli.devnet.directory import DevnetDirectory
from cli.devnet.report.model import ProcessCost
from cli.devnet.services import ServicePlaces
from cli.devnet.task import open_orchestrator
from ledger.client import Ledger
from ledger.deployment import Deployment
from protocol.errors import MusterError
from protocol.identifiers import Address
from protocol.runtime.clock import Clock, SystemClock
from protocol.wire.listings import RolloutItem
from protocol.wire.slots import LeaseView


class Chronicle:
    """Watches chain and disks while it is entered.

    Args:
        directory: Of the devnet.
        places: Where its services are.
        deployment: The contracts.
        contributors: Everybody who works, as they begin.
        about: How it is run.
        steps_under_way: How many steps may be worked on at a time.
        began: When the devnet began, Unix time in seconds.
        clock: Whose time counts.
    """

    def __init__(
        self,
        directory: DevnetDirectory,
        places: ServicePlaces,
        deployment: Deployment,
        *,
        contributors: Sequence[Contributor],
        about: Mapping[str, str],
        steps_under_way: int,
        began: float,
        clock: Clock | None = None,
    ) -> None:
        self._directory = directory
        self._places = places
        self._deployment = deployment
        self._contributors = list(contributors)
        self._about = about
        self._steps_under_way = steps_under_way
        self._clock = clock or SystemClock()
        self._began = began
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._ledger: Ledger | None = None
        self._chain: ChainWatch | None = None
        shared = {one.name: directory.path / "workers" / one.name / "shared" for one in contributors}
        self._arrivals = ArrivalWatch(shared, clock=self._clock)

    async def __aenter__(self) -> Self:
        self._ledger = await self._stack.enter_async_context(Ledger.connect(self._places.rpc, self._deployment))
        stakes = await asyncio.gather(*[self._ledger.stake.of(one.provider) for one in self._contributors])
        self._contributors = [
            replace(one, stake_before=stake.active) for one, stake in zip(self._contributors, stakes, strict=True)
        ]
        self._chain = ChainWatch(self._ledger, clock=self._clock)
        for watching in (self._chain.run(), self._arrivals.run()):
            self._tasks.append(asyncio.create_task(watching))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    @property
    def cheaters(self) -> set[Address]:
        """Nodes that cheat."""
        return {one.node for one in self._contributors if one.cheat}

    def so_far(self) -> Material:
        """Data that is known without a request."""
        return Material(
            about=self._about,
            began=self._began,
            ended=self._clock.now().timestamp(),
            contributors=self._contributors,
            events=() if self._chain is None else tuple(self._chain.events),
            blocks={} if self._chain is None else dict(self._chain.blocks),
            progress=read_progress(self._directory.trainer / "progress.jsonl"),
            stored=stored_at(self._directory.objects),
            arrivals=self._arrivals.seen,
            steps_under_way=self._steps_under_way,
        )

    async def gathered(self, processes: Sequence[ProcessCost]) -> Material:
        """Returns all data of the run.

        Args:
            processes: Costs of the processes.

        Raises:
            MusterError: The chain does not answer.
        """
        if self._ledger is None or self._chain is None:
            raise RuntimeError("the chronicle is not kept")
        await self._chain.look()
        stakes = await asyncio.gather(*[self._ledger.stake.of(one.provider) for one in self._contributors])
        rollouts, leases = await self._listed()
        return replace(
            self.so_far(),
            contributors=[
                replace(one, stake_after=stake.active + stake.unbonding)
                for one, stake in zip(self._contributors, stakes, strict=True)
            ],
            rollouts=rollouts,
            leases=leases,
            processes=processes,
        )

    async def _listed(self) -> tuple[list[RolloutItem], dict[Address, tuple[LeaseView, ...]]]:
        """Data from the orchestrator; the report omits it if the orchestrator is down."""
        rollouts: list[RolloutItem] = []
        leases: dict[Address, tuple[LeaseView, ...]] = {}
        async with open_orchestrator(self._directory, self._places) as client:
            with suppress(MusterError):
                rollouts = [item async for item in client.rollouts(status="all")]
                for one in self._contributors:
                    with suppress(MusterError):
                        leases[one.node] = (await client.leases(one.node)).leases
        return rollouts, leases
