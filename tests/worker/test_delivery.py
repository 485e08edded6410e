"""Delivery of files with a real orchestrator, store and chain.

Only the relayer is scripted.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import pytest_asyncio

from ledger.amounts import UNIT
from ledger.devchain import ChainProcess
from ledger.events.types import WorkSubmitted
from orchestrator.app import build_orchestrator
from orchestrator.domain.slots import SlotState
from protocol.errors import Conflict, NotFound, Unavailable
from protocol.http.object_transfer import ObjectTransfer
from protocol.identifiers import ZERO_DIGEST, Digest, digest, run_id
from protocol.identity.keys import Key
from protocol.leases import Lease
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import ManualClock
from protocol.runtime.tracing import TraceIds
from protocol.wire.leases import SignedLease, SignedWorkClaim
from protocol.wire.relayed import ReceiptState, SubmissionReceipt
from protocol.wire.uploads import UploadRequest, UploadTicket
from tests.kit.chain_controls import ChainControls
from tests.kit.collector import traced
from tests.kit.http_server import served
from tests.kit.memory_ledger import MemoryLedger, PoolUnderTest
from tests.kit.orchestrator import under_test
from tests.kit.world import POOL, QUICK, TERMS, Founded, World
from worker.chain.ledger_chain import LedgerChain
from worker.delivery.pay_watch import PayWatch
from worker.delivery.pool_delivery import RELAYER_TIMEOUT, PoolDelivery
from worker.delivery.queue.item import DeliveryStage, QueueItem
from worker.delivery.queue.runner import LONGEST_LOOK, QueueRunner
from worker.delivery.queue.store import QueueStore
from worker.delivery.work_signing import LEASED_WORK, LeasedWork
from worker.membership.joining import OrchestratorLocation
from worker.session.orchestrator_client import OrchestratorSession
from worker.state import StateDirectory

CONTENT = b"rollouts" * 1000
SHA = digest(hashlib.sha256(CONTENT).digest())
URL = "http://127.0.0.1:8002"


@dataclass
class Relay:
    """The pool's orchestrator, with a relayer that behaves as the test chooses."""

    orchestrator: OrchestratorSession
    world: World
    mood: str = "carries"
    reason: str = ""
    handed: list[SignedWorkClaim] = field(default_factory=list)
    tickets: list[UploadTicket] = field(default_factory=list)

    @property
    def time(self) -> Any:
        return self.orchestrator.time

    async def request_upload(self, request: UploadRequest) -> UploadTicket:
        self.tickets.append(await self.orchestrator.request_upload(request))
        return self.tickets[-1]

    async def submit_work(self, work: SignedWorkClaim, *, figures: Mapping[str, float]) -> SubmissionReceipt:
        if self.mood == "is down":
            raise Unavailable("the orchestrator is down")
        if self.mood == "has no run":
            raise NotFound("this pool has no run")
        if self.mood == "says no":
            raise Conflict("the lease has expired")
        self.handed.append(work)
        if self.mood == "carries":
            await self.carry()
        return self._receipt(work.lease.lease.key.hash)

    async def submission(self, key: Digest) -> SubmissionReceipt:
        if self.mood == "is down":
            raise Unavailable("the orchestrator is down")
        if self.mood == "forgets":
            raise NotFound("never heard of it")
        return self._receipt(key)

    async def carry(self) -> None:
        await (await self.world.as_("orchestrator")).work.submit_batch(self.handed)

    def _receipt(self, key: Digest) -> SubmissionReceipt:
        state = ReceiptState.REFUSED if self.mood == "refuses" else ReceiptState.QUEUED
        return SubmissionReceipt(key=key, state=state, reason=self.reason)


