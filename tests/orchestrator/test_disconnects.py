"""Redis disconnects at each command of a change, which is then complete or not made.

The connection is cut before the command or before its answer. The manager signs the requests, so the first command is
that of the replay guard. A caller that gets no answer repeats its request with a new nonce. Then the state must be the
same as without the disconnect.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
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
from protocol.wire.nodes import NodeState
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


async def send_as_manager(
    pool: PoolUnderTest, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> httpx.Response:
    """Sends a newly signed request of the pool's manager."""
    signer = RequestSigner(MANAGER, audience=pool.dependencies.key.address, clock=pool.clock)
    content = b"" if body is None else json.dumps(body).encode()
    async with pool.http(signer) as http:
        return await http.request(method, path, content=content, headers=headers)


@dataclass
class Attempt:
    """A change during which the Redis connection is cut at command `at`."""

    line: CutLine
    at: int
    cut: Cut
    reached: bool = True
    """Whether the request had that many commands."""

    async def send(self, ask: Ask) -> int:
        """Sends a request, and again after the disconnect; returns the status of its last answer."""
        self.line.break_at(self.at, self.cut)
        first = await ask()
        self.reached = self.line.at < 0
        self.line.at = -1
        if first.status_code < 300:
            return first.status_code
        assert self.reached
        assert (first.status_code, first.json()["code"]) == (503, "store-unavailable")
        assert first.json()["retryable"] is True
        return (await ask()).status_code


async def cuts(pool: PoolUnderTest, line: CutLine, redis: Redis, cut: Cut, *, least: int) -> AsyncIterator[Attempt]:
    """Yields an attempt per command of a request, each with an empty store; a request has at least `least`."""
    for at in range(MOST_COMMANDS):
        await redis.flushall()
        # from now on scripts are loaded and connections open, so that only commands of the change are cut
        await pool.owner("GET", "/v1/tasks")
        attempt = Attempt(line, at, cut)
        yield attempt
        if not attempt.reached:
            assert at >= least
            return
    pytest.fail(f"the request has more than {MOST_COMMANDS} commands")


async def events(pool: PoolUnderTest) -> list[str]:
    return [event["kind"] for event in (await pool.owner("GET", "/v1/events?limit=500"))["events"]]


@pytest.mark.parametrize("cut", Cut)
async def test_a_posted_task_is_complete_and_stored_once_after_any_disconnect(
    pool: PoolUnderTest, line: CutLine, redis: Redis, cut: Cut
) -> None:
    async for attempt in cuts(pool, line, redis, cut, least=4):  # admission, count, write and read
        headers = {IDEMPOTENCY_HEADER: f"{attempt.at:032x}"}
        body = {"spec": SPEC, "secrets": {"TOKEN": "hush"}}
        status = await attempt.send(partial(send_as_manager, pool, "POST", "/v1/tasks", body, headers))
        assert status == 201
        (task,) = (await pool.owner("GET", "/v1/tasks"))["tasks"]
        assert (task["state"], task["generation"], task["secret_names"]) == ("pending", 1, ["TOKEN"])
        assert await events(pool) == ["task.created"]
        assert len(await pool.dependencies.tasks.open_ids()) == 1


@pytest.mark.parametrize("cut", Cut)
async def test_a_changed_task_has_one_new_generation_after_any_disconnect(
    pool: PoolUnderTest, line: CutLine, redis: Redis, cut: Cut
) -> None:
    async for attempt in cuts(pool, line, redis, cut, least=4):
        task = (await pool.owner("POST", "/v1/tasks", {"spec": SPEC}))["id"]
        patch = {"spec": {**SPEC, "image": "python:3.12"}}
        status = await attempt.send(partial(send_as_manager, pool, "PATCH", f"/v1/tasks/{task}", patch))
        assert status == 200
        seen = await pool.owner("GET", f"/v1/tasks/{task}")
        assert (seen["spec"]["image"], seen["generation"], seen["state"]) == ("python:3.12", 2, "pending")


@pytest.mark.parametrize("cut", Cut)
async def test_a_deleted_task_is_removed_completely_after_any_disconnect(
    pool: PoolUnderTest, line: CutLine, redis: Redis, cut: Cut
) -> None:
    async for attempt in cuts(pool, line, redis, cut, least=2):
        task = (await pool.owner("POST", "/v1/tasks", {"spec": SPEC}))["id"]
        status = await attempt.send(partial(send_as_manager, pool, "DELETE", f"/v1/tasks/{task}"))
        # deleted by the first request, whose answer was lost
        assert status == 204 or (cut is Cut.AFTER and status == 404)
        assert (await pool.owner("GET", "/v1/tasks"))["tasks"] == []
        assert await pool.dependencies.tasks.open_ids() == []
        assert not [key for key in await redis.keys() if task.encode() in key]
        assert await events(pool) == ["task.created", "task.deleted"]


@pytest.mark.parametrize("cut", Cut)
async def test_a_banned_node_is_banned_here_and_on_the_ledger_after_any_disconnect(
    pool: PoolUnderTest, line: CutLine, redis: Redis, cut: Cut
) -> None:
    async for attempt in cuts(pool, line, redis, cut, least=4):
        node = (await pool.member()).address
        status = await attempt.send(
            partial(send_as_manager, pool, "POST", f"/v1/nodes/{node}/ban", {"reason": "forged"})
        )
        assert status == 200
        assert pool.ledger.nodes[node].banned
        row = await pool.dependencies.nodes.get(node)
        assert (row.state, row.reason, row.member) == (NodeState.BANNED, "forged", False)
        history = (await pool.owner("GET", f"/v1/nodes/{node}/history"))["entries"]
        assert [entry["event"] for entry in history].count("banned") == 1
        assert await redis.zscore(pool.dependencies.database.key("deadlines"), node) is None


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
