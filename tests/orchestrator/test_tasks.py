"""Tasks from the owner's request to the node's report."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from protocol.errors import Unavailable
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.wire.assignments import AssignmentState
from protocol.wire.heartbeat import HeartbeatAnswer
from protocol.wire.nodes import Gpu, NodeState
from protocol.wire.tasks import Assignment
from tests.kit.memory_ledger import HARDWARE, POOL, PoolUnderTest

SPEC = {"name": "hello", "image": "python:3.11"}


def assignment_of(answer: HeartbeatAnswer) -> Assignment:
    assert answer.assignment is not None, answer.reason
    return answer.assignment


def report(assignment: Assignment, state: str, **more: Any) -> dict[str, Any]:
    return {"assignment": {"id": assignment.id, "generation": assignment.generation, "state": state, **more}}


async def test_a_task_is_assigned_runs_and_completes(pool: PoolUnderTest) -> None:
    key = await pool.member()
    task = await pool.run(replicas=1, command=["echo", "${MUSTER_NODE_ADDRESS}"])
    assignment = assignment_of(await pool.beat(key))
    assert assignment.task_id == task
    assert assignment.spec.command == ("echo", "${MUSTER_NODE_ADDRESS}")
    assert assignment.generation == 1
    await pool.beat(key, **report(assignment, "running", started_at_ms=1))
    await pool.scheduler.tick()
    seen = await pool.owner("GET", f"/v1/tasks/{task}")
    assert (seen["state"], seen["assignments"]) == ("running", {"running": 1})
    await pool.beat(key, **report(assignment, "completed", exit_code=0))
    await pool.scheduler.tick()
    seen = await pool.owner("GET", f"/v1/tasks/{task}")
    assert (seen["state"], seen["assignments"]) == ("completed", {"completed": 1})
    assert (await pool.beat(key)).assignment is None
    node = await pool.owner("GET", f"/v1/nodes/{key.address}")
    assert (node["assignment"]["state"], node["assignment"]["exit_code"]) == ("completed", 0)


async def test_secrets_reach_only_the_assigned_node(pool: PoolUnderTest) -> None:
    key = await pool.member()
    body = {
        "spec": {**SPEC, "replicas": 1},
        "secrets": {"HF_TOKEN": "hush-hush-1"},
        "registry": {"username": "u", "password": "hush-hush-2"},
    }
    created = await pool.owner("POST", "/v1/tasks", body)
    await pool.scheduler.tick()
    assignment = assignment_of(await pool.beat(key))
    assert assignment.secrets["HF_TOKEN"].get_secret_value() == "hush-hush-1"
    assert assignment.registry is not None
    assert assignment.registry.password.get_secret_value() == "hush-hush-2"
    shown = [created, await pool.owner("GET", "/v1/tasks"), await pool.owner("GET", "/v1/events")]
    shown.append(await pool.owner("GET", f"/v1/nodes/{key.address}"))
    assert created["secret_names"] == ["HF_TOKEN"]
    assert "hush" not in json.dumps(shown)
    redis = pool.dependencies.redis
    for name in await redis.keys("*"):
        kind = await redis.type(name)
        kept = await redis.hgetall(name) if kind == b"hash" else name
        assert b"hush" not in repr(kept).encode()


async def test_secrets_of_a_running_task_are_rotated_in_place(pool: PoolUnderTest) -> None:
    key = await pool.member()
    registry = {"username": "u", "password": "hush-0"}
    body = {"spec": {**SPEC, "replicas": 1}, "secrets": {"A": "hush-1", "B": "hush-2"}, "registry": registry}
    path = f"/v1/tasks/{(await pool.owner('POST', '/v1/tasks', body))['id']}"
    await pool.scheduler.tick()
    first = assignment_of(await pool.beat(key))
    await pool.beat(key, **report(first, "running"))
    changed = await pool.owner("PUT", f"{path}/secrets", {"secrets": {"A": "hush-3", "C": "hush-4"}})
    assert (changed["secret_names"], changed["generation"]) == (["A", "C"], 2)
    assert await pool.owner("PUT", f"{path}/secrets", {"secrets": {"C": "hush-4", "A": "hush-3"}}) == changed, (
        "repeated"
    )
    await pool.scheduler.tick()
    second = assignment_of(await pool.beat(key))
    assert (second.id, second.generation, second.restart_nonce) == (first.id, 2, 0)
    assert {name: value.get_secret_value() for name, value in second.secrets.items()} == {"A": "hush-3", "C": "hush-4"}
    assert second.registry == first.registry
    await pool.owner("PUT", f"{path}/secrets", {"registry": {"username": "u", "password": "hush-5"}})
    await pool.scheduler.tick()
    third = assignment_of(await pool.beat(key))
    assert third.registry is not None
    assert (third.registry.password.get_secret_value(), third.secrets) == ("hush-5", second.secrets)

    await pool.owner("PATCH", path, {"desired_state": "stopped"})
    await pool.scheduler.tick()
    stopped = await pool.owner("PUT", f"{path}/secrets", {"secrets": {}})
    assert (stopped["state"], stopped["secret_names"], stopped["generation"]) == ("stopped", [], 3)
    await pool.owner("PATCH", path, {"desired_state": "running"})
    await pool.scheduler.tick()
    assert assignment_of(await pool.beat(key)).secrets == {}
    events = (await pool.owner("GET", "/v1/events?limit=500"))["events"]
    assert [event["kind"] for event in events].count("task.secrets-changed") == 3
    redis = pool.dependencies.redis
    for name in await redis.keys("*}:task:*"):
        assert b"hush" not in repr(await redis.hgetall(name)).encode()


@pytest.mark.parametrize(
    ("body", "headers", "status", "said"),
    [
        ({}, {}, 422, "give secrets, registry credentials, or both"),
        ({"secrets": {"not a name": "hush"}}, {}, 422, "secrets"),
        ({"secrets": {"A": "hush"}}, {"If-Match": '"9.x"'}, 412, "precondition-failed"),
    ],
)
async def test_a_wrong_rotation_of_secrets_changes_nothing(
    pool: PoolUnderTest, body: Any, headers: dict[str, str], status: int, said: str
) -> None:
    created = await pool.owner("POST", "/v1/tasks", {"spec": SPEC, "secrets": {"OLD": "x"}})
    path = f"/v1/tasks/{created['id']}"
    async with pool.http() as http:
        answer = await http.put(
            f"{path}/secrets", json=body, headers={"Authorization": f"Bearer {pool.token}", **headers}
        )
    assert (answer.status_code, said in answer.text, "hush" in answer.text) == (status, True, False)
    assert (await pool.owner("GET", path))["secret_names"] == ["OLD"]


async def test_a_secret_without_an_encryption_key_is_refused(make_pool: Any) -> None:
    pool = make_pool()
    bare = pool.dependencies.tasks
    bare._cipher._fernet = None
    async with pool.http() as http:
        answer = await http.post(
            "/v1/tasks", json={"spec": SPEC, "secrets": {"A": "b"}}, headers={"Authorization": f"Bearer {pool.token}"}
        )
    assert (answer.status_code, answer.json()["code"]) == (400, "no-secrets-key")


@pytest.mark.parametrize(
    ("body", "status", "names"),
    [
        ({"spec": {**SPEC, "environment": {"A": "${MUSTER_NODE}"}}}, 422, "environment.A"),
        ({"spec": {**SPEC, "command": ["${MUSTER_NODE_ADRESS}"]}}, 422, "MUSTER_NODE_ADDRESS"),
        ({"spec": {**SPEC, "entrypoint": ["a", "${MUSTER_"]}}, 422, "entrypoint.1"),
        ({"spec": {**SPEC, "environment": {"MUSTER_POOL_ID": "9"}}}, 422, "set by the worker"),
        ({"spec": {**SPEC, "image": "no image"}}, 422, "spec.image"),
        ({"spec": {**SPEC, "resources": {"memory_bytes": -1}}}, 422, "spec.resources.memory_bytes"),
        ({"spec": {**SPEC, "volumes": [{"target": "/data", "source": "/etc"}]}}, 422, "source"),
        ({"spec": {**SPEC, "replicas": 0}}, 422, "replicas"),
        ({"spec": SPEC, "secrets": {"not a name": "x"}}, 422, "secrets"),
        ({}, 422, "spec"),
        ("[", 422, "body"),
    ],
)
async def test_an_invalid_task_is_refused_with_the_field_name(
    pool: PoolUnderTest, body: Any, status: int, names: str
) -> None:
    content = body if isinstance(body, str) else json.dumps(body)
    async with pool.http() as http:
        answer = await http.post("/v1/tasks", content=content, headers={"Authorization": f"Bearer {pool.token}"})
    assert answer.status_code == status
    assert names in answer.text
    assert not (await pool.owner("GET", "/v1/tasks"))["tasks"]


async def test_unavailable_resources_are_stated_as_the_reason_until_a_node_fits(pool: PoolUnderTest) -> None:
    gpus = tuple(Gpu(index=index, model="H200", memory_bytes=139 << 30) for index in range(2))
    await pool.member(HARDWARE.model_copy(update={"gpus": gpus}))
    task = await pool.run(replicas=1, gpus={"count": 8})
    seen = await pool.owner("GET", f"/v1/tasks/{task}")
    assert seen["state"] == "pending"
    assert "needs 8 GPUs, the only node has 2" in seen["reason"]


async def test_a_changed_task_is_a_new_generation_of_the_same_assignment(pool: PoolUnderTest) -> None:
    key = await pool.member()
    task = await pool.run(replicas=1)
    first = assignment_of(await pool.beat(key))
    await pool.owner("PATCH", f"/v1/tasks/{task}", {"spec": {**SPEC, "replicas": 1, "command": ["new"]}})
    await pool.scheduler.tick()
    second = assignment_of(await pool.beat(key))
    assert (second.id, second.generation, second.spec.command) == (first.id, 2, ("new",))


async def test_a_node_is_asked_to_retry_while_its_task_changes(pool: PoolUnderTest) -> None:
    key = await pool.member()
    task = await pool.run(replicas=1)
    await pool.owner("PATCH", f"/v1/tasks/{task}", {"spec": {**SPEC, "replicas": 1, "command": ["new"]}})
    answer = await pool.send(key, "/v1/heartbeat", {"pool_id": POOL, "worker_version": "0.1.0"})
    assert (answer.status_code, answer.json()["code"]) == (503, "task-changing")


async def test_a_report_of_an_old_generation_is_ignored(pool: PoolUnderTest) -> None:
    key = await pool.member()
    task = await pool.run(replicas=1)
    first = assignment_of(await pool.beat(key))
    await pool.owner("POST", f"/v1/nodes/{key.address}/restart", {"reason": "stuck"})
    await pool.beat(key, **report(first, "completed"))
    await pool.scheduler.tick()
    assert (await pool.owner("GET", f"/v1/tasks/{task}"))["state"] == "running"
    again = assignment_of(await pool.beat(key))
    assert (again.id, again.generation, again.restart_nonce) == (first.id, 2, 1)


async def test_adding_replicas_moves_no_running_assignment(pool: PoolUnderTest) -> None:
    first, second = await pool.member(), await pool.member()
    task = await pool.run(replicas=1)
    before = {key.address: (await pool.beat(key)).assignment for key in (first, second)}
    await pool.owner("PATCH", f"/v1/tasks/{task}", {"replicas": 2, "priority": 3})
    await pool.scheduler.tick()
    for key in (first, second):
        held = assignment_of(await pool.beat(key))
        old = before[key.address]
        assert old is None or (held.id, held.generation) == (old.id, old.generation)


async def test_a_stopped_task_stops_and_can_be_started_again(pool: PoolUnderTest) -> None:
    key = await pool.member()
    task = await pool.run(replicas=1)
    assert (await pool.beat(key)).assignment is not None
    stopped = await pool.owner("PATCH", f"/v1/tasks/{task}", {"desired_state": "stopped"})
    assert (stopped["state"], stopped["reason"]) == ("stopped", "stopped by boss")
    await pool.scheduler.tick()
    assert (await pool.beat(key)).assignment is None
    await pool.owner("PATCH", f"/v1/tasks/{task}", {"desired_state": "running"})
    await pool.scheduler.tick()
    assert assignment_of(await pool.beat(key)).task_id == task


async def test_a_deleted_task_stops_on_every_node_and_is_removed(pool: PoolUnderTest) -> None:
    key = await pool.member()
    task = await pool.run(replicas=1)
    await pool.owner("DELETE", f"/v1/tasks/{task}")
    await pool.scheduler.tick()
    assert (await pool.beat(key)).assignment is None
    async with pool.http() as http:
        answer = await http.get(f"/v1/tasks/{task}", headers={"Authorization": f"Bearer {pool.token}"})
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown-task")
    kept = await pool.dependencies.redis.keys(f"*{task}*")
    assert [name for name in kept if b":assignments:task:" not in name] == []  # ended assignments are kept for a week


async def test_a_task_fails_after_its_attempts_with_a_reason(pool: PoolUnderTest) -> None:
    key = await pool.member()
    task = await pool.run(replicas=1)
    for _ in range(3):
        assignment = assignment_of(await pool.beat(key))
        await pool.beat(key, **report(assignment, "failed", detail="no such image", exit_code=1))
        await pool.scheduler.tick()
        for _ in range(12):
            await pool.clock.turn(timedelta(seconds=10))
            await pool.beat(key)
        await pool.scheduler.tick()
    seen = await pool.owner("GET", f"/v1/tasks/{task}")
    assert seen["state"] == "failed"
    assert "no such image" in seen["reason"]


async def test_a_failures_log_lines_are_shown_with_nodes_and_tasks_and_events_keep_one_line(
    pool: PoolUnderTest,
) -> None:
    """A task's output is requested when it fails, before the worker gives up after six attempts."""
    key = await pool.member()
    task = await pool.run()
    said = "ended with exit code 1\nbwrap: execvp /x/.venv/bin/python: No such file"
    held = assignment_of(await pool.beat(key))
    for state in ("restarting", "failed"):
        await pool.beat(key, **report(held, state, detail=said, exit_code=1))
        node = await pool.owner("GET", f"/v1/nodes/{key.address}")
        assert node["assignment"]["detail"] == said
        await pool.scheduler.tick()
        assert (await pool.owner("GET", f"/v1/tasks/{task}"))["reason"].endswith(said)
    events = (await pool.owner("GET", "/v1/events"))["events"]
    assert {event["kind"] for event in events} >= {"assignment.restarting", "assignment.failed", "task.failed"}
    assert not any("\n" in event["detail"] for event in events)


