"""Heartbeats: answers to members and to strangers, and every kind of refusal."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import httpx
import pytest

from orchestrator.chain.interface import Changes, MemberEvent
from orchestrator.domain.node_states import NodeEvent
from orchestrator.nodes.membership import FOLLOWED_WITHIN
from protocol.errors import Unavailable
from protocol.http.client import RequestSigner
from protocol.http.lookups import LookupLimits
from protocol.identity.keys import Key
from protocol.identity.signing import sign_request
from protocol.wire.nodes import NodeState
from tests.kit.memory_ledger import OWNER, POOL, PoolUnderTest

BODY: dict[str, Any] = {"pool_id": POOL, "worker_version": "0.1.0"}


async def _nothing_to_commit() -> None:
    pass


async def test_a_member_is_healthy_after_its_first_heartbeat_and_the_answer_is_signed(pool: PoolUnderTest) -> None:
    key = await pool.member()
    answer = await pool.beat(key)  # beat() verifies the answer's signature
    assert answer.state is NodeState.HEALTHY
    assert answer.assignment is None
    assert answer.reason == "no task needs this node now"
    assert 10 <= answer.next_interval_seconds <= 11


async def test_a_strangers_heartbeat_is_answered_with_the_reason_for_no_assignment(pool: PoolUnderTest) -> None:
    answer = await pool.beat(Key.generate())
    assert answer.state is NodeState.DISCOVERED
    assert answer.assignment is None
    assert "not a member" in answer.reason


async def test_a_strangers_heartbeat_stores_nothing(pool: PoolUnderTest) -> None:
    key = Key.generate()
    await pool.beat(key)
    assert await pool.dependencies.nodes.count() == 0


async def test_ordinary_heartbeats_cause_no_chain_read(pool: PoolUnderTest) -> None:
    key = await pool.member()
    before = pool.ledger.calls
    for _ in range(20):
        await pool.clock.turn(timedelta(seconds=10))
        await pool.beat(key)
    assert pool.ledger.calls == before


async def test_a_stalled_chain_delays_no_heartbeat(pool: PoolUnderTest) -> None:
    steady, silent = await pool.member(), await pool.member()
    await pool.liveness.tick()
    for _ in range(140):
        await pool.clock.turn(timedelta(seconds=0.5))
        await pool.liveness.tick()
        await pool.beat(steady)
    pool.ledger.stalled = True
    assert (await pool.dependencies.nodes.get(silent.address)).state is NodeState.DEAD
    assert (await pool.beat(steady)).state is NodeState.HEALTHY
    assert (await pool.beat(silent)).state is NodeState.HEALTHY


async def test_a_member_missing_in_redis_is_restored_from_the_ledger(pool: PoolUnderTest) -> None:
    key = await pool.member()
    await pool.dependencies.redis.flushall()
    assert (await pool.beat(key)).state is NodeState.HEALTHY


async def test_a_member_missing_in_redis_is_asked_to_retry_while_the_chain_is_down(pool: PoolUnderTest) -> None:
    key = Key.generate()
    pool.ledger.register(key.address, member=True)
    pool.ledger.down = True
    answer = await pool.send(key, "/v1/heartbeat", BODY)
    assert answer.status_code == 503
    assert answer.json()["retryable"] is True


async def test_strangers_cause_no_chain_read_while_events_are_followed(pool: PoolUnderTest) -> None:
    await pool.sync.round()
    await pool.dependencies.pool.get()
    before = pool.ledger.calls
    for _ in range(20):
        stranger = Key.generate()
        assert (await pool.beat(stranger)).state is NodeState.DISCOVERED
        for body in ({"sha256": "0x" + "11" * 32, "size": 1, "kind": kind} for kind in ("file", "audit")):
            assert (await pool.send(stranger, "/v1/uploads", body)).status_code == 403
        for path in (f"/v1/objects?key={POOL}/{OWNER.address}/{'11' * 32}", "/v1/run", "/v1/nodes"):
            answer = await pool.send_unsigned_answer(stranger, path)
            assert answer.status_code in {403, 404}, answer.text
    assert pool.ledger.calls == before


async def test_once_events_are_no_longer_followed_strangers_are_looked_up(pool: PoolUnderTest) -> None:
    await pool.sync.round()
    key = Key.generate()
    pool.ledger.register(key.address, member=True)
    assert (await pool.beat(key)).state is NodeState.DISCOVERED  # its event was not read yet
    await pool.clock.turn(FOLLOWED_WITHIN)
    assert (await pool.beat(key)).state is NodeState.HEALTHY


async def test_an_invited_node_is_looked_up_without_waiting_for_its_event(pool: PoolUnderTest) -> None:
    await pool.sync.round()
    key = Key.generate()
    pool.ledger.register(key.address)
    for event in (NodeEvent.SEEN, NodeEvent.INVITE_POSTED):
        await pool.dependencies.transitions.apply(key.address, event, cause="test", actor="test")
    assert (await pool.beat(key)).state is NodeState.INVITED
    pool.ledger.register(key.address, member=True)
    await pool.clock.turn(timedelta(seconds=2))
    assert (await pool.beat(key)).state is NodeState.HEALTHY


async def test_events_count_as_followed_only_after_they_were_read_completely(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = pool.ledger.changes

    async def a_part() -> Changes:
        monkeypatch.setattr(pool.ledger, "changes", read)
        pool.ledger.down = True
        return Changes((), _nothing_to_commit, more=True)

    monkeypatch.setattr(pool.ledger, "changes", a_part)
    with pytest.raises(Unavailable):
        await pool.sync.round()
    assert await pool.dependencies.nodes.events_read_ms() == 0
    pool.ledger.down = False
    await pool.sync.round()
    assert await pool.dependencies.nodes.events_read_ms() > 0


async def test_an_invited_node_that_cannot_be_looked_up_stays_invited_while_events_are_followed(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = Key.generate()
    pool.ledger.register(key.address)
    for event in (NodeEvent.SEEN, NodeEvent.INVITE_POSTED):
        await pool.dependencies.transitions.apply(key.address, event, cause="test", actor="test")
    pool.dependencies.status_cache.forget(key.address)
    monkeypatch.setattr(pool.dependencies.status_cache._lookups, "_limits", LookupLimits(waiting=0))
    assert (await pool.send(key, "/v1/heartbeat", BODY)).status_code == 429
    await pool.sync.round()
    assert (await pool.beat(key)).state is NodeState.INVITED


async def test_the_number_of_strangers_waiting_for_the_chain_is_limited(pool: PoolUnderTest) -> None:
    member, limits = await pool.member(), LookupLimits()
    await pool.dependencies.pool.get()
    pool.ledger.stalled = True
    before = pool.ledger.calls
    asking = [
        asyncio.create_task(pool.dependencies.status_cache.of(Key.generate().address)) for _ in range(limits.waiting)
    ]
    for _ in range(20):
        await asyncio.sleep(0)
    assert pool.ledger.calls - before == limits.at_once
    answer = await pool.send(Key.generate(), "/v1/heartbeat", BODY)
    assert (answer.status_code, answer.json()["code"]) == (429, "rate-limited")
    assert (await pool.beat(member)).state is NodeState.HEALTHY
    for each in asking:
        each.cancel()
    await asyncio.gather(*asking, return_exceptions=True)


async def test_a_banned_node_is_told_of_its_ban(pool: PoolUnderTest) -> None:
    key = await pool.member()
    pool.ledger.happen(key.address, MemberEvent.BANNED, member=False, banned=True)
    await pool.sync.round()
    answer = await pool.beat(key)
    assert answer.state is NodeState.BANNED
    assert answer.reason.startswith("banned: ")
    assert answer.assignment is None


async def test_a_contributor_drains_its_node_and_resumes(pool: PoolUnderTest) -> None:
    key = await pool.member()
    assert (await pool.beat(key, draining=True)).state is NodeState.DRAINING
    assert (await pool.beat(key, draining=True)).state is NodeState.DRAINING
    assert (await pool.beat(key)).state is NodeState.HEALTHY


async def test_the_interval_grows_with_the_pool(pool: PoolUnderTest) -> None:
    key = await pool.member()
    await pool.dependencies.redis.zadd(
        pool.dependencies.database.key("deadlines"), {f"0x{number:040x}": 2**50 for number in range(10_000)}
    )
    assert 20 <= (await pool.beat(key)).next_interval_seconds <= 22.1


async def test_heartbeat_metrics_are_recorded(pool: PoolUnderTest) -> None:
    key = await pool.member()
    await pool.beat(key, metrics={"cpu": 0.5, "task.loss": 1.25})
    found = await pool.owner("GET", f"/v1/nodes/{key.address}/metrics")
    assert found["metrics"] == {"cpu": 0.5, "task.loss": 1.25}


def stamped(pool: PoolUnderTest, key: Key, body: bytes, **change: Any) -> dict[str, str]:
    values: dict[str, Any] = {
        "audience": pool.dependencies.key.address,
        "method": "POST",
        "target": "/v1/heartbeat",
        "body": body,
        "at": pool.clock.now(),
        **change,
    }
    return sign_request(key, **values).headers()


async def post(pool: PoolUnderTest, headers: dict[str, str], body: bytes) -> httpx.Response:
    async with pool.http() as http:
        return await http.post("/v1/heartbeat", content=body, headers=headers)


@pytest.mark.parametrize(
    ("body", "change", "status", "code"),
    [
        (BODY, {"audience": Key.generate().address}, 401, "wrong-audience"),
        (BODY, {"at": timedelta(seconds=-61)}, 401, "clock"),
        (BODY, {"at": timedelta(seconds=61)}, 401, "clock"),
        (BODY, {"method": "PUT"}, 401, "bad-signature"),
        (BODY, {"target": "/v1/logs"}, 401, "bad-signature"),
        (BODY, {"body": b"other"}, 401, "bad-signature"),
        ({**BODY, "pool_id": 8}, {}, 403, "wrong-pool"),
        ({**BODY, "address": "0x" + "1" * 40}, {}, 422, "unprocessable"),
        ({**BODY, "metrics": {"x": "many"}}, {}, 422, "unprocessable"),
        ({**BODY, "metrics": {f"m{number}": 1 for number in range(65)}}, {}, 422, "unprocessable"),
        ({**BODY, "assignment": {"id": "x"}}, {}, 422, "unprocessable"),
        ({**BODY, "acknowledged": ["f" * 32] * 17}, {}, 422, "unprocessable"),
        ([], {}, 422, "unprocessable"),
        ("{", {}, 422, "unprocessable"),
        ("\x00", {}, 422, "unprocessable"),
        ({**BODY, "worker_version": "x" * 70_000}, {}, 413, "too-large"),
    ],
)
async def test_an_invalid_heartbeat_is_refused_with_a_problem_and_changes_nothing(
    pool: PoolUnderTest, body: Any, change: dict[str, Any], status: int, code: str
) -> None:
    key = await pool.member()
    before = await pool.dependencies.nodes.get(key.address)
    await pool.clock.turn(timedelta(seconds=5))
    content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    if "at" in change:
        change = {**change, "at": pool.clock.now() + change["at"]}
    answer = await post(pool, stamped(pool, key, change.pop("body", content), **change), content)
    assert answer.status_code == status, answer.text
    problem = answer.json()
    assert problem["code"] == code
    assert problem["detail"]
    assert "hint" in problem
    assert await pool.dependencies.nodes.get(key.address) == before


async def test_unsigned_heartbeats_and_those_for_another_service_are_refused(pool: PoolUnderTest) -> None:
    key, other = await pool.member(), await pool.member()
    content = json.dumps(BODY).encode()
    assert (await post(pool, {}, content)).json()["code"] == "unsigned"
    headers = stamped(pool, key, content)
    assert (await post(pool, {**headers, "X-Muster-Address": other.address}, content)).json()["code"] == "bad-signature"
    lower = {**headers, "X-Muster-Address": key.address.lower()}
    assert (await post(pool, lower, content)).json()["code"] == "malformed-header"


async def test_a_replayed_heartbeat_is_refused_by_every_orchestrator(make_pool: Any) -> None:
    first, second = make_pool(), make_pool()
    key = await first.member()
    content = json.dumps(BODY).encode()
    headers = stamped(first, key, content)
    assert (await post(first, headers, content)).status_code == 200
    for pool in (first, second):
        answer = await post(pool, headers, content)
        assert (answer.status_code, answer.json()["code"]) == (409, "replayed")


async def test_a_node_that_exceeds_its_rate_gets_retry_after(make_pool: Any) -> None:
    pool = make_pool(node_burst=3, node_rate_per_s=1)
    key = await pool.member()
    answers = [await pool.send(key, "/v1/heartbeat", BODY) for _ in range(4)]
    assert answers[-1].status_code == 429
    assert int(answers[-1].headers["Retry-After"]) >= 1


async def test_a_redis_outage_is_a_retryable_problem_and_ends_without_a_restart(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await pool.member()
    signer = RequestSigner(key, audience=pool.dependencies.key.address, clock=pool.clock)
    connections: Any = pool.dependencies.redis.connection_pool
    await pool.dependencies.redis.aclose()
    with monkeypatch.context() as broken:
        broken.setitem(connections.connection_kwargs, "path", "/nowhere")
        connections.reset()
        async with pool.http(signer) as http:
            answer = await http.post("/v1/heartbeat", content=json.dumps(BODY).encode())
            assert (answer.status_code, answer.json()["code"]) == (503, "store-unavailable")
            assert answer.json()["retryable"] is True
    connections.reset()
    assert (await pool.beat(key)).state is NodeState.HEALTHY