@dataclass
class Scene:
    """One worker's queue, and all services that it calls."""

    home: Path
    world: World
    clock: ManualClock
    pool: PoolUnderTest
    key: Key
    relay: Relay
    chain: LedgerChain
    store: QueueStore
    delivery: PoolDelivery
    transport: httpx.ASGITransport
    state: StateDirectory
    pay: PayWatch

    async def leased(self, *, index: int = 0, **changes: Any) -> SignedLease:
        ledger = await self.world.as_("owner")
        terms = {
            "pool_id": POOL,
            "run": run_id("main"),
            "step": 0,
            "index": index,
            "node": self.key.address,
            "version": 1,
            "digest": ZERO_DIGEST,
            "beacon_block": 1,
            "salt": ZERO_DIGEST,
            "groups": 1,
            "max_units": 1000,
            "expiry": int((await ledger.now()).timestamp()) + 600,
        }
        lease = Lease(**{**terms, **changes})
        domain = ledger.work.domain
        return SignedLease.of(lease, domain=domain, signature=lease.sign(self.world.keys["orchestrator"], domain))

    async def hand_over(
        self, lease: SignedLease | None = None, *, content: bytes = CONTENT, key: str = "k", units: int = 100
    ) -> str:
        """Adds a file of the node's work to the queue; returns its id."""
        lease = lease or await self.leased()
        work = LeasedWork.model_construct(lease=lease, units=units, figures={"reward": 0.5})
        return self._take(content, key, {LEASED_WORK: work.model_dump_json(), "task_id": "a" * 32})

    def hand_over_file(self, content: bytes = CONTENT) -> str:
        """Adds a file that is not work to the queue; returns its id."""
        return self._take(content, "file", {"task_id": "a" * 32})

    def _take(self, content: bytes, key: str, metadata: dict[str, str]) -> str:
        path = self.home / "made-by-the-task"
        path.write_bytes(content)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            item, _ = self.store.add(
                descriptor,
                name="step-0.parquet",
                kind="rollout",
                key=key,
                metadata=metadata,
                now_ms=int(self.clock.now().timestamp() * 1000),
                most_bytes=1 << 20,
                most_spooled=1 << 30,
            )
        finally:
            os.close(descriptor)
        return item

    def runner(self, store: QueueStore | None = None) -> QueueRunner:
        return QueueRunner(store or self.store, self.delivery, clock=self.clock)

    async def work(self, store: QueueStore | None = None, *, rounds: int = 1, pause: timedelta = LONGEST_LOOK) -> None:
        """Runs several rounds of the queue and advances the clock between them."""
        runner = self.runner(store)
        for number in range(rounds):
            if number:
                await self.clock.turn(pause)
            await runner.work()

    async def on_ledger(self) -> list[WorkSubmitted]:
        return await (await self.world.as_("owner")).history(WorkSubmitted)

    def objects(self) -> list[str]:
        return [path.name for path in (self.home / "objects" / "objects").rglob("*") if path.is_file()]

    def spool(self) -> list[str]:
        return [path.name for path in (self.home / "spool").iterdir()]

    def item(self) -> QueueItem:
        (item,) = self.store.items()
        return item

    async def delivered(self) -> bool:
        """Checks that there is one object, one submission and an empty queue."""
        (event,) = await self.on_ledger()
        return (event.sha256, event.units, event.node, self.objects(), self.store.items(), self.spool()) == (
            SHA,
            100,
            self.key.address,
            [SHA[2:]],
            [],
            [],
        )


class EveryLease:
    """Replaces the orchestrator's lease rows: every lease is live.

    The orchestrator's own tests cover the real ones.
    """

    async def slot(self, name: str) -> Any:
        lease = SimpleNamespace(state=SlotState.LEASED)
        return SimpleNamespace(id=name, slot=lease, expiry=1 << 40, sha256=None, groups=1, max_units=1000)

    async def admit_file(self, name: str, sha256: Digest, *, life_s: int) -> bool:
        return True


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(founded: Founded, development_process: ChainProcess) -> AsyncIterator[World]:
    """Returns a chain on which the node is a member.

    It stays open for all tests; each test reverts its changes.
    """
    async with ChainControls(development_process.url) as controls, AsyncExitStack() as stack:
        world = World(development_process.url, controls, founded.deployment, founded.keys, stack)
        before = await controls.snapshot()
        await world.member()
        yield world
        await controls.revert(before)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain(world: World) -> AsyncIterator[LedgerChain]:
    """Returns the ledger from the worker's point of view."""
    chain = LedgerChain(rpc=world.url, deployment=world.deployment, key=world.keys["node"], pool_id=POOL, policy=QUICK)
    yield chain
    await chain.close()


