"""Slots of a task over the bridge: the worker leases them, and the task names them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request, Response

from protocol.errors import Conflict, Unavailable
from protocol.http.client import BadAnswer
from protocol.identifiers import ZERO_DIGEST, Address, Digest, run_id
from protocol.identity.keys import Key
from protocol.identity.signing import read_stamp, sign_response
from protocol.identity.typed_data import SigningDomain
from protocol.leases import Lease
from protocol.runtime.clock import ManualClock
from protocol.runtime.tracing import TraceIds
from protocol.wire.leases import SignedLease
from protocol.wire.runs import StepAnswer
from protocol.wire.serving import ServingSession
from protocol.wire.slots import SlotGrant, SlotName, SlotRequest
from tests.kit.collector import traced
from tests.kit.scripted_gateway import ScriptedGateway
from worker.delivery.queue.store import QueueStore
from worker.delivery.work_signing import LEASED_WORK, LeasedWork
from worker.membership.joining import OrchestratorLocation
from worker.session.orchestrator_client import OrchestratorSession
from worker.slots.bridge.app import BridgeDependencies, create_bridge
from worker.slots.gateway_sessions import GatewaySessions
from worker.slots.task_slots import TaskSlots
from worker.state import StateDirectory
from worker.tasks.saved_state import RunningTask

TASK = RunningTask(assignment_id="a" * 32, task_id="b" * 32, task_name="task", generation=1, token="right")
DOMAIN = SigningDomain(1, Key.generate().address)
POOL = 7


@dataclass
class Pool:
    """A test orchestrator that grants leases, with changes, or fails."""

    node: Address
    clock: ManualClock
    key: Key = field(default_factory=Key.generate)
    asked: list[SlotRequest] = field(default_factory=list)
    released: list[SlotName] = field(default_factory=list)
    steps: int = 0
    change: dict[str, Any] = field(default_factory=dict)
    signer: Key | None = None
    failing: Exception | None = None
    gateway: str = ""

    @property
    def address(self) -> Address:
        return self.key.address

    async def step(self) -> StepAnswer:
        self.steps += 1
        return StepAnswer(
            run="main",
            run_id=run_id("main"),
            step=self.steps,
            need=8,
            groups_per_slot=8,
            checkpoint=None,
            retry_after_ms=0,
            gateway=self.gateway,
        )

    async def slot(self, request: SlotRequest) -> SlotGrant:
        self.asked.append(request)
        if self.failing is not None:
            raise self.failing
        lease = Lease(
            pool_id=POOL,
            run=run_id("main"),
            step=request.step,
            index=len(self.asked) - 1,
            node=self.node,
            version=0,
            digest=ZERO_DIGEST,
            beacon_block=1,
            salt=ZERO_DIGEST,
            groups=request.groups,
            max_units=100,
            expiry=int(self.clock.now().timestamp()) + 60,
        )
        lease = replace(lease, **self.change)
        signature = lease.sign(self.signer or self.key, DOMAIN)
        return SlotGrant(lease=SignedLease.of(lease, domain=DOMAIN, signature=signature), beacon=ZERO_DIGEST)

    async def release(self, slots: tuple[SlotName, ...]) -> None:
        self.released += slots


@dataclass
class Bridged:
    """A bridge, a task's client for it, and the test orchestrator behind it."""

    pool: Pool
    home: Path
    queue: QueueStore
    clock: ManualClock
    reachable: bool = True
    fault: str | Exception = ""
    unpaid: str = ""
    """Reason why the pool might not pay for a lease; empty if it will."""
    stopped: str = ""
    """Reason why the worker has stopped leasing; empty if it leases."""
    node_key: Key = field(default_factory=Key.generate)
    to_gateway: httpx.AsyncBaseTransport | None = None
    allow_plain_http: bool = False
    slots: TaskSlots = field(init=False)
    http: httpx.AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self, assignment: str = TASK.assignment_id) -> None:
        """Restarts the worker with the same state directory."""
        task = replace(TASK, assignment_id=assignment)
        self.slots = TaskSlots(
            assignment_id=assignment,
            node=self.pool.node,
            pool_id=POOL,
            domain=DOMAIN,
            state=StateDirectory(self.home),
            service=lambda: self.pool if self.reachable else None,
            fault_of=self.fault_of,
            pay_fault_of=self.pay_fault_of,
            stopped=lambda: self.stopped,
            clock=self.clock,
        )
        sessions = GatewaySessions(
            key=self.node_key,
            step=self.slots.step,
            lease_of=self.slots.lease_of,
            clock=self.clock,
            transport=self.to_gateway,
            allow_plain_http=self.allow_plain_http,
        )
        dependencies = BridgeDependencies(
            task=task,
            node=self.pool.node,
            pool_id=POOL,
            volume=self.home / "data",
            queue=self.queue,
            on_metrics=lambda _: None,
            on_file=lambda: None,
            clock=self.clock,
            most_file_bytes=5000,
            most_spooled_bytes=50_000,
            slots=self.slots,
            sessions=sessions,
        )
        transport = httpx.ASGITransport(app=create_bridge(dependencies))
        headers = {"Authorization": "Bearer right"}
        self.http = httpx.AsyncClient(transport=transport, base_url="http://bridge", headers=headers)

    async def pay_fault_of(self, lease: Lease, now: datetime) -> str:
        assert now == self.clock.now()
        return self.unpaid

    async def fault_of(self, lease: Lease, beacon: Digest) -> str:
        if isinstance(self.fault, Exception):
            raise self.fault
        return self.fault

    async def lease(self, step: int = 0, groups: int = 2) -> httpx.Response:
        return await self.http.post("/v1/slots", json={"step": step, "groups": groups})

    async def hand_over(self, *, index: int = 0, units: int = 10, path: str = "out", **more: Any) -> httpx.Response:
        rollout = {"step": 0, "index": index, "units": units, "figures": {"reward": 0.5}}
        return await self.http.post("/v1/files", json={"path": path, "rollout": rollout, **more})


