"""Retention of records in Redis: assignments, events, tasks and nodes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from orchestrator.loops.retention import Retention, build_retention
from orchestrator.metrics import RetentionMetrics
from orchestrator.store.events import EventsExpired
from protocol.identity.keys import Key
from protocol.redis.leader_lease import LeaderLease
from tests.kit.memory_ledger import PoolUnderTest
from tests.kit.orchestrator import MakePool
from tests.orchestrator.test_assignments import complete, listed
from tests.orchestrator.test_invites import Listing, inviter

DAY = timedelta(days=1)


def retention(pool: PoolUnderTest) -> tuple[Retention, CollectorRegistry]:
    registry = CollectorRegistry()
    lease = LeaderLease(pool.dependencies.database, "sweep", lifetime=timedelta(seconds=60))
    return build_retention(pool.dependencies, lease=lease, metrics=RetentionMetrics(registry)), registry


def deleted(registry: CollectorRegistry, kind: str) -> float:
    return registry.get_sample_value("muster_orchestrator_retention_deleted_total", {"kind": kind}) or 0


async def test_old_events_are_deleted_in_batches_except_the_newest(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.loops.retention.EVENTS_AT_ONCE", 3)
    loop, registry = retention(pool)
    events = pool.dependencies.events
    for number in range(4):
        await pool.run(name=f"old{number}", replicas=1)
    old = await events.after("0-0", limit=100)
    await pool.clock.turn(90 * DAY - timedelta(seconds=1))
    assert await loop.round() == 0
    await pool.clock.turn(timedelta(seconds=2))
    await pool.run(name="young", replicas=1)
    await loop.round()
    assert [each.id for each in await events.after("0-0", limit=100)][: len(old) - 3] == [each.id for each in old[3:]]
    while await loop.round():
        pass
    left = await events.after("0-0", limit=100)
    assert deleted(registry, "event") == len(old)
    assert {each.detail for each in left} == {"young"}
    with pytest.raises(EventsExpired):
        await events.check_kept(old[0].id)
    await pool.clock.turn(91 * DAY)
    while await loop.round():
        pass
    assert [each.id for each in await events.after("0-0", limit=100)] == [left[-1].id]
    await events.check_kept(left[-1].id)


async def test_ended_tasks_and_assignments_are_deleted_and_open_ones_stay(make_pool: MakePool) -> None:
    pool = make_pool(task_kept_s=20 * 86_400, log_kept_s=2 * 86_400, event_kept_s=0)
    loop, registry = retention(pool)
    key = await pool.member()
    done = await pool.run(name="done", replicas=1)
    ended = await complete(pool, key)
    stopped, again, waits = [
        await pool.run(name=name, replicas=3, priority=5) for name in ("stopped", "again", "waits")
    ]
    await pool.owner("PATCH", f"/v1/tasks/{stopped}", {"desired_state": "stopped"})
    await pool.scheduler.tick()
    line = {"sequence": 0, "time_ms": 1, "stream": "stdout", "text": "x"}
    assert (await pool.send(key, "/v1/logs", {"assignment_id": ended, "lines": [line]})).status_code == 200
    await pool.clock.turn(2 * DAY + timedelta(seconds=1))
    await loop.round()
    assert ended not in [one["id"] for one in await listed(pool)]
    assert deleted(registry, "assignment") >= 1
    redis = pool.dependencies.redis
    assert [name async for name in redis.scan_iter(f"*{ended}*")] == []
    await pool.clock.turn(18 * DAY)
    await loop.round()
    tasks = {one["id"] for one in (await pool.owner("GET", "/v1/tasks"))["tasks"]}
    assert tasks == {stopped, again, waits}, f"without the completed task {done}"
    assert deleted(registry, "task") == 1
    event = (await pool.owner("GET", "/v1/events?kind=task.deleted"))["events"][-1]
    assert (event["task_id"], event["actor"]) == (done, "retention")


async def test_nodes_that_discovery_no_longer_lists_are_deleted(make_pool: MakePool) -> None:
    pool = make_pool(node_kept_s=10 * 86_400, event_kept_s=0)
    loop, registry = retention(pool)
    listing = Listing()
    member = await pool.member()
    gone, listed_still = Key.generate().address, Key.generate().address
    listing.nodes = [gone, listed_still]
    inviting = inviter(pool, listing)
    await inviting.round()
    nodes = pool.dependencies.nodes
    assert await nodes.count() == 3
    listing.nodes = [listed_still]
    for _ in range(12):
        await pool.clock.turn(DAY)
        await inviting.round()
        await loop.round()
    assert await nodes.page(after=None, limit=9) == sorted([member.address, listed_still])
    assert deleted(registry, "node") == 1
    redis = pool.dependencies.redis
    assert [name async for name in redis.scan_iter(f"*{gone}*")] == []


async def test_a_dry_run_and_another_instances_lease_delete_nothing(make_pool: MakePool) -> None:
    pool = make_pool(retention_dry_run=True)
    await pool.run(name="old", replicas=1)
    await pool.run(name="new", replicas=1)
    await pool.clock.turn(100 * DAY)
    dry, _ = retention(pool)
    assert await dry.round() == 0
    other, _ = retention(make_pool())
    assert await other.round() == 0, "the other instance holds the lease"
    await dry._lease.give_up()
    assert await other.round() > 0