@pytest_asyncio.fixture(loop_scope="module")
async def scene(tmp_path: Path, world: World, chain: LedgerChain, redis_url: str) -> AsyncIterator[Scene]:
    before = await world.controls.snapshot()
    key = world.keys["node"]
    clock = ManualClock(await (await world.as_("owner")).now())
    service = Key.generate()
    ledger = MemoryLedger(orchestrator=service.address)
    ledger.register(key.address, member=True)
    pool = under_test(redis_url, clock, ledger, service, tmp_path / "secrets.key", upload_most_bytes=10_000)
    pool.dependencies.uploads._slots = cast("Any", EveryLease())
    transport = httpx.ASGITransport(app=pool.app, raise_app_exceptions=False)
    orchestrator = OrchestratorSession(
        OrchestratorLocation(pool_id=POOL, url=URL, orchestrator=service.address),
        key=key,
        clock=clock,
        transport=transport,
    )
    relay = Relay(orchestrator, world)
    state = StateDirectory(tmp_path / "worker")
    state.prepare()
    pay = PayWatch(state=state, chain=chain, clock=clock)
    delivery = PoolDelivery(key=key, pool_id=POOL, chain=chain, clock=clock, pay=pay)
    delivery.connect(relay, ObjectTransfer(URL, clock=clock, transport=transport))
    store = QueueStore(tmp_path / "queue.sqlite", tmp_path / "spool")
    yield Scene(tmp_path, world, clock, pool, key, relay, chain, store, delivery, transport, state, pay)
    store.close()
    await delivery.disconnect()
    await orchestrator.aclose()
    await pool.dependencies.redis.aclose()
    await world.controls.revert(before)


# Successful deliveries


