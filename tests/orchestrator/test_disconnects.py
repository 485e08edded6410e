"""Redis disconnects at every single command of a change, before it or before its answer: no change stays half-done.

The manager signs, so that admission (rate and nonce) is the first of those commands. A caller without an answer asks
again with a fresh nonce, and the state is then as without the disconnect.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from protocol.clients.orchestrator import OrchestratorClient
from protocol.http.client import RequestSigner
from protocol.http.rates import Rate
from protocol.http.replay_guard import ReplayGuard
from protocol.identity.keys import Key
from protocol.redis.connection import RedisKeys, connect_redis
from protocol.runtime.clock import ManualClock
from protocol.wire.heartbeat import NodeState
from protocol.wire.tasks import IDEMPOTENCY_HEADER, NewTask, TaskSpec
from tests.kit.memory_ledger import MANAGER, MemoryLedger, PoolUnderTest
from tests.kit.orchestrator import under_test
from tests.kit.redis_proxy import Cut, CutLine, cut_line

SPEC = {"name": "hello", "image": "python:3.11"}
MOST_COMMANDS = 40


@pytest.fixture
async def line(redis_url: str, tmp_path: Path) -> AsyncIterator[CutLine]:
    async with cut_line(redis_url, tmp_path) as made:
        yield made


@pytest.fixture
async def pool(line: CutLine, clock: ManualClock, tmp_path: Path) -> AsyncIterator[PoolUnderTest]:
    """Returns an orchestrator behind the proxy, with a Redis client that does not retry."""
    key = Key.generate()
    made = under_test(line.url, clock, MemoryLedger(orchestrator=key.address), key, tmp_path / "secrets.key")
    yield made
    await made.dependencies.redis.aclose()


Ask = Callable[[], Awaitable[httpx.Response]]


async def asked(
    pool: PoolUnderTest, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> httpx.Response:
    """Sends a newly signed request of the pool's manager."""
    signer = RequestSigner(MANAGER, audience=pool.dependencies.key.address, clock=pool.clock)
    content = b"" if body is None else json.dumps(body).encode()
    async with pool.http(signer) as http:
        return await http.request(method, path, content=content, headers=headers)


async def cut_somewhere(line: CutLine, ask: Ask, *, at: int, cut: Cut) -> tuple[bool, int]:
    """Sends a request while the connection is cut at one command, and again until it is answered.

    Returns:
        Whether the request had that many commands, and the status of the last answer.
    """
    line.break_at(at, cut)
    first = await ask()
    reached = line.at < 0
    line.at = -1
    if first.status_code < 300:
        return reached, first.status_code
    assert reached
    assert (first.status_code, first.json()["code"]) == (503, "store-unavailable")
    assert first.json()["retryable"] is True
    return reached, (await ask()).status_code


async def events(pool: PoolUnderTest) -> list[str]:
    return [event["kind"] for event in (await pool.owner("GET", "/v1/events?limit=500"))["events"]]


async def begin_anew(pool: PoolUnderTest, redis: Redis) -> None:
    await redis.flushall()
    # scripts and connections exist already, so only commands of the change are cut
    await pool.owner("GET", "/v1/tasks")


@pytest.mark.parametrize("cut", Cut)
async def test_a_posted_task_is_complete_and_stored_once_after_any_disconnect(
    pool: PoolUnderTest, line: CutLine, redis: Redis, cut: Cut
) -> None:
    reached, at = True, -1
    while reached:
        at += 1
        assert at < MOST_COMMANDS
        await begin_anew(pool, redis)
        headers = {IDEMPOTENCY_HEADER: f"{at:032x}"}
        body = {"spec": SPEC, "secrets": {"TOKEN": "hush"}}
        reached, status = await cut_somewhere(
            line, partial(asked, pool, "POST", "/v1/tasks", body, headers), at=at, cut=cut
        )
        assert status == 201
        (task,) = (await pool.owner("GET", "/v1/tasks"))["tasks"]
        assert (task["state"], task["generation"], task["secret_names"]) == ("pending", 1, ["TOKEN"])
        assert await events(pool) == ["task.created"]
        assert len(await pool.dependencies.tasks.open_ids()) == 1
    assert at > 3  # admission, count, write and read