async def test_a_node_is_told_why_its_task_failed_until_it_gets_another(pool: PoolUnderTest) -> None:
    key = await pool.member()
    task = await pool.run(restart={"kind": "never"})
    refusal = "the task asks for a network, which this contributor does not allow (set allow_host_network)"
    await pool.beat(key, **report(assignment_of(await pool.beat(key)), "failed", detail=refusal))
    await pool.scheduler.tick()
    reason = (await pool.beat(key)).reason
    name = (await pool.owner("GET", f"/v1/tasks/{task}"))["spec"]["name"]
    assert reason == f"no task needs this node now; task {name} failed here: {refusal}"
    await pool.run()
    completed = report(assignment_of(await pool.beat(key)), "completed", exit_code=0)
    await pool.beat(key, **completed)
    await pool.scheduler.tick()
    assert (await pool.beat(key)).reason == "no task needs this node now"


async def test_old_failures_are_dropped_but_stay_counted(pool: PoolUnderTest) -> None:
    key = await pool.member()
    task = await pool.run(replicas=1)
    await pool.beat(key, **report(assignment_of(await pool.beat(key)), "failed", detail="no such image", exit_code=1))
    await pool.scheduler.tick()
    assert len((await pool.dependencies.tasks.open_tasks())[0].outcomes) == 1
    await pool.clock.turn(timedelta(hours=2))
    await pool.scheduler.tick()
    assert (await pool.dependencies.tasks.open_tasks())[0].outcomes == ()
    seen = await pool.owner("GET", f"/v1/tasks/{task}")
    assert (seen["state"], seen["assignments"]["failed"]) == ("running", 1)