@pytest.fixture
async def bridged(tmp_path: Path, node: Address, clock: ManualClock) -> AsyncIterator[Bridged]:
    (tmp_path / "data").mkdir()
    for name in ("out", "other"):
        (tmp_path / "data" / name).write_bytes(name.encode())
    queue = QueueStore(tmp_path / "queue.sqlite", tmp_path / "spool")
    bridged = Bridged(Pool(node, clock), tmp_path, queue, clock)
    yield bridged
    await bridged.http.aclose()
    queue.close()


async def test_a_task_can_read_the_step_at_a_bounded_rate(bridged: Bridged) -> None:
    first = (await bridged.http.get("/v1/step")).json()
    assert (await bridged.http.get("/v1/step")).json() == first
    assert bridged.pool.steps == 1
    await bridged.clock.turn(timedelta(seconds=1))
    assert (await bridged.http.get("/v1/step")).json()["step"] == 2


async def test_the_worker_attaches_the_lease_that_it_obtained_for_the_task(bridged: Bridged) -> None:
    granted = SlotGrant.model_validate((await bridged.lease()).json())
    answer = await bridged.hand_over()
    assert answer.status_code == 202
    item = bridged.queue.get(answer.json()["id"])
    work = LeasedWork.model_validate_json(item.metadata[LEASED_WORK])
    assert work == LeasedWork(lease=granted.lease, units=10, figures={"reward": 0.5})