async def test_work_is_stored_then_submitted_and_its_copy_deleted_last(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with traced(monkeypatch) as collector:
        await scene.hand_over()
        await scene.work()
    assert await scene.delivered()
    assert scene.store.counts()["delivered"] == 1
    (handed,) = scene.relay.handed
    assert handed.work.signer(handed.raw_signature, scene.chain.work_domain) == scene.key.address
    assert [ticket.already_there for ticket in scene.relay.tickets] == [False, True]
    trace = collector.of(TraceIds.of(handed.lease.lease.key.hash).trace)
    assert "upload" in trace


async def test_a_file_without_a_lease_is_stored_and_not_submitted(scene: Scene) -> None:
    scene.hand_over_file()
    await scene.work()
    assert (scene.objects(), scene.store.items(), await scene.on_ledger()) == ([SHA[2:]], [], [])


async def test_equal_bytes_under_two_leases_are_uploaded_once_and_submitted_twice(scene: Scene) -> None:
    await scene.hand_over()
    await scene.work()
    await scene.hand_over(await scene.leased(index=1), key="again")
    await scene.work()
    assert scene.objects() == [SHA[2:]]
    assert [event.index for event in await scene.on_ledger()] == [0, 1]
    assert [ticket.already_there for ticket in scene.relay.tickets] == [False, True, True]


async def test_delivered_work_is_watched_until_it_is_paid(scene: Scene) -> None:
    await scene.hand_over()
    await scene.work()
    assert await scene.delivered()
    await scene.world.warp(TERMS.judge_period + timedelta(seconds=1))
    await scene.pay.check()
    assert len((scene.state.read("pay") or {})["unpaid"]) == 1


async def test_work_refused_for_lack_of_escrow_counts_as_unpaid_after_its_lease(scene: Scene) -> None:
    owner = await scene.world.as_("owner")
    escrow = (await owner.pools.escrow(POOL)).free
    await owner.pools.announce_withdrawal(POOL, escrow)
    await scene.world.warp(TERMS.notice_period)
    await owner.pools.withdraw_escrow(POOL, escrow, owner.address)
    scene.relay.mood = "refuses"
    await scene.hand_over()
    await scene.work()
    assert "EscrowTooLow" in scene.item().error
    await scene.pay.check()
    assert (scene.state.read("pay") or {})["unpaid"] == []
    await scene.world.warp(timedelta(minutes=11))
    await scene.pay.check()
    assert "EscrowTooLow" in (scene.state.read("pay") or {})["unpaid"][0]


# The relayer


async def test_while_the_relayer_has_the_work_the_node_waits_and_does_not_submit_it_again(scene: Scene) -> None:
    scene.relay.mood = "takes its time"
    await scene.hand_over()
    await scene.work(rounds=3)
    assert (scene.item().stage, scene.item().error) == (
        DeliveryStage.SUBMITTED,
        "the relayer has the work, but the ledger does not have it yet",
    )
    await scene.relay.carry()
    await scene.work(rounds=2)
    assert await scene.delivered()
    assert len(scene.relay.handed) == 1


async def test_after_a_time_the_node_submits_itself_if_the_relayer_does_not(scene: Scene) -> None:
    scene.relay.mood = "never"
    await scene.hand_over()
    await scene.work()
    await scene.clock.turn(RELAYER_TIMEOUT)
    await scene.work(rounds=2)
    assert await scene.delivered()


@pytest.mark.parametrize("mood", ["has no run", "refuses", "says no"])
async def test_a_refusal_by_the_relayer_is_checked_against_the_ledger(scene: Scene, mood: str) -> None:
    scene.relay.mood = mood
    await scene.hand_over()
    await scene.work()
    assert await scene.delivered()


async def test_after_an_orchestrator_outage_the_node_submits_itself(scene: Scene) -> None:
    scene.relay.mood = "is down"
    await scene.hand_over()
    await scene.work(rounds=2)
    assert (scene.item().stage, scene.item().error) == (DeliveryStage.PUT, "the orchestrator is down")
    await scene.clock.turn(RELAYER_TIMEOUT)
    await scene.work()
    assert await scene.delivered()


async def test_work_that_the_relayer_lost_is_sent_to_it_again(scene: Scene) -> None:
    scene.relay.mood = "takes its time"
    await scene.hand_over()
    await scene.work()
    scene.relay.mood = "forgets"
    await scene.work(rounds=3)
    assert (scene.item().stage, scene.item().attempts) == (DeliveryStage.PUT, 2)
    scene.relay.mood = "carries"
    await scene.work(rounds=2)
    assert await scene.delivered()


async def test_a_relayer_gets_half_of_the_remaining_time_of_a_short_lease(scene: Scene) -> None:
    scene.relay.mood = "never"
    await scene.hand_over(await scene.leased(expiry=int(scene.clock.now().timestamp()) + 60))
    await scene.work(rounds=2)
    assert (scene.item().stage, scene.item().error) == (
        DeliveryStage.SUBMITTED,
        "the relayer has the work, but the ledger does not have it yet",
    )
    await scene.clock.turn(timedelta(seconds=30))
    await scene.work()
    assert await scene.delivered()


async def test_a_relayer_that_loses_work_repeatedly_does_not_delay_it_beyond_the_lease(
    scene: Scene,
) -> None:
    scene.relay.mood = "forgets"
    await scene.hand_over(await scene.leased(expiry=int(scene.clock.now().timestamp()) + 60))
    await scene.work()
    for later in (20, 15):
        assert scene.item().stage is DeliveryStage.PUT, "in the first half of the time left it is sent again"
        await scene.clock.turn(timedelta(seconds=later))
        scene.store.put_off(scene.item(), stage=DeliveryStage.PUT, until_ms=0, error="")
        await scene.work()
    assert await scene.delivered()


async def test_without_relayer_and_gas_the_missing_funds_are_reported_and_attempts_continue(scene: Scene) -> None:
    await scene.world.controls.set_balance(scene.key.address, 0)
    scene.relay.mood, scene.relay.reason = "refuses", "because"
    await scene.hand_over()
    await scene.work()
    item = scene.item()
    assert (item.stage, item.parked) == (DeliveryStage.PUT, "")
    assert "because" in item.error
    assert "gas" in item.error or "pay" in item.error
    await scene.world.controls.set_balance(scene.key.address, UNIT)
    await scene.work(rounds=2)
    assert await scene.delivered()


# The ledger decides


async def test_work_already_on_the_ledger_is_delivered_whoever_submitted_it(scene: Scene) -> None:
    lease = await scene.leased()
    scene.relay.mood = "never"
    await scene.hand_over(lease)
    await scene.work()
    await scene.relay.carry()
    scene.store.put_off(scene.item(), stage=DeliveryStage.HASHED, until_ms=0, error="")  # as after a crash
    scene.relay.mood = "refuses"
    await scene.work()
    assert await scene.delivered()


async def test_a_second_file_under_a_used_lease_is_given_up_and_its_copy_deleted(scene: Scene) -> None:
    lease = await scene.leased()
    await scene.hand_over(lease, content=b"first")
    await scene.work()
    second = await scene.hand_over(lease, key="second")
    await scene.work()
    assert (scene.store.items(), scene.spool(), len(await scene.on_ledger())) == ([], [], 1)
    assert "submitted under the same lease before" in scene.store.finished(second).given_up
    assert (scene.store.counts()["delivered"], scene.store.counts()["given_up"]) == (1, 1)


@pytest.mark.parametrize("stage", [DeliveryStage.HASHED, DeliveryStage.PUT, DeliveryStage.SUBMITTED])
async def test_work_whose_lease_has_ended_is_given_up_with_the_reason(scene: Scene, stage: DeliveryStage) -> None:
    scene.relay.mood = "never"
    item = await scene.hand_over()
    if stage is not DeliveryStage.HASHED:
        await scene.work()
        scene.store.put_off(scene.item(), stage=stage, until_ms=0, error="")
    await scene.world.warp(timedelta(seconds=700))
    await scene.clock.turn(timedelta(seconds=700))
    await scene.work()
    assert (scene.store.items(), scene.spool(), await scene.on_ledger()) == ([], [], [])
    assert "its lease (step 0, index 0) expired at 20" in scene.store.finished(item).given_up


async def test_a_lease_ends_by_the_chains_time_and_not_by_the_local_clock(scene: Scene) -> None:
    await scene.hand_over()
    scene.clock.jump(timedelta(hours=3))
    await scene.work()
    assert await scene.delivered()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (lambda lease: lease.model_copy(update={"node": Key.generate().address}), "for another node"),
        (lambda lease: lease.model_copy(update={"pool_id": 9}), "pool 9"),
        (lambda lease: lease.model_copy(update={"chain_id": 9}), "chain 9"),
        (lambda lease: lease.model_copy(update={"contract": Key.generate().address}), "contract"),
        (lambda lease: lease.model_copy(update={"max_units": 99}), "claims 100 units"),
    ],
    ids=["node", "pool", "chain", "contract", "units"],
)
async def test_work_under_another_nodes_lease_is_given_up_before_anything_is_sent(
    scene: Scene, changed: Callable[[SignedLease], SignedLease], words: str
) -> None:
    item = await scene.hand_over(changed(await scene.leased()))
    await scene.work()
    assert words in scene.store.finished(item).given_up
    assert (scene.relay.tickets, scene.relay.handed, scene.objects()) == ([], [], [])


