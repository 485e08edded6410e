"""Filters, order and pages of the listings of tasks and events, and the continuation of streams."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.api.paging import read_page
from orchestrator.domain.event_kinds import EVENT_KINDS, unknown_patterns
from orchestrator.store import events
from protocol.identity.signing import unix_ms
from protocol.wire.events import PoolEvent
from tests.kit.memory_ledger import PoolUnderTest


async def get(pool: PoolUnderTest, path: str, **headers: str) -> httpx.Response:
    async with pool.http() as http:
        return await http.get(path, headers={"Authorization": f"Bearer {pool.token}", **headers})


async def task_names(pool: PoolUnderTest, query: str, *, limit: int = 500) -> list[str]:
    """Reads the listing of tasks page by page."""
    found: list[str] = []
    cursor = ""
    while True:
        page = await pool.owner("GET", f"/v1/tasks?limit={limit}&{query}{cursor}")
        found += [task["spec"]["name"] for task in page["tasks"]]
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={page['next_cursor']}"


async def test_tasks_are_filtered_and_sorted(pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, times = [], []
    for number in range(6):
        if number % 3 == 0:  # three tasks of the same millisecond at a time
            await pool.clock.turn(timedelta(seconds=1))
        zone = {"labels": {"zone": "eu" if number < 4 else "us"}}
        ids.append(await pool.run(name=f"t{number}", selector=zone))
        times.append(unix_ms(pool.clock.now()))
    await pool.owner("PATCH", f"/v1/tasks/{ids[1]}", {"desired_state": "stopped"})
    every = await task_names(pool, "")
    assert sorted(every[:3]) == ["t0", "t1", "t2"]
    assert sorted(every[3:]) == ["t3", "t4", "t5"]
    monkeypatch.setattr("orchestrator.api.tasks.TASKS_AT_ONCE", 2)
    for limit in (1, 2, 4):
        assert await task_names(pool, "", limit=limit) == every
        assert await task_names(pool, "sort=newest", limit=limit) == every[::-1]
        assert await task_names(pool, "label=zone%3Deu", limit=limit) == [name for name in every if name < "t4"]
        assert await task_names(pool, "state=stopped", limit=limit) == ["t1"]
        assert await task_names(pool, "state=stopped&state=pending", limit=limit) == every
        assert await task_names(pool, "name=t5&state=pending", limit=limit) == ["t5"]
        assert await task_names(pool, f"created_after_ms={times[0]}", limit=limit) == every[3:]
        before = f"created_before_ms={times[5]}&sort=newest"
        assert await task_names(pool, before, limit=limit) == every[:3][::-1]
    monkeypatch.setattr("orchestrator.api.paging.READS_PER_REQUEST", 1)
    first = await pool.owner("GET", "/v1/tasks?name=t9")
    assert (first["tasks"], first["next_cursor"] is None) == ([], False), "a read is bounded, and says so"
    assert await task_names(pool, "name=t9") == []
    old_cursor = await pool.owner("GET", f"/v1/tasks?cursor={times[0]}")
    assert len(old_cursor["tasks"]) == 3


async def event_ids(pool: PoolUnderTest, query: str, *, limit: int = 500) -> list[str]:
    """Reads the listing of events with `sort=newest` page by page."""
    found: list[str] = []
    cursor, before = "", None
    while before != cursor:
        before = cursor
        page = await pool.owner("GET", f"/v1/events?sort=newest&limit={limit}&{query}{cursor}")
        found += [event["id"] for event in page["events"]]
        cursor = f"&before={page['next_cursor']}"
    return found


async def test_events_are_filtered_and_sorted(pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    key, other = await pool.member(), await pool.member()
    start = unix_ms(pool.clock.now())
    await pool.clock.turn(timedelta(seconds=1))
    task = await pool.run(replicas=1)
    events = (await pool.owner("GET", "/v1/events"))["events"]
    placed = next(event for event in events if event["kind"] == "assignment.placed")
    cases: list[tuple[str, Any]] = [
        ("kind=node.", lambda one: one["kind"].startswith("node.")),
        ("kind=node.joined&kind=task.created", lambda one: one["kind"] in {"node.joined", "task.created"}),
        (f"node={other.address}", lambda one: one["node"] == other.address),
        (f"task={task}&kind=task.", lambda one: one["task_id"] == task and one["kind"].startswith("task.")),
        (f"assignment={placed['assignment_id']}", lambda one: one is placed),
        (f"created_after_ms={start}", lambda one: one["time_ms"] > start),
        (f"created_before_ms={start + 1}", lambda one: one["time_ms"] <= start),
        (f"node={key.address}&kind=run.", lambda _: False),
    ]
    monkeypatch.setattr("orchestrator.api.paging.READ_AT_ONCE", 2)
    for query, chosen in cases:
        expected = [event for event in events if chosen(event)]
        found = await pool.owner("GET", f"/v1/events?{query}")
        assert found["events"] == expected, query
        assert found["next_cursor"] == events[-1]["id"], "the next request waits for new events"
        one = await pool.owner("GET", f"/v1/events?{query}&after=0-0&limit=1")
        assert one["events"] == expected[:1]
        assert await event_ids(pool, query, limit=1) == [event["id"] for event in reversed(expected)]
    within = await pool.owner("GET", f"/v1/events?after={events[0]['id']}&before={events[3]['id']}")
    assert within["events"] == events[1:3]
    assert (await pool.owner("GET", f"/v1/events?before={events[2]['id']}&limit=1"))["events"] == events[1:2]


async def test_a_filtered_listing_parses_only_its_events_and_lets_other_requests_run(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pool.member()
    await pool.run(replicas=1)
    parsed: list[str] = []

    def parse(name: str, fields: dict[str, str]) -> PoolEvent:
        parsed.append(name)
        return event_of(name, fields)

    event_of = events._event
    monkeypatch.setattr(events, "_event", parse)
    found = (await pool.owner("GET", "/v1/events?kind=task.created"))["events"]
    assert parsed == [event["id"] for event in found]
    assert len(found) == 1
    turns = pool.dependencies.filtered_reads
    async with turns, turns:  # two filtered listings are running
        filtered = [
            asyncio.create_task(pool.owner("GET", path))
            for path in ("/v1/events?kind=node.", "/v1/tasks?state=running", "/v1/assignments?state=running")
        ]
        assert (await pool.owner("GET", "/v1/events"))["events"]
        assert (await pool.owner("GET", "/v1/tasks"))["tasks"]
        assert not any(each.done() for each in filtered)
    await asyncio.gather(*filtered)

    progress: list[str] = []

    async def read(after: str | None, size: int) -> list[tuple[str, None]]:
        progress.append("read")
        return [(after or "", None)] * size

    async def other() -> None:
        progress.append("other")

    running = asyncio.create_task(other())
    await read_page(read, after=None, limit=1, turns=turns, at_once=2)
    await running
    assert progress.index("other") == 1


async def test_a_bounded_request_for_events_says_where_the_next_one_continues(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        await pool.member()
    middle = unix_ms(pool.clock.now() + timedelta(minutes=30))
    await pool.clock.turn(timedelta(hours=1))
    await pool.run(replicas=1)
    await pool.clock.turn(timedelta(hours=1))
    await pool.member()
    events = (await pool.owner("GET", "/v1/events?limit=500"))["events"]
    monkeypatch.setattr("orchestrator.api.paging.READ_AT_ONCE", 2)
    monkeypatch.setattr("orchestrator.api.paging.READS_PER_REQUEST", 1)

    placed = [event for event in events if event["kind"] == "assignment.placed"]
    assert (await pool.owner("GET", "/v1/events?kind=assignment.placed"))["events"] == [], "events are left"
    found, cursor, before = [], "", None
    while cursor != before:
        page = await pool.owner("GET", f"/v1/events?kind=assignment.placed{cursor}")
        found += page["events"]
        before, cursor = cursor, f"&after={page['next_cursor']}"
    assert found == placed

    early = [event for event in events if event["time_ms"] < middle]
    assert (await pool.owner("GET", f"/v1/events?created_before_ms={middle}"))["events"] == early[:2]
    last = await pool.owner("GET", f"/v1/events?created_before_ms={middle}&sort=newest")
    assert last["events"] == early[:-3:-1], "later events are not read"
    later = (await pool.owner("GET", f"/v1/events?created_after_ms={middle}"))["events"]
    assert later, "earlier ones are not read"
    assert later == [event for event in events if event["time_ms"] > middle][: len(later)]
    for bound in ("created_after_ms", "created_before_ms"):
        assert (await pool.owner("GET", f"/v1/events?{bound}={middle}&after=99999999999999-0"))["events"] == []


def test_every_written_kind_of_event_is_known_and_on_the_page_of_the_protocol() -> None:
    root = files("orchestrator")
    scripts = [each.read_text() for each in (root / "store" / "scripts").iterdir() if each.name.endswith(".lua")]
    kinds = {kind for text in scripts for kind in re.findall(r"emit\(\w+, '([a-z.-]+)'", text)}
    for module in Path(str(root)).rglob("*.py"):
        kinds |= set(
            re.findall(
                r'"((?:node|task|assignment|command|run|verdict|dispute|slash|payout)\.[a-z-]+)"', module.read_text()
            )
        )
    assert len(kinds) >= 10
    assert {kind for kind in kinds if unknown_patterns([kind])} == set()
    page = (Path(str(root)).parent / "docs" / "protocol.md").read_text()
    unnamed = {kind for kind in EVENT_KINDS if f"`{kind}`" not in page}
    assert {kind for kind in unnamed if f"`{kind.split('.')[0]}.` with" not in page} == set()


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/v1/tasks?state=paused", "'pending', 'running', 'completed', 'failed' or 'stopped'"),
        ("/v1/tasks?sort=name", "'oldest' or 'newest'"),
        ("/v1/tasks?label=zone", "write label=name%3Dvalue"),
        ("/v1/tasks?created_after_ms=-1", "query.created_after_ms"),
        ("/v1/events?kind=node.deed", "did you mean node.dead?"),
        ("/v1/events?kind=nodes.", "assignment.placed"),
        ("/v1/events?sort=id", "'oldest' or 'newest'"),
        ("/v1/events?node=me", "query.node"),
        ("/v1/events?after=99999999999999999999-0", "use an id of an earlier answer"),
        ("/v1/events?follow=1&sort=newest", "leave out `before`"),
        ("/v1/events?follow=1&before=5-0", "leave out `before`"),
    ],
)
async def test_a_wrong_filter_is_refused_with_the_allowed_values(pool: PoolUnderTest, path: str, named: str) -> None:
    answer = await get(pool, path)
    assert answer.status_code in {400, 422}
    assert named in answer.json()["detail"] + answer.json()["hint"]


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]


async def read_stream(pool: PoolUnderTest, path: str, *, until: int, **headers: str) -> list[dict[str, Any]]:
    """Reads a stream until it has brought `until` events, then disconnects."""
    text, over, started = "", asyncio.Event(), False
    raw, _, query = path.partition("?")
    fields = {"Authorization": f"Bearer {pool.token}", **headers}
    scope = {
        "type": "http",
        "method": "GET",
        "path": raw,
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in fields.items()],
        "client": ("127.0.0.1", 1),
        "server": ("pool", 80),
        "scheme": "http",
        "http_version": "1.1",
        "asgi": {"version": "3.0"},
    }

    async def receive() -> dict[str, Any]:
        nonlocal started
        if not started:
            started = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal text
        if message["type"] == "http.response.start":
            assert message["status"] == 200
        text += message.get("body", b"").decode()
        if len(events_of(text)) >= until:
            over.set()

    async with asyncio.timeout(10):
        await pool.app(scope, receive, send)
    return events_of(text)


async def test_a_stream_continues_after_the_last_event_id_or_says_that_it_cannot(pool: PoolUnderTest) -> None:
    await pool.member()
    await pool.run(replicas=1)
    events = (await pool.owner("GET", "/v1/events"))["events"]
    read = {"Last-Event-ID": events[1]["id"]}
    redis = pool.dependencies.redis
    name = pool.dependencies.database.key("events")
    await redis.xtrim(name, maxlen=len(events) - 1, approximate=False)
    for lost in (events[0]["id"], "1-0"):
        answer = await get(pool, "/v1/events?follow=1", **{"Last-Event-ID": lost})
        assert (answer.status_code, answer.json()["code"]) == (410, "events-expired")
        assert events[1]["id"] in answer.json()["detail"]
        assert "/v1/nodes" in answer.json()["hint"]
    assert (await get(pool, "/v1/events?follow=1", **{"Last-Event-ID": "last"})).status_code == 422
    later = "/v1/events?follow=1&after=99999999999999-0"  # a browser repeats its URL when it reconnects
    assert await read_stream(pool, later, until=3, **read) == events[2:5]
    tasks = await read_stream(pool, "/v1/events?follow=1&kind=task.", until=2, **read)
    assert [one["kind"] for one in tasks] == ["task.created", "task.running"]


async def test_a_log_is_followed_from_its_tail_or_after_the_last_event_id(pool: PoolUnderTest) -> None:
    key = await pool.member()
    await pool.run(replicas=1)
    assignment = (await pool.beat(key)).assignment
    assert assignment is not None
    lines = [{"sequence": number, "time_ms": 1, "stream": "stdout", "text": f"line {number}"} for number in range(5)]
    batch = {"assignment_id": assignment.id, "lines": lines}
    assert (await pool.send(key, "/v1/logs", batch)).status_code == 200
    of_node, of_assignment = f"/v1/nodes/{key.address}/logs", f"/v1/assignments/{assignment.id}/logs"
    assert (await pool.owner("GET", f"{of_node}?tail=0"))["next_sequence"] == 5
    for path in (f"{of_assignment}?follow=1&tail=2", f"{of_node}?follow=1&tail=2"):
        assert [one["sequence"] for one in await read_stream(pool, path, until=2)] == [3, 4]
    for path in (f"{of_assignment}?follow=1&since=0", f"{of_node}?follow=1&assignment={assignment.id}&tail=1"):
        found = await read_stream(pool, path, until=3, **{"Last-Event-ID": "1"})
        assert [one["sequence"] for one in found] == [2, 3, 4]