@pytest.mark.parametrize(
    ("more", "status", "code"),
    [
        ({"index": 1}, 404, "no-lease"),
        ({"units": 101}, 422, "unprocessable"),
        ({"kind": "note"}, 400, "invalid-input"),
        ({"metadata": {LEASED_WORK: json.dumps({"lease": "mine"})}}, 400, "invalid-input"),
        ({"path": "absent"}, 404, "not-found"),
    ],
)
async def test_a_task_cannot_invent_or_extend_a_lease(
    bridged: Bridged, more: dict[str, Any], status: int, code: str
) -> None:
    await bridged.lease()
    answer = await bridged.hand_over(**more)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert bridged.queue.items() == []
    assert (await bridged.hand_over()).status_code == 202, "an error costs no quota"


async def test_a_slot_accepts_one_file_however_often_it_is_handed_over(bridged: Bridged) -> None:
    await bridged.lease()
    first = (await bridged.hand_over()).json()
    assert (await bridged.hand_over()).json() == {"id": first["id"], "new": False}
    answer = await bridged.hand_over(path="other")
    assert (answer.status_code, answer.json()["code"]) == (409, "slot-used")


async def test_the_trace_of_a_slot_has_its_generation_once(bridged: Bridged, monkeypatch: pytest.MonkeyPatch) -> None:
    with traced(monkeypatch) as collector:
        granted = SlotGrant.model_validate((await bridged.lease()).json())
        await bridged.clock.turn(timedelta(seconds=5))
        for _ in range(2):
            assert (await bridged.hand_over()).status_code == 202
    (span,) = collector.spans
    assert (span.name, span.trace) == ("generation", TraceIds.of(granted.lease.lease.key.hash).trace)
    assert span.attributes["muster.units"] == 10


async def test_a_file_under_an_expired_lease_is_refused(bridged: Bridged) -> None:
    await bridged.lease()
    await bridged.clock.turn(timedelta(seconds=62))
    answer = await bridged.hand_over()
    assert (answer.status_code, answer.json()["code"]) == (409, "lease-expired")


async def test_leases_survive_the_worker_but_not_their_assignment(bridged: Bridged) -> None:
    await bridged.lease()
    bridged.restart()
    assert (await bridged.hand_over()).status_code == 202
    bridged.restart("c" * 32)
    assert (await bridged.hand_over(path="other")).json()["code"] == "no-lease"


@pytest.mark.parametrize(
    "change",
    [{"node": Key.generate().address}, {"pool_id": 8}, {"step": 5}, {"groups": 3}, {}],
    ids=["another node", "another pool", "another step", "more than asked", "another signer"],
)
async def test_an_unrequested_lease_is_not_kept(bridged: Bridged, change: dict[str, Any]) -> None:
    bridged.pool.change = change
    bridged.pool.signer = None if change else Key.generate()
    answer = await bridged.lease()
    assert (answer.status_code, answer.json()["code"]) == (503, "bad-answer")
    assert (await bridged.hand_over()).json()["code"] == "no-lease"


async def test_a_lease_that_contradicts_the_chain_is_refused_and_the_contributor_is_told(
    bridged: Bridged,
) -> None:
    bridged.fault = "its seed is to stand on block 7"
    answer = await bridged.lease()
    assert (answer.status_code, answer.json()["code"]) == (503, "false-grant")
    assert "block 7" in answer.json()["detail"]
    assert "block 7" in bridged.slots.last_error
    assert (await bridged.hand_over()).json()["code"] == "no-lease"
    bridged.fault = ""
    assert (await bridged.lease()).status_code == 200
    assert bridged.slots.last_error == ""
    first, second = (asked.request_id for asked in bridged.pool.asked)
    assert first != second, "a refused lease is not requested again"


async def test_during_a_chain_outage_no_task_generates_unverified_and_no_lease_is_wasted(bridged: Bridged) -> None:
    bridged.fault = Unavailable("the chain is down")
    asking = asyncio.ensure_future(bridged.lease())
    while not asking.done():
        await bridged.clock.turn(timedelta(seconds=1))
    answer = await asking
    assert (answer.status_code, answer.json()["retryable"]) == (503, True)
    assert "the chain is down" in bridged.slots.last_error
    bridged.fault = ""
    assert (await bridged.lease()).status_code == 200
    first, second = (asked.request_id for asked in bridged.pool.asked)
    assert first == second


