"""Blocking reads of tasks and nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest

from protocol.clients.orchestrator import OrchestratorClient
from protocol.wire.nodes import NodeState
from tests.kit.memory_ledger import MANAGER, PoolUnderTest
from tests.kit.orchestrator import MakePool


def reading(pool: PoolUnderTest, path: str) -> asyncio.Task[httpx.Response]:
    async def read() -> httpx.Response:
        async with pool.http() as http:
            return await http.get(path, headers={"Authorization": f"Bearer {pool.token}"})

    return asyncio.create_task(read())


async def until_waiting(pool: PoolUnderTest, count: int = 1) -> None:
    most = pool.dependencies.settings.streams
    for _ in range(1000):
        if pool.dependencies.stream_slots._value <= most - count:
            return
        await asyncio.sleep(0.01)
    pytest.fail("the requests do not wait")


async def ends(pool: PoolUnderTest, read: asyncio.Task[httpx.Response]) -> httpx.Response:
    """Advances the clock until a read has been answered."""
    async with asyncio.timeout(10):
        while not read.done():
            await pool.clock.turn(timedelta(seconds=0.3))
            await asyncio.sleep(0.01)
    return read.result()


async def test_every_change_of_a_task_or_node_ends_a_wait_and_nothing_else(pool: PoolUnderTest) -> None:
    key = await pool.member()
    task = await pool.run(replicas=1)
    assignment = (await pool.beat(key)).assignment
    assert assignment is not None
    report = {"id": assignment.id, "generation": 1, "state": "running"}
    of_task, of_node = f"/v1/tasks/{task}", f"/v1/nodes/{key.address}"
    completed = {**report, "state": "completed"}
    steps: list[tuple[set[str], Callable[[], Awaitable[Any]]]] = [
        ({of_task, of_node}, lambda: pool.beat(key, assignment=report)),
        (set(), lambda: pool.beat(key, assignment=report, metrics={"a": 1.0})),
        ({of_node}, lambda: pool.beat(key, assignment={**report, "detail": "still here"})),
        ({of_task}, lambda: pool.owner("PATCH", of_task, {"priority": 3})),
        ({of_node}, lambda: pool.dependencies.nodes.learn(key.address, {"labels": '{"zone":"eu"}'})),
        (set(), lambda: pool.dependencies.nodes.learn(key.address, {"labels": '{"zone":"eu"}'})),
        ({of_node}, lambda: pool.owner("POST", f"{of_node}/drain")),
        ({of_task, of_node}, lambda: pool.beat(key, assignment=completed)),
        ({of_task, of_node}, pool.scheduler.tick),
    ]
    for number, (changed, change) in enumerate(steps):
        before = {path: await pool.owner("GET", path) for path in (of_task, of_node)}
        await change()
        for path, seen in before.items():
            now = await pool.owner("GET", path)
            assert (now["version"] != seen["version"]) is (path in changed), (number, path)
            if path not in changed:  # the fields that may change without a new version
                for one in (now, seen):
                    one.pop("last_seen_ms", None)
                assert now == seen

    seen = await pool.owner("GET", of_task)
    waiting = reading(pool, f"{of_task}?wait=30&version={seen['version']}")
    await until_waiting(pool)
    await pool.clock.turn(timedelta(seconds=5))
    assert not waiting.done()
    await pool.owner("PATCH", of_task, {"desired_state": "running", "priority": 4})
    answer = await ends(pool, waiting)
    assert (answer.status_code, answer.json()["spec"]["priority"]) == (200, 4)
    transport = httpx.ASGITransport(app=pool.app, raise_app_exceptions=False)
    async with OrchestratorClient("http://127.0.0.1:1", token=pool.token, transport=transport) as owner:
        known = await owner.task(task)
        started = pool.clock.now()
        waits = asyncio.create_task(owner.task(task, version=known.version, wait=timedelta(seconds=2)))
        await until_waiting(pool)
        while not waits.done():
            await pool.clock.turn(timedelta(seconds=0.3))
            await asyncio.sleep(0.01)
        assert await waits == known
        assert pool.clock.now() - started >= timedelta(seconds=2)
        assert (await owner.node(key.address, version=0)).address == key.address
    old = reading(pool, f"{of_task}?wait=30&version={seen['version']}")
    assert (await old).json() == answer.json(), "an old version is answered at once"


async def test_a_wait_ends_in_time_with_a_deleted_task_and_at_a_shutdown(pool: PoolUnderTest) -> None:
    key = await pool.member()
    task = await pool.run(replicas=1)
    of_node = f"/v1/nodes/{key.address}"
    node = await pool.owner("GET", of_node)
    started = pool.clock.now()
    waiting = reading(pool, f"{of_node}?wait=7&version={node['version']}")
    await until_waiting(pool)
    answer = await ends(pool, waiting)
    assert answer.json()["version"] == node["version"]
    assert timedelta(seconds=7) <= pool.clock.now() - started < timedelta(seconds=8)

    version = (await pool.owner("GET", f"/v1/tasks/{task}"))["version"]
    waiting = reading(pool, f"/v1/tasks/{task}?wait=30&version={version}")
    await until_waiting(pool)
    await pool.owner("DELETE", f"/v1/tasks/{task}")
    assert (await ends(pool, waiting)).json()["code"] == "unknown-task"

    node = await pool.owner("GET", of_node)
    waiting = reading(pool, f"{of_node}?wait=30&version={node['version']}")
    await until_waiting(pool)
    pool.app.state.stopping.set()
    assert (await ends(pool, waiting)).json()["state"] == NodeState.HEALTHY


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("wait=5", "both `wait` and `version`"),
        ("version=1", "both `wait` and `version`"),
        ("wait=31&version=1", "less than or equal to 30"),
        ("wait=5s&version=1", "query.wait"),
        ("wait=5&version=-1", "query.version"),
    ],
)
async def test_a_wrong_wait_is_refused(pool: PoolUnderTest, query: str, named: str) -> None:
    task = await pool.run()
    answer = await reading(pool, f"/v1/tasks/{task}?{query}")
    assert answer.status_code == 422
    assert named in answer.json()["detail"]


async def test_one_callers_waits_take_a_quarter_of_the_places(make_pool: MakePool) -> None:
    pool = make_pool(streams=4)
    task = await pool.run()
    version = (await pool.owner("GET", f"/v1/tasks/{task}"))["version"]
    path = f"/v1/tasks/{task}?wait=30&version={version}"
    first = reading(pool, path)
    await until_waiting(pool)
    answer = await reading(pool, path)
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "10")
    assert "this caller has 1 blocking reads open" in answer.json()["detail"]
    other = asyncio.create_task(pool.send_unsigned_answer(MANAGER, path))
    await until_waiting(pool, 2)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    again = reading(pool, path)
    await until_waiting(pool, 2)
    assert (await ends(pool, again)).status_code == (await ends(pool, other)).status_code == 200
    assert not pool.dependencies.waiting


async def test_waits_and_streams_share_a_limit_and_a_wait_gives_its_place_back(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool(streams=2)
    monkeypatch.setattr("orchestrator.api.waiting.CALLERS", 1)
    task = await pool.run()
    version = (await pool.owner("GET", f"/v1/tasks/{task}"))["version"]
    path = f"/v1/tasks/{task}?wait=30&version={version}"
    waiting = [reading(pool, path), reading(pool, path)]
    await until_waiting(pool, 2)
    for refused in (path, "/v1/events?follow=1"):
        answer = await reading(pool, refused)
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "10")
        assert "setting `streams`" in answer.json()["hint"]
    assert (await reading(pool, f"/v1/tasks/{task}?wait=30&version=0")).status_code == 200, "it need not wait"
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    again = reading(pool, path)
    await until_waiting(pool)
    assert (await ends(pool, again)).status_code == 200