async def test_a_lease_not_signed_by_the_pool_is_given_up_after_the_ledger_refused_it(scene: Scene) -> None:
    forged = (await scene.leased()).model_copy(update={"max_units": 999})
    item = await scene.hand_over(forged)
    scene.relay.mood = "refuses"
    await scene.work()
    assert "is not the orchestrator of pool" in scene.store.finished(item).given_up
    assert (scene.spool(), await scene.on_ledger()) == ([], [])


async def test_after_a_temporary_refusal_the_node_tries_again(scene: Scene) -> None:
    """A removed node may use leases that end within the notice period.

    This lease lasts longer.
    """
    manager = await scene.world.as_("manager")
    longer = TERMS.notice_period + timedelta(hours=1)
    await scene.hand_over(await scene.leased(expiry=int((scene.clock.now() + longer).timestamp())))
    await manager.pools.remove(POOL, [scene.key.address], "a break")
    scene.relay.mood = "refuses"
    await scene.work(rounds=2)
    assert "refuses the work for now" in scene.item().error
    await scene.world.join(nonce=2)
    scene.relay.mood = "carries"
    await scene.work(rounds=2)
    assert await scene.delivered()


# The store


async def test_an_expired_url_is_requested_again(scene: Scene) -> None:
    await scene.hand_over(await scene.leased(expiry=int(scene.clock.now().timestamp()) + 10_000))
    runner = scene.runner()
    # The first round ends after the ticket was issued, because the store is unreachable.
    scene.delivery.connect(scene.relay, ObjectTransfer(URL, clock=scene.clock, transport=httpx.MockTransport(_break)))
    await runner.work()
    assert scene.item().stage is DeliveryStage.REQUESTED
    scene.delivery.connect(scene.relay, ObjectTransfer(URL, clock=scene.clock, transport=scene.transport))
    await scene.clock.turn(timedelta(minutes=20))
    await scene.work(rounds=3)
    assert await scene.delivered()
    assert [ticket.already_there for ticket in scene.relay.tickets] == [False, False, True]


