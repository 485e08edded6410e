"""A node without gas: the pool stores its file, and the pool's relayer submits its work."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import httpx

from protocol.http.object_transfer import ObjectTransfer
from protocol.identifiers import digest
from protocol.wire.relayed import ReceiptState
from tests.kit.run_on_chain import join_by_relay, orchestrating, publish
from tests.kit.world import POOL, URL, World
from worker.chain.ledger_chain import LedgerChain
from worker.delivery.pool_delivery import PoolDelivery
from worker.delivery.queue.item import DeliveryStage
from worker.delivery.queue.runner import LONGEST_LOOK, QueueRunner
from worker.delivery.queue.store import QueueStore
from worker.delivery.work_signing import LEASED_WORK, LeasedWork
from worker.membership.joining import OrchestratorLocation
from worker.session.orchestrator_client import OrchestratorSession

CONTENT = b"rollouts" * 5000


async def test_a_nodes_file_is_stored_submitted_listed_and_read_back(
    world: World, redis_url: str, tmp_path: Path
) -> None:
    async with orchestrating(world, redis_url, tmp_path) as run:
        await run.sync.round()
        key = await join_by_relay(run, world)
        await world.controls.set_balance(key.address, 0)
        await publish(run, world, 0)
        await run.sync.round()
        grant = await run.lease(key, groups=2)

        store = QueueStore(tmp_path / "queue.sqlite", tmp_path / "spool")
        (tmp_path / "made").write_bytes(CONTENT)
        work = LeasedWork(lease=grant.lease, units=7, figures={"reward": 0.5})
        descriptor = os.open(tmp_path / "made", os.O_RDONLY)
        store.add(
            descriptor,
            name="step-0.parquet",
            kind="rollout",
            key="k",
            metadata={LEASED_WORK: work.model_dump_json()},
            now_ms=1,
            most_bytes=1 << 20,
            most_spooled=1 << 20,
        )
        os.close(descriptor)

        transport, clock = httpx.ASGITransport(app=run.pool.app), run.pool.clock
        membership = OrchestratorLocation(pool_id=POOL, url=URL, orchestrator=run.pool.dependencies.key.address)
        orchestrator = OrchestratorSession(membership, key=key, clock=clock, transport=transport)
        chain = LedgerChain(rpc=world.url, deployment=world.deployment, key=key, pool_id=POOL)
        transfer = ObjectTransfer(URL, clock=clock, transport=transport)
        delivery = PoolDelivery(key=key, pool_id=POOL, chain=chain, clock=clock)
        delivery.connect(orchestrator, transfer)
        runner = QueueRunner(store, delivery, clock=clock)

        await runner.work()
        (item,) = store.items()
        assert (item.stage, item.error) == (
            DeliveryStage.SUBMITTED,
            "the relayer has the work, but the ledger does not have it yet",
        )
        assert await run.relayer.round() == 1
        await clock.turn(LONGEST_LOOK)
        await runner.work()
        assert (store.items(), store.counts()["delivered"]) == ([], 1)
        receipt = await orchestrator.submission(grant.lease.lease.key.hash)
        assert receipt.state is ReceiptState.CARRIED

        await run.sync.round()
        (listed,) = await run.rollouts(status="all")
        sha256 = digest(hashlib.sha256(CONTENT).digest())
        assert (listed["sha256"], listed["size"], listed["units"]) == (sha256, len(CONTENT), 7)
        assert listed["figures"] == {"reward": 0.5}
        fetched = tmp_path / "fetched"
        await transfer.fetch(listed["file_url"], fetched, sha256=sha256, most_bytes=1 << 20)
        assert fetched.read_bytes() == CONTENT

        await delivery.disconnect()
        await orchestrator.aclose()
        await chain.close()
        store.close()