@pytest.mark.parametrize("cut", Cut)
async def test_a_changed_task_has_one_new_generation_after_any_disconnect(
    pool: PoolUnderTest, line: CutLine, redis: Redis, cut: Cut
) -> None:
    reached, at = True, -1
    while reached:
        at += 1
        assert at < MOST_COMMANDS
        await begin_anew(pool, redis)
        task = (await pool.owner("POST", "/v1/tasks", {"spec": SPEC}))["id"]
        patch = {"spec": {**SPEC, "image": "python:3.12"}}
        reached, status = await cut_somewhere(
            line, partial(asked, pool, "PATCH", f"/v1/tasks/{task}", patch), at=at, cut=cut
        )
        assert status == 200
        seen = await pool.owner("GET", f"/v1/tasks/{task}")
        assert (seen["spec"]["image"], seen["generation"], seen["state"]) == ("python:3.12", 2, "pending")
    assert at > 3


@pytest.mark.parametrize("cut", Cut)
async def test_a_deleted_task_is_removed_completely_after_any_disconnect(
    pool: PoolUnderTest, line: CutLine, redis: Redis, cut: Cut
) -> None:
    reached, at = True, -1
    while reached:
        at += 1
        assert at < MOST_COMMANDS
        await begin_anew(pool, redis)
        task = (await pool.owner("POST", "/v1/tasks", {"spec": SPEC}))["id"]
        reached, status = await cut_somewhere(line, partial(asked, pool, "DELETE", f"/v1/tasks/{task}"), at=at, cut=cut)
        # deleted by the first request, whose answer was lost
        assert status == 204 or (cut is Cut.AFTER and status == 404)
        assert (await pool.owner("GET", "/v1/tasks"))["tasks"] == []
        assert await pool.dependencies.tasks.open_ids() == []
        assert not [key for key in await redis.keys() if task.encode() in key]
        assert await events(pool) == ["task.created", "task.deleted"]
    assert at > 1


@pytest.mark.parametrize("cut", Cut)
async def test_a_banned_node_is_banned_here_and_on_the_ledger_after_any_disconnect(
    pool: PoolUnderTest, line: CutLine, redis: Redis, cut: Cut
) -> None:
    reached, at = True, -1
    while reached:
        at += 1
        assert at < MOST_COMMANDS
        await begin_anew(pool, redis)
        node = (await pool.member()).address
        reached, status = await cut_somewhere(
            line, partial(asked, pool, "POST", f"/v1/nodes/{node}/ban", {"reason": "forged"}), at=at, cut=cut
        )
        assert status == 200
        assert pool.ledger.nodes[node].banned
        row = await pool.dependencies.nodes.get(node)
        assert (row.state, row.reason, row.member) == (NodeState.BANNED, "forged", False)
        history = (await pool.owner("GET", f"/v1/nodes/{node}/history"))["entries"]
        assert [entry["event"] for entry in history].count("banned") == 1
        assert await redis.zscore(pool.dependencies.database.key("deadlines"), node) is None
    assert at > 3


async def test_an_idempotency_key_used_for_another_task_is_refused(pool: PoolUnderTest) -> None:
    headers = {IDEMPOTENCY_HEADER: "a" * 32}
    first = await asked(pool, "POST", "/v1/tasks", {"spec": SPEC}, headers)
    again = await asked(pool, "POST", "/v1/tasks", {"spec": SPEC}, headers)
    assert again.json()["id"] == first.json()["id"]
    other = await asked(pool, "POST", "/v1/tasks", {"spec": {**SPEC, "name": "other"}}, headers)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency-key-reused")
    mine = await pool.owner("POST", "/v1/tasks", {"spec": SPEC})  # without a key each request creates a task
    assert mine["id"] != first.json()["id"]


async def test_the_client_posts_a_task_once_although_redis_disconnected(pool: PoolUnderTest, line: CutLine) -> None:
    await pool.owner("GET", "/v1/tasks")
    transport = httpx.ASGITransport(app=pool.app, raise_app_exceptions=False)
    async with OrchestratorClient("http://127.0.0.1:1", token=pool.token, transport=transport) as owner:
        line.break_at(1, Cut.AFTER)  # the count and then the write
        task = await owner.create_task(NewTask(spec=TaskSpec.model_validate(SPEC)))
        assert line.at < 0
        assert [each.id async for each in owner.tasks()] == [task.id]


async def test_retrying_an_admission_after_a_lost_answer_is_no_replay(line: CutLine, clock: ManualClock) -> None:
    redis = connect_redis(line.url, retries=1)
    rate = Rate(count=1000, per=timedelta(seconds=1), burst=1000)
    admission = ReplayGuard(redis, keys=RedisKeys("7"), rate=rate, clock=clock)
    await admission.admit(MANAGER.address, "a" * 32)
    line.break_at(0, Cut.AFTER)
    await admission.admit(MANAGER.address, "b" * 32)
    assert line.at < 0
    await redis.aclose()