def _break(_: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("no route")


def silent(_: httpx.Request) -> httpx.Response:
    """Returns a store that never answers."""
    raise httpx.ReadTimeout("not a word for a minute")


def answering(status: int, code: str = "", **headers: str) -> httpx.MockTransport:
    """Returns a store that gives one answer to everything."""
    body = f"<Error><Code>{code}</Code></Error>".encode()
    return httpx.MockTransport(lambda _: httpx.Response(status, headers=headers, stream=httpx.ByteStream(body)))


@pytest.mark.parametrize(
    ("store", "stage"),
    [
        (answering(403, "AccessDenied"), DeliveryStage.HASHED),
        (answering(500), DeliveryStage.REQUESTED),
        (answering(307, Location="http://169.254.169.254/"), DeliveryStage.REQUESTED),
        (answering(400, "BadDigest"), DeliveryStage.REQUESTED),
        (answering(404, "NoSuchBucket"), DeliveryStage.REQUESTED),
        (answering(413), DeliveryStage.REQUESTED),
        (answering(507), DeliveryStage.REQUESTED),
        (httpx.MockTransport(silent), DeliveryStage.REQUESTED),
        (answering(200), DeliveryStage.HASHED),  # a wrong answer: the object does not exist
    ],
    ids=["403", "500", "redirect", "digest", "bucket", "413", "507", "never", "lie"],
)
async def test_a_store_failure_loses_nothing_and_is_retried(
    scene: Scene, store: httpx.MockTransport, stage: DeliveryStage
) -> None:
    await scene.hand_over()
    scene.delivery.connect(scene.relay, ObjectTransfer(URL, clock=scene.clock, transport=store))
    await scene.work()
    item = scene.item()
    assert (item.stage, item.attempts, item.parked) == (stage, 1, "")
    assert item.error
    assert item.path.read_bytes() == CONTENT
    scene.delivery.connect(scene.relay, ObjectTransfer(URL, clock=scene.clock, transport=scene.transport))
    await scene.work(rounds=2)
    assert await scene.delivered()


@pytest.mark.parametrize("status", [403, 500])
async def test_a_permanently_failing_store_is_given_up_when_the_lease_ends(scene: Scene, status: int) -> None:
    item = await scene.hand_over()
    store = answering(status)
    scene.delivery.connect(scene.relay, ObjectTransfer(URL, clock=scene.clock, transport=store))
    await scene.world.warp(timedelta(seconds=700))
    await scene.work(rounds=12, pause=timedelta(seconds=100))
    assert "expired" in scene.store.finished(item).given_up
    assert len(scene.relay.tickets) < 12


@pytest.mark.parametrize("harm", ["damaged", "cut", "gone"])
async def test_work_whose_local_copy_is_lost_is_given_up(scene: Scene, harm: str) -> None:
    item = await scene.hand_over()
    path = scene.item().path
    scene.delivery.connect(scene.relay, ObjectTransfer(URL, clock=scene.clock, transport=httpx.MockTransport(_break)))
    await scene.work()  # this round hashes the file
    scene.delivery.connect(scene.relay, ObjectTransfer(URL, clock=scene.clock, transport=scene.transport))
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(b"X" + CONTENT[1:] if harm == "damaged" else CONTENT[:-1])
    await scene.work(rounds=2)
    assert "copy" in scene.store.finished(item).given_up
    assert (scene.objects(), await scene.on_ledger()) == ([], [])


async def test_a_file_too_large_for_the_pool_is_parked_if_it_is_no_work(scene: Scene) -> None:
    scene.hand_over_file(b"x" * 10_001)
    await scene.work()
    assert "accepts at most 10000" in scene.item().parked


async def test_files_wait_while_the_node_has_no_pool(scene: Scene) -> None:
    await scene.hand_over()
    await scene.delivery.disconnect()
    await scene.work()
    assert "not a member of a pool" in scene.item().error
    scene.delivery.connect(scene.relay, ObjectTransfer(URL, clock=scene.clock, transport=scene.transport))
    await scene.work(rounds=2)
    assert await scene.delivered()


async def test_a_chain_outage_delays_work_and_loses_none(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    async def down(*_: object) -> Any:
        raise Unavailable("the chain is down", code="chain-unavailable")

    await scene.hand_over()
    with monkeypatch.context() as patched:
        patched.setattr(scene.chain, "work", down)
        await scene.work()
    assert (scene.item().stage, scene.item().error) == (DeliveryStage.SUBMITTED, "the chain is down"), (
        "the relayer has it"
    )
    assert scene.objects() == [SHA[2:]]
    await scene.work(rounds=2)
    assert await scene.delivered()


# Crashes


class Killed(BaseException):
    """Ends a process between two instructions, because the worker never catches it."""


STAGES = [
    DeliveryStage.HASHED,
    DeliveryStage.REQUESTED,
    DeliveryStage.PUT,
    DeliveryStage.SUBMITTED,
    DeliveryStage.ACKNOWLEDGED,
]
MOODS = ["carries", "never", "refuses"]


@pytest.mark.parametrize("mood", MOODS)
async def test_a_crash_between_an_action_and_recording_it_neither_loses_nor_duplicates_work(
    scene: Scene, mood: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Crashes at every stage in turn.

    Each run crashes one step later than the previous one, after the step's effect and before its record.
    """
    scene.relay.mood = mood
    await scene.hand_over()
    died: list[DeliveryStage] = []
    for dying in STAGES:
        store = QueueStore(scene.home / "queue.sqlite", scene.home / "spool")
        store.recover()
        advance = store.advance

        def dead(
            item: QueueItem, stage: DeliveryStage, *, at: DeliveryStage = dying, real: Any = advance, **found: Any
        ) -> None:
            if stage is at:
                died.append(stage)
                raise Killed
            real(item, stage, **found)

        monkeypatch.setattr(store, "advance", dead)
        with pytest.raises(Killed):
            await scene.work(store, rounds=3, pause=RELAYER_TIMEOUT + timedelta(seconds=1))
        await scene.clock.turn(LONGEST_LOOK)
        store.close()
    assert died == STAGES
    await scene.work(rounds=2)
    assert await scene.delivered()


@pytest.mark.parametrize("moment", ["stored", "submitted", "copy deleted"])
async def test_a_crash_within_a_step_neither_loses_nor_duplicates_work(
    scene: Scene, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.relay.mood = "refuses"
    await scene.hand_over()
    store = QueueStore(scene.home / "queue.sqlite", scene.home / "spool")

    def killed_after(place: Any, name: str) -> None:
        real = getattr(place, name)

        async def work(*args: Any, **named: Any) -> Any:
            await real(*args, **named)
            raise Killed

        monkeypatch.setattr(place, name, work)

    if moment == "stored":
        killed_after(scene.pool.dependencies.objects, "receive")
    elif moment == "submitted":
        killed_after(scene.chain, "submit")
    else:

        def finish(item: QueueItem, **_: Any) -> None:
            item.path.unlink()
            raise Killed

        monkeypatch.setattr(store, "finish", finish)
    with pytest.raises(Killed):
        await scene.runner(store).work()
    monkeypatch.undo()
    store.close()
    scene.store.recover()
    await scene.work(rounds=2)
    assert await scene.delivered()


PROGRAM = """
import asyncio, os, signal, sys
from pathlib import Path
from ledger.deployment import Deployment
from protocol.runtime.clock import SystemClock
from protocol.identifiers import address
from protocol.identity.keys import Key
from protocol.http.object_transfer import ObjectTransfer
from worker.chain.ledger_chain import LedgerChain
from worker.delivery.pool_delivery import PoolDelivery
from worker.membership.joining import OrchestratorLocation
from worker.session.orchestrator_client import OrchestratorSession
from worker.delivery.pay_watch import PayWatch
from worker.delivery.queue.runner import QueueRunner
from worker.delivery.queue.store import QueueStore

home, url, service, rpc, die_at = Path(sys.argv[1]), *sys.argv[2:]
key, clock = Key.from_hex(os.environ["KEY"]), SystemClock()

async def main():
    store = QueueStore(home / "queue.sqlite", home / "spool")
    store.recover()
    advance = store.advance
    def dead(item, stage, **found):
        if stage == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        advance(item, stage, **found)
    store.advance = dead
    chain = LedgerChain(rpc=rpc, deployment=Deployment.load(home / "deployment.json"), key=key, pool_id=1)
    delivery = PoolDelivery(key=key, pool_id=1, chain=chain, clock=clock)
    location = OrchestratorLocation(pool_id=1, url=url, orchestrator=address(service))
    pool = OrchestratorSession(location, key=key, clock=clock)
    delivery.connect(pool, ObjectTransfer(url, clock=clock))
    await QueueRunner(store, delivery, clock=clock).work()
    await chain.close()
    assert store.items() == [], store.items()

asyncio.run(main())
"""


async def test_a_worker_killed_before_recording_its_submission_submits_once(
    scene: Scene, tmp_path: Path, redis_url: str
) -> None:
    """Kills a real process, with a real orchestrator, store and chain.

    The pool has no relayer.
    """
    scene.world.deployment.save(tmp_path / "deployment.json")
    await scene.hand_over()
    settings, service = scene.pool.dependencies.settings, scene.pool.dependencies.key
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    app = build_orchestrator(
        settings.model_copy(update={"public_url": url}),
        redis=connect_redis(redis_url),
        ledger=scene.pool.ledger,
        key=service,
        with_loops=False,
    )
    app.state.dependencies.uploads._slots = EveryLease()

    def run(die_at: str) -> int:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), url, service.address, scene.world.url, die_at]
        environment = {**os.environ, "KEY": "0x" + scene.key.reveal().hex()}
        return subprocess.run(command, check=False, timeout=60, env=environment).returncode

    with served(app, listener=listener):
        assert await asyncio.to_thread(run, DeliveryStage.SUBMITTED) == -signal.SIGKILL
        assert (scene.item().stage, len(await scene.on_ledger())) == (DeliveryStage.PUT, 1)
        assert await asyncio.to_thread(run, "") == 0
    assert await scene.delivered()
