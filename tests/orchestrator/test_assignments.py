"""Assignments as a resource: listed, filtered, and kept for a bounded time after their end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx
import pytest

from orchestrator.domain.keys import SCHEMA, pool_keys
from orchestrator.store.assignments import KEPT
from orchestrator.store.migrations import MIGRATIONS, index_assignments
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.redis.schema import ensure_schema
from tests.kit.memory_ledger import POOL, PoolUnderTest


async def listed(pool: PoolUnderTest, query: str = "", *, path: str = "/v1/assignments") -> list[dict[str, Any]]:
    """Reads a listing page by page."""
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = await pool.owner("GET", f"{path}?{query}{cursor}")
        found += page["assignments"]
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={page['next_cursor']}"


async def refusal(pool: PoolUnderTest, path: str) -> httpx.Response:
    async with pool.http() as http:
        return await http.get(path, headers={"Authorization": f"Bearer {pool.token}"})


async def complete(pool: PoolUnderTest, key: Key, exit_code: int = 0) -> str:
    """Lets a node complete or fail its assignment; returns the assignment's id."""
    assignment = (await pool.beat(key)).assignment
    assert assignment is not None
    state = "failed" if exit_code else "completed"
    report = {"id": assignment.id, "generation": assignment.generation, "state": state, "exit_code": exit_code}
    await pool.beat(key, assignment=report)
    await pool.scheduler.tick()
    return assignment.id


async def test_assignments_are_listed_by_task_node_and_state_until_they_are_deleted(pool: PoolUnderTest) -> None:
    keys = [await pool.member() for _ in range(3)]
    every = await pool.run(name="every")
    assert len({one["assigned_at_ms"] for one in await listed(pool)}) == 1, "pages must not lose equal times"
    ended = [await complete(pool, key, exit_code=index) for index, key in enumerate(keys)]
    await pool.clock.turn(timedelta(minutes=1))
    other = await pool.run(name="other", replicas=1)

    found = await listed(pool, "limit=1")
    assert found == await listed(pool) == list(reversed(await listed(pool, "sort=newest&limit=2")))
    assert [one["task_id"] for one in found] == [every] * 3 + [other]
    assert {one["id"] for one in await listed(pool, f"task={every}&limit=2")} == set(ended)
    assert await listed(pool, path=f"/v1/tasks/{other}/assignments") == found[-1:]
    assert [one["id"] for one in await listed(pool, f"node={keys[1].address}&state=failed")] == [ended[1]]
    both = await listed(pool, "state=completed&state=pending&limit=1")
    assert [one["id"] for one in both] == [ended[0], found[-1]["id"]]
    holder = Address(found[-1]["node"])
    assert await listed(pool, f"node={holder}&task={other}") == found[-1:]
    assert (await pool.owner("GET", f"/v1/assignments/{ended[0]}"))["exit_code"] == 0
    assert found[-1]["kept_until_ms"] is None
    first = next(one for one in found if one["id"] == ended[0])
    assert first["kept_until_ms"] - first["ended_at_ms"] == KEPT.total_seconds() * 1000

    await pool.owner("DELETE", f"/v1/tasks/{every}")
    assert len(await listed(pool, f"task={every}")) == 3, "they outlive their task"
    assert (await refusal(pool, f"/v1/tasks/{every}/assignments")).json()["code"] == "unknown-task"

    await pool.clock.turn(KEPT + timedelta(minutes=1))
    await pool.owner("PATCH", f"/v1/tasks/{other}", {"desired_state": "stopped"})
    await pool.scheduler.tick()
    assert [one["id"] for one in await listed(pool)] == [found[-1]["id"]]
    redis = pool.dependencies.redis
    assert not [name async for name in redis.scan_iter(f"*{every}*")], "nothing refers to the task"