async def test_a_request_with_a_lost_answer_is_repeated_under_the_same_id(bridged: Bridged) -> None:
    bridged.pool.failing = Unavailable("no answer")
    assert (await bridged.lease()).status_code == 503
    bridged.pool.failing = None
    assert (await bridged.lease()).status_code == 200
    assert (await bridged.lease()).status_code == 200
    first, second, third = (asked.request_id for asked in bridged.pool.asked)
    assert first == second != third


async def test_a_refusal_is_passed_on_and_not_repeated(bridged: Bridged) -> None:
    bridged.pool.failing = Conflict("step 0 is closed", code="no-slot")
    assert (await bridged.lease()).json()["detail"] == "step 0 is closed"
    await bridged.lease()
    assert bridged.pool.asked[0].request_id != bridged.pool.asked[1].request_id


async def test_without_an_orchestrator_a_task_gets_a_retryable_error(bridged: Bridged) -> None:
    bridged.reachable = False
    for answer in (await bridged.http.get("/v1/step"), await bridged.lease()):
        assert (answer.status_code, answer.json()["retryable"]) == (503, True)


async def test_undelivered_slots_are_released_at_the_end(bridged: Bridged) -> None:
    for _ in range(3):
        await bridged.lease()
    await bridged.hand_over(index=1)
    answer = await bridged.http.post("/v1/slots/release", json={"slots": [{"step": 0, "index": i} for i in (0, 1, 9)]})
    assert answer.status_code == 204
    assert bridged.pool.released == [SlotName(step=0, index=0)]
    await bridged.slots.release_unused()
    assert bridged.pool.released == [SlotName(step=0, index=0), SlotName(step=0, index=2)]


async def test_a_task_that_requests_slots_endlessly_is_rate_limited(bridged: Bridged) -> None:
    answers = [(await bridged.lease()).status_code for _ in range(40)]
    assert set(answers) == {200, 429}
    assert len(bridged.pool.asked) < 20


async def test_an_unpaid_worker_leases_nothing_and_states_the_reason(bridged: Bridged) -> None:
    bridged.stopped = "3 delivered pieces of work in a row were not paid"
    answer = await bridged.lease()
    assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (503, "not-paid", True)
    assert "in a row were not paid" in answer.json()["detail"]
    assert bridged.pool.asked == []
    bridged.stopped = ""
    assert (await bridged.lease()).status_code == 200


async def test_at_most_one_lease_is_lost_while_the_pool_may_not_pay(bridged: Bridged) -> None:
    """The orchestrator counts a refused lease as undelivered.

    So the worker requests the next lease only when the pool would pay for the refused one.
    """
    bridged.unpaid = "its work may cost 5 MUST, and the pool's escrow has 1 MUST"
    for _ in range(3):
        answer = await bridged.lease()
        assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (503, "not-paid", True)
        assert "may cost 5 MUST" in answer.json()["detail"]
    assert len(bridged.pool.asked) == 1
    assert "may cost 5 MUST" in bridged.slots.last_error
    bridged.unpaid = ""
    assert (await bridged.lease()).status_code == 200
    assert bridged.slots.last_error == ""


