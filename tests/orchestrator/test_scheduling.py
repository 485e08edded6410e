"""The scheduler's planner: tables of small pools, and properties of generated pools."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.domain.node_states import MEMBERS
from orchestrator.scheduler.plan import AssignmentOutcome, Candidate, OpenTask, SchedulePlan, TaskPlacement
from orchestrator.scheduler.planner import plan
from orchestrator.scheduler.requirements import GIBIBYTE, NodeHardware
from protocol.identifiers import Address, address
from protocol.wire.assignments import AssignmentState, GroupPlace
from protocol.wire.nodes import Gpu, Hardware, NodeState, RuntimeKind, Software
from protocol.wire.tasks import TaskSpec, TaskState

NOW = 1_800_000_000_000
S, A, T = NodeState, AssignmentState, TaskState


def addr(number: int) -> Address:
    return address(f"0x{number:040x}")


def machine(gpus: int = 0, memory: int = 8, labels: dict[str, str] | None = None) -> NodeHardware:
    hardware = Hardware(
        cpu_model="x",
        cpu_cores=4,
        architecture="x86_64",
        memory_bytes=memory * GIBIBYTE,
        disk_free_bytes=100 * GIBIBYTE,
        gpus=tuple(Gpu(index=index, model="H200", memory_bytes=139 * GIBIBYTE) for index in range(gpus)),
    )
    software = Software(
        worker_version="0.1.0",
        protocol_version=1,
        operating_system="Linux",
        runtimes=(RuntimeKind.DOCKER,),
        gpu_containers=gpus > 0,
    )
    return NodeHardware(hardware=hardware, software=software, labels=labels or {})


def node(number: int, state: NodeState = S.HEALTHY, runs: TaskPlacement | None = None, **has: Any) -> Candidate:
    return Candidate(address=addr(number), state=state, since_ms=NOW, machine=machine(**has), placement=runs)


def task(
    name: str = "a", *, age: int = 0, outcomes: tuple[AssignmentOutcome, ...] = (), generation: int = 1, **spec: Any
) -> OpenTask:
    return OpenTask(
        id=name,
        generation=generation,
        spec=TaskSpec.model_validate({"name": name, "image": "python:3.11", **spec}),
        created_at_ms=NOW - age,
        outcomes=outcomes,
    )


def runs(task_id: str = "a", state: AssignmentState = A.RUNNING, **more: Any) -> TaskPlacement:
    values: dict[str, Any] = {
        "id": f"of-{task_id}",
        "task_id": task_id,
        "spec_generation": 1,
        "state": state,
        "assigned_at_ms": NOW - 1000,
        **more,
    }
    return TaskPlacement(**values)


def ended(number: int, state: AssignmentState, **more: Any) -> AssignmentOutcome:
    values: dict[str, Any] = {
        "assignment_id": f"on-{number}",
        "node": addr(number),
        "spec_generation": 1,
        "state": state,
        "at_ms": NOW - 100_000,
        "detail": "exit 1",
        **more,
    }
    return AssignmentOutcome(**values)


def starts(result: SchedulePlan) -> dict[int, str]:
    return {int(start.node, 16): start.task_id for start in result.starts}


def stops(result: SchedulePlan) -> dict[int, str]:
    return {int(stop.node, 16): stop.because for stop in result.stops}


def verdict(result: SchedulePlan, task_id: str = "a") -> tuple[TaskState, str]:
    return next((one.state, one.reason) for one in result.verdicts if one.task_id == task_id)


@pytest.mark.parametrize(
    ("tasks", "nodes", "expected"),
    [
        pytest.param([task()], [node(1), node(2)], {1: "a", 2: "a"}, id="a task for every node"),
        pytest.param([task(replicas=1)], [node(1), node(2)], {1: "a"}, id="one replica runs on one node"),
        pytest.param([task(replicas=1)], [node(1, gpus=1), node(2)], {2: "a"}, id="the smallest fitting node"),
        pytest.param([task(replicas=1)], [node(1, S.UNHEALTHY), node(2)], {2: "a"}, id="not on an unhealthy node"),
        pytest.param([task()], [node(1, S.DRAINING), node(2, S.DEAD)], {}, id="not on draining or dead nodes"),
        pytest.param(
            [task("new", replicas=1), task("old", age=9, replicas=1)], [node(1)], {1: "old"}, id="the older task first"
        ),
        pytest.param(
            [task("urgent", priority=1, replicas=1), task("old", age=9)], [node(1)], {1: "urgent"}, id="priority first"
        ),
        pytest.param([task(gpus={"count": 1})], [node(1), node(2, gpus=1)], {2: "a"}, id="a node with a GPU"),
        pytest.param(
            [task(selector={"labels": {"zone": "eu"}})],
            [node(1, labels={"zone": "eu"}), node(2)],
            {1: "a"},
            id="labels",
        ),
        pytest.param(
            [task()], [node(1, runs=runs("a")), node(2)], {2: "a"}, id="running tasks stay, a new node gets the next"
        ),
        pytest.param(
            [task(), task("b", age=-1)], [node(1, runs=runs("b"))], {}, id="equal priority never displaces a task"
        ),
        pytest.param([task(outcomes=(ended(1, A.COMPLETED),))], [node(1), node(2)], {2: "a"}, id="once on every node"),
        pytest.param(
            [task(replicas=2, outcomes=(ended(1, A.COMPLETED),))],
            [node(1), node(2)],
            {1: "a"},
            id="completed replicas count",
        ),
        pytest.param(
            [task(replicas=1, outcomes=(ended(1, A.FAILED, at_ms=NOW - 1000),))],
            [node(1), node(2)],
            {2: "a"},
            id="another node after a failure",
        ),
        pytest.param(
            [task(replicas=1, outcomes=(ended(1, A.FAILED),))], [node(1)], {1: "a"}, id="the same node after a pause"
        ),
        pytest.param(
            [task(replicas=1, generation=2, outcomes=(ended(1, A.COMPLETED),))],
            [node(1)],
            {1: "a"},
            id="a new generation starts over",
        ),
    ],
)
def test_which_nodes_start_which_tasks(tasks: list[OpenTask], nodes: list[Candidate], expected: dict[int, str]) -> None:
    assert starts(plan(tasks, nodes, now_ms=NOW)) == expected


@pytest.mark.parametrize(
    ("tasks", "nodes", "expected"),
    [
        ([task(replicas=1)], [node(1, runs=runs("a"))], {}),
        ([task(replicas=1)], [node(1, S.UNHEALTHY, runs=runs("a"))], {}),
        ([], [node(1, runs=runs("a"))], {1: "the task was stopped or deleted, or has ended"}),
        ([task()], [node(1, S.DEAD, runs=runs("a"))], {1: "the node is dead"}),
        ([task()], [node(1, S.BANNED, runs=runs("a"))], {1: "the node is banned"}),
        ([task(deadline_ms=NOW)], [node(1, runs=runs("a"))], {1: "the task's deadline passed"}),
        ([task(restart={"kind": "always"})], [node(1, S.DRAINING, runs=runs("a"))], {1: "the node is draining"}),
        ([task(restart={"kind": "never"})], [node(1, S.DRAINING, runs=runs("a"))], {}),
        (
            [task(replicas=1)],
            [node(1, runs=runs("a")), node(2, runs=runs("a", A.PULLING))],
            {2: "the task has fewer replicas now"},
        ),
        (
            [task("b", priority=5, replicas=1), task()],
            [node(1, runs=runs("a"))],
            {1: "task b with priority 5 needs the node"},
        ),
        ([task("b", priority=5, replicas=1), task()], [node(1, runs=runs("a")), node(2)], {}),
        (
            [task(generation=2, gpus={"count": 8})],
            [node(1, runs=runs("a"))],
            {1: "the task was changed and needs 8 GPUs"},
        ),
    ],
)
def test_assignments_stop_only_for_a_reason(
    tasks: list[OpenTask], nodes: list[Candidate], expected: dict[int, str]
) -> None:
    assert stops(plan(tasks, nodes, now_ms=NOW)) == expected


def test_a_finite_task_may_finish_on_a_draining_node_within_a_limit() -> None:
    draining = node(1, S.DRAINING, runs("a"))
    assert not plan([task()], [draining], now_ms=NOW + 599_000).stops
    assert stops(plan([task()], [draining], now_ms=NOW + 600_000)) == {1: "the node is draining"}


def test_a_changed_task_is_renewed_on_the_node_where_it_runs() -> None:
    result = plan([task(generation=2)], [node(1, runs=runs("a"))], now_ms=NOW)
    assert [(int(one.node, 16), one.assignment_id) for one in result.renewals] == [(1, "of-a")]
    assert not result.stops
    assert not result.starts


@pytest.mark.parametrize(
    ("tasks", "nodes", "expected"),
    [
        ([task()], [], (T.PENDING, "the pool has no healthy node")),
        ([task()], [node(1)], (T.RUNNING, "")),
        (
            [task(gpus={"count": 8})],
            [node(1, gpus=2), node(2)],
            (T.PENDING, "needs 8 GPUs, the largest node has 2"),
        ),
        (
            [task(resources={"memory_bytes": 64 * GIBIBYTE})],
            [node(1)],
            (T.PENDING, "needs 64 GiB of memory, the only node has 8 GiB"),
        ),
        (
            [task(replicas=3)],
            [node(1)],
            (T.RUNNING, "2 of 3 replicas wait: 1 of 1 fitting nodes run tasks that are at least as urgent"),
        ),
        ([task(replicas=1, outcomes=(ended(1, A.COMPLETED),))], [node(1)], (T.COMPLETED, "")),
        ([task(outcomes=(ended(1, A.COMPLETED),))], [node(1)], (T.COMPLETED, "")),
        ([task(outcomes=(ended(1, A.COMPLETED),))], [node(1), node(2)], (T.RUNNING, "")),
        ([task(outcomes=(ended(1, A.COMPLETED), ended(2, A.FAILED)))], [node(1), node(2)], (T.FAILED, "1 of 2 nodes")),
        ([task(replicas=1, outcomes=(ended(1, A.FAILED),) * 3)], [node(1)], (T.FAILED, "it failed 3 times")),
        (
            [task(replicas=1, restart={"kind": "never"}, outcomes=(ended(1, A.FAILED),))],
            [node(1), node(2)],
            (T.FAILED, "it failed once, the last time on"),
        ),
        (
            [task(replicas=1, outcomes=(ended(1, A.FAILED, at_ms=NOW - 7_200_000),) * 3)],
            [node(1)],
            (T.RUNNING, ""),
        ),
        ([task(deadline_ms=NOW)], [node(1)], (T.FAILED, "its deadline passed")),
        (
            [task(replicas=1, outcomes=(ended(1, A.FAILED, at_ms=NOW),))],
            [node(1)],
            (T.PENDING, "1 of 1 replicas wait: it failed on 1 of 1 fitting nodes, which wait"),
        ),
    ],
)
def test_task_states_and_reasons(
    tasks: list[OpenTask], nodes: list[Candidate], expected: tuple[TaskState, str]
) -> None:
    state, reason = verdict(plan(tasks, nodes, now_ms=NOW))
    assert state is expected[0]
    assert reason.startswith(expected[1])
    assert bool(reason) == bool(expected[1])


def test_a_tasks_reason_quotes_the_last_failure() -> None:
    said = "ended with exit code 1\n" + "early\n" * 200 + "no such file"
    again = runs(state=A.RESTARTING, detail=said)
    state, reason = verdict(plan([task()], [node(1, runs=runs()), node(2, runs=again)], now_ms=NOW))
    assert state is T.RUNNING
    assert reason.startswith(f"1 of 2 nodes restart it, such as {addr(2)}: ended with exit code 1\n…")
    assert reason.endswith("no such file")
    assert len(reason) < 700
    rests = task(replicas=1, outcomes=(ended(1, A.FAILED, at_ms=NOW, detail=said),))
    state, reason = verdict(plan([rests], [node(1)], now_ms=NOW))
    assert state is T.PENDING
    assert f"wait before they try it again; the last failure was on {addr(1)}: ended" in reason
    assert reason.endswith("no such file")
    settled = plan([task(replicas=1)], [node(1, runs=runs(state=A.FAILED, detail=said))], now_ms=NOW)
    assert "no such file" in verdict(settled)[1]


def test_a_final_report_settles_the_assignment_and_frees_the_node_at_once() -> None:
    result = plan([task(replicas=1), task("b", age=-5, replicas=1)], [node(1, runs=runs("a", A.COMPLETED))], now_ms=NOW)
    assert [(one.assignment_id, one.state) for one in result.settles] == [("of-a", A.COMPLETED)]
    assert verdict(result) == (T.COMPLETED, "")
    assert starts(result) == {1: "b"}


def place(rank: int, group: str = "f" * 32, size: int = 2) -> GroupPlace:
    return GroupPlace(id=group, rank=rank, size=size)


def test_a_gang_starts_only_when_it_is_complete() -> None:
    two = task(replicas=1, group_size=2)
    assert not plan([two], [node(1)], now_ms=NOW).starts
    assert verdict(plan([two], [node(1)], now_ms=NOW))[1].startswith("groups of 2 need 1 more nodes")
    result = plan([two], [node(1), node(2), node(3)], now_ms=NOW)
    assert [start.group.rank for start in result.starts if start.group] == [0, 1]
    assert len({start.group.id for start in result.starts if start.group}) == 1


def test_a_dead_gang_member_is_replaced_at_its_rank_and_no_other_moves() -> None:
    nodes = [
        node(1, runs=runs("a", group=place(0))),
        node(2, S.DEAD, runs=runs("a", group=place(1))),
        node(3),
    ]
    result = plan([task(replicas=1, group_size=2)], nodes, now_ms=NOW)
    assert stops(result) == {2: "the node is dead"}
    assert [(int(start.node, 16), start.group) for start in result.starts] == [(3, place(1))]


def test_two_incomplete_groups_merge_into_one() -> None:
    nodes = [
        node(1, runs=runs("a", group=place(0, "a" * 32))),
        node(2, runs=runs("a", group=place(0, "b" * 32))),
    ]
    wanted = task(replicas=2, group_size=2)
    first = plan([wanted], nodes, now_ms=NOW)
    assert list(stops(first)) == [2]
    second = plan([wanted], [nodes[0], node(2)], now_ms=NOW)
    assert [(int(start.node, 16), start.group) for start in second.starts] == [(2, place(1, "a" * 32))]


def test_a_gang_is_complete_when_every_rank_is() -> None:
    half = task(replicas=1, group_size=2, outcomes=(ended(1, A.COMPLETED, group=place(0)),))
    assert verdict(plan([half], [node(1), node(2, runs=runs("a", group=place(1)))], now_ms=NOW))[0] is T.RUNNING
    both = replace(half, outcomes=(*half.outcomes, ended(2, A.COMPLETED, group=place(1))))
    result = plan([both], [node(1), node(2)], now_ms=NOW)
    assert verdict(result)[0] is T.COMPLETED
    assert not result.starts


specs: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "replicas": st.one_of(st.integers(1, 4), st.just("every-node")),
        "group_size": st.sampled_from([1, 1, 2, 3]),
        "priority": st.integers(-1, 1),
        "gpus": st.builds(lambda count: {"count": count}, st.integers(0, 2)),
    }
)


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[OpenTask], list[Candidate]]:
    tasks = [
        task(f"t{number}", age=draw(st.integers(0, 3)), **dict(draw(specs)))
        for number in range(draw(st.integers(0, 4)))
    ]
    nodes = [
        node(
            number,
            draw(st.sampled_from([S.HEALTHY, S.HEALTHY, S.UNHEALTHY, S.DRAINING, S.DEAD])),
            gpus=draw(st.integers(0, 2)),
        )
        for number in range(draw(st.integers(0, 8)))
    ]
    return tasks, nodes


def carry_out(result: SchedulePlan, tasks: list[OpenTask], nodes: list[Candidate]) -> list[Candidate]:
    given_up = {stop.node for stop in result.stops} | {settle.node for settle in result.settles}
    started = {start.node: start for start in result.starts}
    generation = {one.id: one.generation for one in tasks}
    after = []
    for one in nodes:
        placement = None if one.address in given_up else one.placement
        if one.address in started:
            start = started[one.address]
            placement = runs(
                start.task_id, group=start.group, spec_generation=generation[start.task_id], id=one.address
            )
        after.append(replace(one, placement=placement))
    return after


@given(pools(), st.randoms(use_true_random=False))
def test_the_plan_does_not_depend_on_the_order_of_its_input(
    pool: tuple[list[OpenTask], list[Candidate]], order: random.Random
) -> None:
    tasks, nodes = pool
    first = plan(tasks, nodes, now_ms=NOW)
    order.shuffle(tasks)
    order.shuffle(nodes)
    assert plan(tasks, nodes, now_ms=NOW) == first


@given(pools())
def test_a_node_gets_at_most_one_fitting_task_and_gangs_are_complete(
    pool: tuple[list[OpenTask], list[Candidate]],
) -> None:
    tasks, nodes = pool
    result = plan(tasks, nodes, now_ms=NOW)
    by_id, by_address = {one.id: one for one in tasks}, {one.address: one for one in nodes}
    assert len({start.node for start in result.starts}) == len(result.starts)
    groups: dict[str, set[int]] = {}
    for start in result.starts:
        chosen, spec = by_address[start.node], by_id[start.task_id].spec
        assert chosen.state is S.HEALTHY
        assert chosen.machine.hardware is not None
        assert len(chosen.machine.hardware.gpus) >= spec.gpus.count
        if start.group is not None:
            groups.setdefault(start.group.id, set()).add(start.group.rank)
            assert start.group.size == spec.group_size
    for group, ranks in groups.items():
        whole = next(start.group.size for start in result.starts if start.group and start.group.id == group)
        assert ranks == set(range(whole))
    for one in tasks:
        if one.spec.replicas != "every-node":
            given_out = sum(start.task_id == one.id for start in result.starts)
            assert given_out <= one.spec.replicas * one.spec.group_size


@given(pools(), st.data())
def test_an_executed_plan_is_followed_by_an_empty_plan(
    pool: tuple[list[OpenTask], list[Candidate]], data: st.DataObject
) -> None:
    tasks, nodes = pool
    after = carry_out(plan(tasks, nodes, now_ms=NOW), tasks, nodes)
    again = plan(tasks, after, now_ms=NOW)
    assert not again.stops
    assert not again.starts
    if after:
        # A node that is silent for a moment changes no assignment, neither its own nor another.
        silent = data.draw(st.sampled_from(after))
        if silent.state in MEMBERS and silent.placement is not None:
            waits = [replace(one, state=S.UNHEALTHY) if one is silent else one for one in after]
            assert not plan(tasks, waits, now_ms=NOW).stops


HOURS_AGO = NOW - 7_200_000


@pytest.mark.parametrize(
    ("ended_as", "spec", "forgotten"),
    [
        pytest.param(ended(1, A.FAILED, at_ms=HOURS_AGO), {"replicas": 1}, True, id="a failure that no longer counts"),
        pytest.param(ended(1, A.FAILED, at_ms=NOW), {"replicas": 1}, False, id="a failure that still counts is kept"),
        pytest.param(
            ended(1, A.FAILED, at_ms=HOURS_AGO),
            {"replicas": 1, "restart": {"kind": "never"}},
            False,
            id="a permanent failure is kept",
        ),
        pytest.param(ended(1, A.FAILED, at_ms=HOURS_AGO), {}, False, id="outcomes of a task for every node are kept"),
        pytest.param(ended(1, A.COMPLETED, at_ms=HOURS_AGO), {"replicas": 2}, False, id="a completed replica is kept"),
        pytest.param(
            ended(1, A.COMPLETED, spec_generation=0),
            {"replicas": 2},
            True,
            id="a replica of a former spec is forgotten",
        ),
    ],
)
def test_outcomes_that_no_plan_needs_are_forgotten(
    ended_as: AssignmentOutcome, spec: dict[str, Any], forgotten: bool
) -> None:
    before = task(outcomes=(ended_as,), **spec)
    result = plan([before], [node(1), node(2)], now_ms=NOW)
    assert [one.assignment_ids for one in result.forgets] == ([("on-1",)] if forgotten else [])
    if forgotten:
        assert plan([replace(before, outcomes=())], [node(1), node(2)], now_ms=NOW).starts == result.starts