async def test_a_dead_nodes_task_is_reassigned_and_the_returning_node_starts_free(
    pool: PoolUnderTest,
) -> None:
    lost = await pool.member()
    task = await pool.run(replicas=1)
    first = assignment_of(await pool.beat(lost))
    other = await pool.member()
    await pool.liveness.tick()
    for _ in range(140):
        await pool.clock.turn(timedelta(seconds=0.5))
        await pool.liveness.tick()
        await pool.beat(other)
    await pool.scheduler.tick()
    second = assignment_of(await pool.beat(other))
    assert second.task_id == task
    assert second.id != first.id
    answer = await pool.beat(lost, **report(first, "running"))
    assert answer.state is NodeState.HEALTHY
    assert answer.assignment is None


async def test_a_gang_gets_ranks_and_only_a_lost_member_is_replaced(pool: PoolUnderTest) -> None:
    keys = {key.address: key for key in [await pool.member() for _ in range(3)]}
    task = await pool.run(replicas=1, group_size=2)
    places: dict[Address, Assignment] = {}
    for address, key in keys.items():
        answer = await pool.beat(key)
        if answer.assignment is not None:
            places[address] = answer.assignment
    assert sorted(one.group.rank for one in places.values() if one.group) == [0, 1]
    groups = (await pool.owner("GET", "/v1/groups"))["groups"]
    assert [(group["task_id"], group["size"], len(group["members"])) for group in groups] == [(task, 2, 2)]
    gone, kept = sorted(places)
    spare = next(address for address in keys if address not in places)
    await pool.liveness.tick()
    for _ in range(140):
        await pool.clock.turn(timedelta(seconds=0.5))
        await pool.liveness.tick()
        for address in (kept, spare):
            await pool.beat(keys[address])
    await pool.scheduler.tick()
    assert assignment_of(await pool.beat(keys[kept])).id == places[kept].id
    replaced = assignment_of(await pool.beat(keys[spare]))
    assert replaced.group == places[gone].group


