"""Heartbeats to a test orchestrator with real signatures: valid answers and their effects."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, cast

import httpx
import pytest
from fastapi import FastAPI, Request, Response

from ledger.client.work import WorkRecord
from protocol.errors import Unavailable
from protocol.identifiers import Address, Digest, address
from protocol.identity.keys import Key
from protocol.identity.signing import check_signature, read_stamp, sign_response, unix_ms
from protocol.identity.typed_data import SigningDomain
from protocol.leases import Lease, WorkKey
from protocol.runtime.clock import ManualClock
from protocol.wire.heartbeat import Heartbeat, HeartbeatAnswer
from protocol.wire.invites import SignedInvite
from protocol.wire.leases import SignedWorkClaim
from protocol.wire.logs import LogBatch
from protocol.wire.nodes import NodeState
from tests.kit.event_loop import at_rest, one_thread
from worker.chain.ledger_chain import LedgerChain, NodeStatus, Payment
from worker.chain.pool_record import PoolRecord
from worker.heartbeat import (
    FIRST_CHECK_PAUSE,
    LONGEST_CHECK_PAUSE,
    MOST_REMEMBERED,
    SILENT_AFTER,
    HeartbeatLoop,
    HeartbeatStop,
)
from worker.logs.push import LogPusher
from worker.logs.store import LogStore
from worker.membership.joining import OrchestratorLocation
from worker.runtime.interface import OutputLine
from worker.runtime.process import ProcessRuntime
from worker.session.orchestrator_client import OrchestratorSession
from worker.situation import Phase, Situation
from worker.state import StateDirectory
from worker.tasks.reconciler import Reconciler

URL = "http://127.0.0.1:1"
MEMBER = NodeStatus(
    provider=address("0x52908400098527886E0F7030069857D2E4169EE7"),
    member=True,
    banned=False,
    active=True,
    capacity=1,
    min_capacity=1,
    free_stake=0,
    needed_stake=0,
    gas=0,
)

__all__ = ["one_thread"]  # a fixture
pytestmark = pytest.mark.usefixtures("one_thread")


class ScriptedChain:
    """A ledger with scripted answers."""

    def __init__(self, orchestrator: Address) -> None:
        self.key = orchestrator
        self.at = MEMBER
        self.url = ""
        self.down = False

    @property
    def invites_domain(self) -> SigningDomain:
        return SigningDomain(1, self.key)

    @property
    def work_domain(self) -> SigningDomain:
        return SigningDomain(1, self.key)

    async def node_status(self) -> NodeStatus:
        if self.down:
            raise Unavailable("the chain is down")
        return self.at

    async def orchestrator(self) -> Address:
        if self.down:
            raise Unavailable("the chain is down")
        return self.key

    async def pool_url(self) -> str:
        if self.down:
            raise Unavailable("the chain is down")
        return self.url

    async def is_orchestrator(self, who: Address) -> bool:
        return who == self.key

    async def join(self, invite: SignedInvite) -> None:
        raise AssertionError("the tests do not call this")

    async def leave(self) -> None:
        raise AssertionError("the tests do not call this")

    async def payment(self, key: WorkKey) -> Payment | None:
        raise AssertionError("the tests do not call this")

    async def pool_record(self) -> PoolRecord:
        raise AssertionError("the tests do not call this")

    async def pay_fault_of(self, lease: Lease, now: datetime) -> str:
        raise AssertionError("the tests do not call this")

    async def fault_of(self, lease: Lease, beacon: Digest) -> str:
        raise AssertionError("the tests do not call this")

    async def now(self) -> datetime:
        raise AssertionError("the tests do not call this")

    async def work(self, key: WorkKey) -> WorkRecord | None:
        raise AssertionError("the tests do not call this")

    async def submit(self, work: SignedWorkClaim) -> None:
        raise AssertionError("the tests do not call this")


class Side:
    """A test orchestrator: scripted answers and signatures, and a record of the heartbeats."""

    def __init__(self, clock: ManualClock) -> None:
        self.key = Key.generate()
        self.clock = clock
        self.offset = timedelta()
        self.answer: dict[str, Any] = {"state": "healthy", "assignment": None, "commands": []}
        self.status = 200
        self.tamper = False
        self.signature = True
        self.moved = False
        self.looks = 0
        self.beats: list[Heartbeat] = []
        self.batches: list[LogBatch] = []
        self.app = FastAPI()
        self.app.post("/v1/heartbeat")(self.heartbeat)
        self.app.post("/v1/logs")(self.logs)

    async def heartbeat(self, request: Request) -> Response:
        body = await request.body()
        self.beats.append(Heartbeat.model_validate_json(body))
        if self.status != 200:
            return Response(b"", self.status)
        now = unix_ms(self.clock.now() + self.offset)
        content: dict[str, Any] = {"next_interval_seconds": 10.0, "server_time_ms": now, "reason": "", **self.answer}
        return self._signed(request, httpx.Response(200, json=content).content)

    async def has_moved(self) -> bool:
        self.looks += 1
        return self.moved

    async def logs(self, request: Request) -> Response:
        batch = LogBatch.model_validate_json(await request.body())
        self.batches.append(batch)
        until = unix_ms(self.clock.now()) + 60_000
        content = {"next_sequence": batch.lines[-1].sequence + 1, "wanted_until_ms": until}
        return self._signed(request, httpx.Response(200, json=content).content)

    def _signed(self, request: Request, body: bytes) -> Response:
        stamp = read_stamp(request.headers)
        headers = sign_response(self.key, address=stamp.address, nonce=stamp.nonce, status=200, body=body)
        if not self.signature:
            headers = {}
        return Response(body.replace(b"healthy", b"drained") if self.tamper else body, 200, headers)


@pytest.fixture
def side(clock: ManualClock) -> Side:
    return Side(clock)


@pytest.fixture
async def heart(side: Side, clock: ManualClock, state: StateDirectory, node: Address) -> AsyncIterator[HeartbeatLoop]:
    key = Key.generate()
    membership = OrchestratorLocation(pool_id=1, url=URL, orchestrator=side.key.address)
    transport = httpx.ASGITransport(app=side.app)
    orchestrator = OrchestratorSession(membership, key=key, clock=clock, transport=transport)

    async def no_bridge(_: object) -> None:
        return

    reconciler = Reconciler(
        runtime=ProcessRuntime(node, directory=state.processes),
        state=state,
        node=node,
        pool_id=1,
        gpus=(),
        clock=clock,
        on_task=no_bridge,
    )
    yield HeartbeatLoop(
        orchestrator=orchestrator,
        known_key=side.key.address,
        pool_id=1,
        chain=cast("LedgerChain", ScriptedChain(side.key.address)),
        reconciler=reconciler,
        pusher=LogPusher(lambda _: None, clock=clock),
        gauges=lambda: {"cpu.busy": 0.5},
        situation=Situation(),
        clock=clock,
        stopping=asyncio.Event(),
        longest_pause=timedelta(seconds=30),
        has_moved=side.has_moved,
    )
    await orchestrator.aclose()


async def turned(clock: ManualClock, seconds: float) -> None:
    """Advances the clock in small steps, so that threads can keep up."""
    for _ in range(int(seconds * 2)):
        await clock.turn(timedelta(seconds=0.5))
        await at_rest()


async def test_heartbeats_follow_the_orchestrators_interval(
    heart: HeartbeatLoop, side: Side, clock: ManualClock
) -> None:
    beating = asyncio.create_task(heart.run())
    await at_rest()
    assert len(side.beats) == 1
    await turned(clock, 35)
    assert 4 <= len(side.beats) <= 5
    assert side.beats[0].metrics == {"cpu.busy": 0.5}
    side.answer["next_interval_seconds"] = 100.0
    await turned(clock, 12)
    heard = len(side.beats)
    await turned(clock, 60)
    assert len(side.beats) == heard
    heart._stopping.set()
    assert await beating is HeartbeatStop.STOPPED


@pytest.mark.parametrize(("signature", "tamper"), [(False, False), (True, True)], ids=["unsigned", "altered"])
async def test_an_answer_not_signed_by_the_orchestrator_is_ignored(
    heart: HeartbeatLoop, side: Side, clock: ManualClock, signature: bool, tamper: bool
) -> None:
    side.signature, side.tamper = signature, tamper
    side.answer["assignment"] = {
        "id": "a" * 32,
        "task_id": "b" * 32,
        "generation": 1,
        "spec": {"name": "evil", "image": "evil"},
    }
    beating = asyncio.create_task(heart.run())
    await turned(clock, 5)
    assert side.beats
    assert heart._reconciler.assignment is None
    assert "sign" in heart._situation.silent_because
    beating.cancel()


async def test_an_unreachable_orchestrator_is_retried_forever_with_bounded_pauses(
    heart: HeartbeatLoop, side: Side, clock: ManualClock
) -> None:
    side.status = 503
    beating = asyncio.create_task(heart.run())
    await turned(clock, 400)
    assert not beating.done()
    assert heart._situation.silent_because
    before = len(side.beats)
    await turned(clock, 90)
    assert len(side.beats) > before
    side.status = 200
    await turned(clock, 60)
    assert heart._situation.silent_because == ""
    beating.cancel()


@pytest.mark.parametrize("wrong", ["down", "another service"])
async def test_after_a_silence_the_worker_looks_for_the_orchestrators_new_address(
    heart: HeartbeatLoop, side: Side, clock: ManualClock, wrong: str
) -> None:
    side.status, side.signature = (503, True) if wrong == "down" else (200, False)
    beating = asyncio.create_task(heart.run())
    while not side.looks:
        await turned(clock, 0.5)
    assert len(side.beats) >= SILENT_AFTER
    side.moved = True
    await turned(clock, 50)
    assert side.looks == 2
    assert await beating is HeartbeatStop.MOVED


@pytest.mark.parametrize("answered", [False, True], ids=["no answer", "one answer in five"])
async def test_workers_of_an_overloaded_orchestrator_look_for_a_new_address_rarely(
    heart: HeartbeatLoop, side: Side, clock: ManualClock, answered: bool
) -> None:
    answer = HeartbeatAnswer(
        state=NodeState.HEALTHY, assignment=None, next_interval_seconds=10, server_time_ms=unix_ms(clock.now())
    )
    looked: list[float] = []

    async def has_moved() -> bool:
        looked.append(clock.monotonic())
        return False

    heart._has_moved = has_moved
    for beat in range(1200):  # two hours
        if answered and beat % 5 == 4:
            heart._apply_answer(answer)
        else:
            assert await heart._check_membership() is None
        await clock.turn(timedelta(seconds=6))
    gaps = [later - former for former, later in pairwise(looked)]
    assert min(gaps) >= FIRST_CHECK_PAUSE.total_seconds() / 2
    if not answered:
        assert 20 < len(gaps) < 60
        assert max(gaps) <= LONGEST_CHECK_PAUSE.total_seconds() + 6
        assert len(set(gaps[-10:])) > 1  # jitter


async def test_an_answer_resets_the_count_of_failed_heartbeats(
    heart: HeartbeatLoop, side: Side, clock: ManualClock
) -> None:
    side.moved = True
    beating = asyncio.create_task(heart.run())
    for _ in range(3):
        side.signature = False  # the client does not repeat a request after such an answer
        before = len(side.beats)
        while not beating.done() and len(side.beats) < before + SILENT_AFTER - 1:
            await turned(clock, 0.5)
        side.signature = True
        await turned(clock, 10)
    assert (side.looks, beating.done()) == (0, False)
    beating.cancel()


@pytest.mark.parametrize(
    ("ledger", "ends"),
    [(replace(MEMBER, member=False), True), (MEMBER, False), (Unavailable("the chain is down"), False)],
    ids=["removed", "member", "chain down"],
)
async def test_a_node_removed_during_an_outage_waits_for_an_invite(
    heart: HeartbeatLoop, side: Side, clock: ManualClock, ledger: NodeStatus | Unavailable, ends: bool
) -> None:
    side.status = 503
    chain = cast("ScriptedChain", heart._chain)
    if isinstance(ledger, NodeStatus):
        chain.at = ledger
    else:
        chain.down = True
    beating = asyncio.create_task(heart.run())
    await turned(clock, 120)  # two checks, 15 s or more apart
    assert beating.done() is ends
    if ends:
        assert await beating is HeartbeatStop.NOT_A_MEMBER
    beating.cancel()


@pytest.mark.parametrize("said", ["nothing", "discovered"])
async def test_a_single_read_of_a_lagging_ledger_ends_no_membership(
    heart: HeartbeatLoop, side: Side, clock: ManualClock, said: str
) -> None:
    if said == "nothing":
        side.signature = False
    else:
        side.answer.update(state=said)
    readings = [replace(MEMBER, member=False), MEMBER] * 4
    chain = cast("ScriptedChain", heart._chain)

    async def node_status() -> NodeStatus:
        return readings.pop(0) if len(readings) > 1 else MEMBER

    chain.node_status = node_status  # type: ignore[method-assign]
    beating = asyncio.create_task(heart.run())
    while len(readings) > 1 and not beating.done():
        await turned(clock, 5)
    assert not beating.done()
    chain.at = replace(MEMBER, member=False)
    del chain.node_status
    await turned(clock, 1800)  # two checks, up to five minutes apart
    assert await asyncio.wait_for(beating, 60) is HeartbeatStop.NOT_A_MEMBER


async def test_after_a_clock_jump_requests_are_signed_with_the_right_time(
    heart: HeartbeatLoop, side: Side, clock: ManualClock
) -> None:
    stamps: list[int] = []

    @side.app.middleware("http")
    async def note(request: Request, call_next: Any) -> Any:
        stamp = read_stamp(request.headers)
        stamps.append(stamp.timestamp_ms)
        body = await request.body()
        check_signature(stamp, method="POST", target="/v1/heartbeat", body_sha256=hashlib.sha256(body).hexdigest())
        return await call_next(request)

    await heart.send()
    right = unix_ms(clock.now())
    clock.jump(timedelta(hours=5))
    side.offset = -timedelta(hours=5)
    await heart.send()
    assert abs(stamps[-1] - right) < 1000
    assert heart._situation.clock_skew_s == pytest.approx(5 * 3600, abs=1)


@pytest.mark.parametrize("said", ["discovered", "invited", "dead", "evicted"])
async def test_a_node_unknown_to_the_pool_waits_for_an_invite_again(
    heart: HeartbeatLoop, side: Side, clock: ManualClock, said: str
) -> None:
    chain = heart._chain
    assert isinstance(chain, ScriptedChain)
    side.answer.update(state=said, reason="gone")
    beating = asyncio.create_task(heart.run())
    await turned(clock, 3)
    assert not beating.done()  # the ledger still lists the node, so the orchestrator lags behind
    chain.at = replace(MEMBER, member=False)
    await turned(clock, 25)
    assert await asyncio.wait_for(beating, 60) is HeartbeatStop.NOT_A_MEMBER


async def test_a_banned_node_reports_the_reason_and_retries_slowly(
    heart: HeartbeatLoop, side: Side, clock: ManualClock
) -> None:
    chain = heart._chain
    assert isinstance(chain, ScriptedChain)
    chain.at = replace(MEMBER, member=False, banned=True)
    side.answer.update(state="banned", reason="banned: forged work")
    beating = asyncio.create_task(heart.run())
    await turned(clock, 50)
    assert heart._situation.phase is Phase.BANNED
    assert heart._situation.detail == "banned: forged work"
    assert len(side.beats) == 1
    await turned(clock, 20)
    assert len(side.beats) == 2
    chain.at = replace(MEMBER, member=False)
    side.answer.update(state="discovered", reason="unbanned")
    await turned(clock, 80)
    assert await asyncio.wait_for(beating, 60) is HeartbeatStop.NOT_A_MEMBER


async def test_a_rotated_key_is_accepted_once_the_ledger_confirms_it(
    heart: HeartbeatLoop, side: Side, clock: ManualClock
) -> None:
    chain = heart._chain
    assert isinstance(chain, ScriptedChain)
    side.key = Key.generate()
    beating = asyncio.create_task(heart.run())
    await turned(clock, 5)
    assert not beating.done()
    chain.key = side.key.address
    await turned(clock, 40)
    assert await asyncio.wait_for(beating, 60) is HeartbeatStop.KEY_CHANGED


async def test_commands_are_executed_once_and_acknowledged_until_confirmed(
    heart: HeartbeatLoop, side: Side, clock: ManualClock
) -> None:
    side.answer["commands"] = [{"id": "c" * 32, "kind": "show-notice", "text": "maintenance at noon"}]
    await heart.send()
    await heart.send()
    side.answer["commands"] = []
    await heart.send()
    await heart.send()
    assert list(heart._situation.notices) == ["maintenance at noon"]
    assert [beat.acknowledged for beat in side.beats] == [(), ("c" * 32,), ("c" * 32,), ()]


async def test_an_unknown_command_and_an_unknown_state_of_a_newer_orchestrator_are_tolerated(
    heart: HeartbeatLoop, side: Side
) -> None:
    side.answer["commands"] = [{"id": "c" * 32, "kind": "rotate-key"}]
    side.answer["state"] = "quarantined"
    side.answer["assignment"] = {
        "id": "a" * 32,
        "task_id": "b" * 32,
        "generation": 1,
        "spec": {"name": "task", "image": "image:1"},
    }
    await heart.send()
    await heart.send()
    (notice,) = heart._situation.notices
    assert "does not know the pool's command rotate-key" in notice
    assert side.beats[1].acknowledged == ("c" * 32,)
    assert heart._situation.node_state == "quarantined"
    assert heart._reconciler.assignment is not None


async def test_the_memory_of_commands_is_bounded_and_keeps_repeated_ones(heart: HeartbeatLoop, side: Side) -> None:
    steady = {"id": "f" * 32, "kind": "show-notice", "text": "once"}
    for number in range(2 * MOST_REMEMBERED):
        side.answer["commands"] = [steady, {"id": f"{number:032x}", "kind": "resume"}]
        await heart.send()
    assert len(heart._executed) <= MOST_REMEMBERED
    heart._situation.notices.clear()
    await heart.send()
    assert list(heart._situation.notices) == []


async def test_logs_are_pushed_while_a_reader_follows(side: Side, clock: ManualClock, state: StateDirectory) -> None:
    store = LogStore(state.logs / "x")
    store.append(
        "c", [OutputLine(time_ns=number + 1, stream="stdout", text=f"line {number}") for number in range(1200)]
    )
    membership = OrchestratorLocation(pool_id=1, url=URL, orchestrator=side.key.address)
    orchestrator = OrchestratorSession(
        membership, key=Key.generate(), clock=clock, transport=httpx.ASGITransport(app=side.app)
    )
    pusher = LogPusher(lambda name: store if name == "a" * 32 else None, clock=clock)
    pusher.orchestrator = orchestrator
    pushing = asyncio.create_task(pusher.run())
    pusher.want("a" * 32, since=100, until_ms=unix_ms(clock.now()) + 10_000)
    pusher.want(
        "d" * 32, since=0, until_ms=unix_ms(clock.now()) + 10_000
    )  # an assignment that this worker has no log of
    await turned(clock, 3)
    pushed = [line.sequence for batch in side.batches for line in batch.lines]
    assert pushed == list(range(100, 1200))
    store.append("c", [OutputLine(time_ns=9999, stream="stderr", text="late")])
    await turned(clock, 2)
    assert side.batches[-1].lines[-1].text == "late"
    await turned(clock, 70)
    store.append("c", [OutputLine(time_ns=10_000, stream="stderr", text="unread")])
    await turned(clock, 5)
    assert side.batches[-1].lines[-1].text == "late"
    pushing.cancel()
    await orchestrator.aclose()


async def test_no_orchestrator_can_make_a_worker_loop_without_pause(
    heart: HeartbeatLoop, side: Side, clock: ManualClock
) -> None:
    side.answer["next_interval_seconds"] = 1e-9
    beating = asyncio.create_task(heart.run())
    await at_rest()
    assert len(side.beats) == 1  # the clock stands still, so no further heartbeat is sent
    await turned(clock, 5)
    assert len(side.beats) > 2
    heart._stopping.set()
    assert await beating is HeartbeatStop.STOPPED
