"""One node with a real orchestrator, store and chain."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from protocol.http.object_transfer import ObjectTransfer
from protocol.identity.keys import Key
from protocol.wire.slots import SlotGrant
from tests.kit.memory_run_ledger import RunUnderTest
from tests.kit.run_on_chain import join_by_relay, orchestrating, publish
from tests.kit.world import POOL, URL, World
from worker.chain.ledger_chain import LedgerChain
from worker.delivery.pool_delivery import PoolDelivery
from worker.delivery.queue.item import QueueItem
from worker.delivery.queue.runner import LONGEST_LOOK, QueueRunner
from worker.delivery.queue.store import QueueStore
from worker.delivery.work_signing import LEASED_WORK, LeasedWork
from worker.membership.joining import OrchestratorLocation
from worker.session.orchestrator_client import OrchestratorSession

CONTENT = b"rollouts" * 500


@dataclass
class Stage:
    """A member of the pool with a version to work on."""

    world: World
    run: RunUnderTest
    key: Key
    home: Path
    store: QueueStore

    def hand_over(self, grant: SlotGrant, *, units: int = 7, content: bytes = CONTENT) -> None:
        """Puts a file into the worker's queue, as its bridge does."""
        made = self.home / "made"
        made.write_bytes(content)
        work = LeasedWork.model_construct(lease=grant.lease, units=units, figures={})
        descriptor = os.open(made, os.O_RDONLY)
        try:
            self.store.add(
                descriptor,
                name="made.parquet",
                kind="rollout",
                key=f"{grant.lease.index}",
                metadata={LEASED_WORK: work.model_dump_json()},
                now_ms=1,
                most_bytes=1 << 20,
                most_spooled=1 << 24,
            )
        finally:
            os.close(descriptor)

    async def deliver(self, kind: type[PoolDelivery] = PoolDelivery, *, rounds: int = 1) -> QueueItem | None:
        """Runs the worker's queue; returns the item that still waits in it, if any."""
        clock, transport = self.run.pool.clock, httpx.ASGITransport(app=self.run.pool.app)
        membership = OrchestratorLocation(pool_id=POOL, url=URL, orchestrator=self.run.pool.dependencies.key.address)
        orchestrator = OrchestratorSession(membership, key=self.key, clock=clock, transport=transport)
        chain = LedgerChain(rpc=self.world.url, deployment=self.world.deployment, key=self.key, pool_id=POOL)
        delivery = kind(key=self.key, pool_id=POOL, chain=chain, clock=clock)
        delivery.connect(orchestrator, ObjectTransfer(URL, clock=clock, transport=transport))
        runner = QueueRunner(self.store, delivery, clock=clock)
        for _ in range(rounds):
            await runner.work()
            await self.run.relayer.round()
            await clock.turn(LONGEST_LOOK)
        await runner.work()
        await delivery.disconnect()
        await orchestrator.aclose()
        await chain.close()
        items = self.store.items()
        return items[0] if items else None

    def objects(self) -> list[str]:
        """Returns the names of the files in the store."""
        root = self.home / "objects" / "objects"
        return [path.name for path in root.rglob("*") if path.is_file()]


@asynccontextmanager
async def on_stage(world: World, redis_url: str, home: Path) -> AsyncIterator[Stage]:
    """Sets up a node that has joined, and a first version."""
    async with orchestrating(world, redis_url, home) as run:
        await run.sync.round()
        key = await join_by_relay(run, world)
        await publish(run, world, 0)
        await run.sync.round()
        store = QueueStore(home / "queue.sqlite", home / "spool")
        yield Stage(world, run, key, home, store)
        store.close()