async def test_tasks_are_listed_in_pages(pool: PoolUnderTest) -> None:
    made = []
    for _ in range(3):
        await pool.clock.turn(timedelta(seconds=1))
        made.append((await pool.owner("POST", "/v1/tasks", {"spec": SPEC}))["id"])
    first = await pool.owner("GET", "/v1/tasks?limit=2")
    second = await pool.owner("GET", f"/v1/tasks?limit=2&cursor={first['next_cursor']}")
    assert [task["id"] for task in first["tasks"] + second["tasks"]] == made
    assert second["next_cursor"] is None


async def test_a_scheduler_without_the_leader_lease_writes_nothing(make_pool: Any) -> None:
    pool, other = make_pool(), make_pool()
    key: Key = await pool.member()
    task = await pool.run()
    assert assignment_of(await pool.beat(key)).task_id == task
    assert not await other.scheduler.tick()
    await pool.dependencies.redis.delete(pool.dependencies.database.key("lease", "scheduler"))
    assert await other.scheduler.tick()
    with pytest.raises(Unavailable, match="another orchestrator"):
        await pool.dependencies.assignments.end(
            lease=pool.scheduler._lease.value,
            node=key.address,
            identifier=assignment_of(await pool.beat(key)).id,
            state=AssignmentState.STOPPED,
            why="",
            now_ms=0,
            outcome=None,
        )
    assert (await pool.beat(key)).assignment is not None