async def test_an_orchestrator_of_an_earlier_release_is_reported_as_such(bridged: Bridged) -> None:
    """Leases of such an orchestrator have no salt.

    The worker's client reports this, and the task gets the report.
    """
    grant = (await bridged.pool.slot(SlotRequest(step=0, groups=1, request_id="a" * 32))).model_dump(mode="json")
    del grant["lease"]["salt"], grant["lease"]["beacon_block"]
    key = bridged.pool.key
    old = FastAPI()

    @old.post("/v1/slots")
    async def slot(request: Request) -> Response:
        body = json.dumps({**grant, "beacon_block": 1}).encode()
        stamp = read_stamp(request.headers)
        headers = sign_response(key, address=stamp.address, nonce=stamp.nonce, status=200, body=body)
        return Response(body, 200, headers)

    orchestrator = OrchestratorSession(
        OrchestratorLocation(pool_id=POOL, url="http://127.0.0.1:1", orchestrator=key.address),
        key=Key.generate(),
        clock=bridged.clock,
        transport=httpx.ASGITransport(app=old),
    )
    with pytest.raises(BadAnswer, match="contracts of version 1; this release needs version 2"):
        await orchestrator.slot(SlotRequest(step=0, groups=1, request_id="a" * 32))
    await orchestrator.aclose()


# Sessions with a gateway


@pytest.fixture
def gateway(bridged: Bridged) -> ScriptedGateway:
    """A gateway that the worker reaches, and that the run names."""
    gateway = ScriptedGateway()
    gateway.url = bridged.pool.gateway = "https://gateway.example"
    bridged.pool.node, bridged.to_gateway = bridged.node_key.address, httpx.ASGITransport(app=gateway.app)
    bridged.restart()
    return gateway


async def open_session(bridged: Bridged, *, index: int = 0) -> httpx.Response:
    return await bridged.http.post("/v1/sessions", json={"step": 0, "index": index, "arithmetic": "torch/float32"})


async def test_the_worker_opens_a_session_for_a_slot_with_the_nodes_signature(
    bridged: Bridged, gateway: ScriptedGateway
) -> None:
    granted = SlotGrant.model_validate((await bridged.lease()).json())
    first, again = [ServingSession.model_validate((await open_session(bridged)).json()) for _ in range(2)]
    (session,) = gateway.sessions.values()
    assert session.opened.lease == granted.lease
    assert session.opened.arithmetic == "torch/float32"
    assert (again.id, again.gateway) == (first.id, gateway.key.address)
    assert again.token == session.token != first.token


async def test_a_session_needs_an_unused_lease_and_a_gateway(bridged: Bridged, gateway: ScriptedGateway) -> None:
    answers = [await open_session(bridged)]
    await bridged.lease()
    bridged.pool.gateway = ""
    await bridged.clock.turn(timedelta(seconds=1))
    answers.append(await open_session(bridged))
    bridged.pool.gateway = "http://gateway.example"
    await bridged.clock.turn(timedelta(seconds=1))
    answers.append(await open_session(bridged))
    await bridged.hand_over()
    answers.append(await open_session(bridged))
    assert [answer.json()["code"] for answer in answers] == ["no-lease", "no-gateway", "plain-http", "slot-used"]
    assert gateway.opens == 0


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"url": "http://10.0.0.1"}, "bad-answer"),
        ({"url": "file:///etc"}, "bad-answer"),
        ({"life_s": 1e6}, "bad-answer"),
        ({"refuses": True}, "forbidden"),
    ],
)
async def test_a_gateways_answer_is_checked(
    bridged: Bridged, gateway: ScriptedGateway, change: dict[str, Any], code: str
) -> None:
    await bridged.lease()
    for name, value in change.items():
        setattr(gateway, name, value)
    gateway.margin_ms = -1000 if "life_s" in change else 20_000
    assert (await open_session(bridged)).json()["code"] == code


async def test_a_silent_gateway_is_asked_a_bounded_number_of_times(bridged: Bridged, gateway: ScriptedGateway) -> None:
    await bridged.lease()
    gateway.down = True
    asking = asyncio.create_task(open_session(bridged))
    while not asking.done():
        await bridged.clock.turn(timedelta(seconds=1))
    assert asking.result().status_code == 503
    gateway.down = False
    statuses = [(await open_session(bridged)).status_code for _ in range(20)]
    assert statuses[0] == 200
    assert statuses[-1] == 429