async def test_the_number_of_ended_assignments_is_bounded(pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.store.assignments.MOST_ENDED", 2)
    key = await pool.member()
    ended = []
    for number in range(4):
        await pool.run(name=f"t{number}", replicas=1)
        ended.append(await complete(pool, key))
        await pool.clock.turn(timedelta(seconds=1))
        batch = {"assignment_id": ended[-1], "lines": [{"sequence": 0, "time_ms": 1, "stream": "stdout", "text": "x"}]}
        assert (await pool.send(key, "/v1/logs", batch)).status_code == 200
    assert [one["id"] for one in await listed(pool)] == ended[2:]
    assert await pool.dependencies.redis.keys("*logs:*") != []
    assert len(await pool.dependencies.redis.keys("*logs:*")) == 2
    answer = await refusal(pool, f"/v1/assignments/{ended[0]}")
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown-assignment")
    assert "7 days" in answer.json()["hint"]


async def test_the_log_of_an_ended_assignment_is_found_by_its_id(pool: PoolUnderTest) -> None:
    key = await pool.member()
    await pool.run(name="first", replicas=1)
    ended = await complete(pool, key)
    await pool.run(name="second", replicas=1)
    line = {"sequence": 4, "time_ms": 1, "stream": "stdout", "text": "the last words"}
    assert (await pool.send(key, "/v1/logs", {"assignment_id": ended, "lines": [line]})).status_code == 200
    logs = await pool.owner("GET", f"/v1/assignments/{ended}/logs?tail=1")
    assert (logs["assignment_id"], [one["text"] for one in logs["lines"]]) == (ended, ["the last words"])
    assert logs["lines"] == (await pool.owner("GET", f"/v1/nodes/{key.address}/logs?assignment={ended}"))["lines"]
    assert (await refusal(pool, f"/v1/assignments/{'0' * 32}/logs")).json()["code"] == "unknown-assignment"


async def test_the_assignments_of_an_older_release_are_listed_after_a_migration(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.store.migrations._NODES_AT_ONCE", 1)
    members = [await pool.member() for _ in range(2)]
    task = await pool.run(replicas=2)
    before = await listed(pool)
    await pool.member()  # holds no assignment
    redis, keys = pool.dependencies.redis, pool_keys(POOL)
    indexes = [name async for name in redis.scan_iter(keys.of("assignments") + "*")]
    assert len(before) == 2
    assert len(indexes) == 1 + 1 + 2
    await redis.delete(*indexes)  # a release with schema version 1 wrote none
    await redis.set(keys.of("schema-version"), 1)
    assert await listed(pool) == []
    await ensure_schema(redis, keys, service="a test", version=SCHEMA, migrations=MIGRATIONS)
    await index_assignments(redis, keys)  # as after a crash
    assert await listed(pool) == before == await listed(pool, f"task={task}")
    for one in before:
        assert await listed(pool, f"node={one['node']}") == [one]
    key = next(key for key in members if key.address == before[0]["node"])
    assert await complete(pool, key) in {one["id"] for one in await listed(pool, "state=completed")}


async def test_events_name_the_assignment(pool: PoolUnderTest) -> None:
    key = await pool.member()
    await pool.run(replicas=1)
    assignment = (await pool.beat(key)).assignment
    assert assignment is not None
    await pool.owner("POST", f"/v1/nodes/{key.address}/restart")
    await complete(pool, key)
    events = (await pool.owner("GET", "/v1/events"))["events"]
    named = {event["kind"]: event["assignment_id"] for event in events}
    about = {"assignment.placed", "assignment.renewed", "assignment.completed", "assignment.ended"}
    assert {kind for kind, name in named.items() if name == assignment.id} == about
    assert {name for kind, name in named.items() if kind not in about} == {None}


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("state=paused", "'pending', 'pulling', 'running', 'restarting', 'completed', 'failed' or 'stopped'"),
        ("sort=name", "'oldest' or 'newest'"),
        ("task=x", "query.task"),
        ("node=0x12", "query.node"),
        ("cursor=1-2", "query.cursor"),
        ("limit=501", "less than or equal to 500"),
        ("status=running", "unknown query parameter"),
    ],
)
async def test_a_wrong_filter_is_refused_with_the_allowed_values(pool: PoolUnderTest, query: str, named: str) -> None:
    answer = await refusal(pool, f"/v1/assignments?{query}")
    assert answer.status_code == 422
    assert named in answer.json()["detail"]
