"""Planner that assigns tasks to nodes. No I/O.

A node runs one task at a time. Tasks are served by priority, then by age. Every decision to stop an assignment has a
reason, which is recorded. The plan does not depend on the order of its inputs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from orchestrator.domain.node_states import MEMBERS
from orchestrator.scheduler.gangs import GangRank, plan_gang
from orchestrator.scheduler.plan import (
    AssignmentOutcome,
    Candidate,
    Forget,
    OpenTask,
    Renew,
    SchedulePlan,
    SchedulerTimeouts,
    Settle,
    StartTask,
    StopTask,
    TaskPlacement,
    TaskVerdict,
)
from orchestrator.scheduler.requirements import explain, shortfalls, size
from protocol.identifiers import Address
from protocol.runtime.backoff import backoff
from protocol.runtime.clock import milliseconds
from protocol.wire.assignments import AssignmentState, GroupPlace
from protocol.wire.nodes import NodeState
from protocol.wire.tasks import RestartKind, TaskState

DEFAULT_TIMEOUTS = SchedulerTimeouts()
_MOST_DETAIL = 500
"""Maximum number of characters to which a node's report on its task is shortened.

A task stores one report for each node on which it ended.
"""
_MOST_FIRST_LINE = 200
"""Maximum number of characters to which the first line of a report is shortened."""


def plan(
    tasks: Iterable[OpenTask],
    nodes: Iterable[Candidate],
    *,
    now_ms: int,
    timeouts: SchedulerTimeouts = DEFAULT_TIMEOUTS,
) -> SchedulePlan:
    """Plans the changes of all assignments.

    Args:
        tasks: All open tasks; assignments of other tasks are stopped.
        nodes: All nodes that are members or hold an assignment.
        now_ms: Current time in Unix milliseconds, for drains, deadlines and failures.
        timeouts: Time limits.
    """
    return _Planner(tasks, nodes, now_ms, timeouts).run()


def brief(detail: str) -> str:
    """Shortens a node's report on its task to 500 characters.

    It keeps the first line, which describes the failure, and the end of the task's output that the report quotes, where
    the error message usually is.
    """
    if len(detail) <= _MOST_DETAIL:
        return detail
    first, _, rest = detail.partition("\n")
    first = first[:_MOST_FIRST_LINE]
    room = _MOST_DETAIL - len(first) - len("\n…")
    return f"{first}\n…{rest[-room:]}" if rest else detail[:_MOST_DETAIL]


class _Planner:
    """One planning pass over all tasks, which tracks the assignments of nodes while it decides."""

    def __init__(
        self, tasks: Iterable[OpenTask], nodes: Iterable[Candidate], now_ms: int, timeouts: SchedulerTimeouts
    ) -> None:
        self.tasks = sorted(tasks, key=lambda task: (-task.spec.priority, task.created_at_ms, task.id))
        self.by_id = {task.id: task for task in self.tasks}
        self.nodes = sorted(nodes, key=lambda node: (size(node.machine), node.address))
        self.healthy = [node for node in self.nodes if node.state is NodeState.HEALTHY]
        self.now_ms = now_ms
        self.timeouts = timeouts
        self.result = SchedulePlan()
        self.held: dict[Address, TaskPlacement] = {}
        self.outcomes: dict[str, list[AssignmentOutcome]] = {
            task.id: [outcome for outcome in task.outcomes if outcome.spec_generation == task.generation]
            for task in self.tasks
        }
        self.by_task: dict[str, list[Candidate]] = defaultdict(list)

    def run(self) -> SchedulePlan:
        for node in self.nodes:
            self._review_placement(node)
        for task in self.tasks:
            self._serve(task)
            self._forget(task)
        return self.result

    def _review_placement(self, node: Candidate) -> None:
        placement = node.placement
        if placement is None:
            return
        task = self.by_id.get(placement.task_id)
        if placement.state.is_final and task is not None:
            self._settle(node, placement)
            return
        because = self._cause_to_stop(node, placement, task)
        if because is not None:
            self.result.stops.append(StopTask(node.address, placement.id, because))
            return
        self.held[node.address] = placement
        self.by_task[placement.task_id].append(node)

    def _settle(self, node: Candidate, placement: TaskPlacement) -> None:
        self.result.settles.append(Settle(node.address, placement.id, placement.state, placement.detail))
        task = self.by_id[placement.task_id]
        if placement.spec_generation == task.generation:
            outcome = AssignmentOutcome(
                assignment_id=placement.id,
                node=node.address,
                spec_generation=placement.spec_generation,
                state=placement.state,
                at_ms=self.now_ms,
                detail=brief(placement.detail),
                group=placement.group,
            )
            self.outcomes[task.id].append(outcome)

    def _cause_to_stop(self, node: Candidate, placement: TaskPlacement, task: OpenTask | None) -> str | None:
        if task is None:
            return "the task was stopped or deleted, or has ended"
        if node.state not in MEMBERS:
            return f"the node is {node.state}"
        if self._is_past_deadline(task):
            return "the task's deadline passed"
        if node.state is NodeState.DRAINING:
            drain_ends_ms = node.since_ms + milliseconds(self.timeouts.drain)
            if task.spec.restart.kind is RestartKind.ALWAYS or self.now_ms >= drain_ends_ms:
                return "the node is draining"
        if task.spec.group_size != (placement.group.size if placement.group else 1):
            return "the size of the task's groups was changed"
        return None

    def _serve(self, task: OpenTask) -> None:
        if self._is_past_deadline(task):
            self._say(task, TaskState.FAILED, "its deadline passed before it was completed")
            return
        self._renew(task)
        reason = self._serve_gangs(task) if task.spec.group_size > 1 else self._serve_nodes(task)
        if reason is not None:
            held = self.by_task[task.id]
            reasons = "; ".join(each for each in (reason, self._last_failure(task)) if each)
            self._say(task, TaskState.RUNNING if held else TaskState.PENDING, reasons)

    def _last_failure(self, task: OpenTask) -> str:
        """Returns why the task restarts or failed, with one node's report; empty without a restart or failure."""
        held = self.by_task[task.id]
        again = [node for node in held if self.held[node.address].state is AssignmentState.RESTARTING]
        if again:
            first = min(again, key=lambda node: node.address)
            detail = brief(self.held[first.address].detail)
            return f"{len(again)} of {len(held)} nodes restart it, such as {first.address}: {detail}"
        failed = self._failures(task)
        if not failed:
            return ""
        last = max(failed, key=lambda outcome: (outcome.at_ms, outcome.node))
        return f"the last failure was on {last.node}: {brief(last.detail)}"

    def _renew(self, task: OpenTask) -> None:
        for node in list(self.by_task[task.id]):
            placement = self.held[node.address]
            if placement.spec_generation == task.generation:
                continue
            missing = shortfalls(node.machine, task.spec) if node.machine.hardware is not None else []
            if missing:
                self._stop(node, f"the task was changed and needs {missing[0].need}")
            else:
                self.result.renewals.append(Renew(node.address, placement.id))

    def _serve_nodes(self, task: OpenTask) -> str | None:
        """Serves a task without groups; returns the reason why it waits for nodes.

        The reason is empty if the task does not wait, and None if the task is completed or failed.
        """
        outcomes, held = self.outcomes[task.id], self.by_task[task.id]
        done = [outcome for outcome in outcomes if outcome.state is AssignmentState.COMPLETED]
        failed = self._failures(task)
        if task.spec.replicas == "every-node":
            finished = {outcome.node for outcome in (*done, *failed)}
            able = [node for node in self._fitting(task) if node.address not in finished]
            for node in able:
                self._start(task, node)
            waiting = [node for node in self.nodes if node.state is NodeState.UNHEALTHY and node.placement is None]
            if (
                finished
                and not self.by_task[task.id]
                and not self._is_unfinished_somewhere(task, finished)
                and not waiting
            ):
                self._conclude_every_node(task, done, failed)
                return None
            return "" if self.by_task[task.id] else self._why_no_node(task, finished)
        if len(failed) >= self._most_failures(task):
            self._fail(task, failed)
            return None
        need = task.spec.replicas - len(done) - len(held)
        if len(done) >= task.spec.replicas:
            self._say(task, TaskState.COMPLETED, "")
            for node in list(held):
                self._stop(node, "the task is completed")
            return None
        for node in self._surplus(held, -need):
            self._stop(node, "the task has fewer replicas now")
        for node in self._fitting(task)[: max(0, need)] if need > 0 else ():
            self._start(task, node)
            need -= 1
        if need <= 0:
            return ""
        return f"{need} of {task.spec.replicas} replicas wait: {self._why_no_node(task, set())}"

    def _serve_gangs(self, task: OpenTask) -> str | None:
        """Serves a task with groups; returns the same as `_serve_nodes`."""
        failed = self._failures(task)
        if len(failed) >= self._most_failures(task):
            self._fail(task, failed)
            return None
        wanted = None if task.spec.replicas == "every-node" else task.spec.replicas
        fitting = self._fitting(task)
        by_address = {node.address: node for node in fitting}
        gang = plan_gang(
            task_id=task.id,
            size=task.spec.group_size,
            wanted=wanted,
            filled_ranks=self._filled_ranks(task),
            candidates=[node.address for node in fitting],
        )
        for node in list(self.by_task[task.id]):
            group = self.held[node.address].group
            if group is not None and group.id in gang.dissolved:
                self._stop(node, "its group is dissolved: too few nodes, or the task has fewer groups now")
        for address, place in gang.starts:
            self._start(task, by_address[address], place)
        if wanted is not None and gang.completed >= wanted:
            self._say(task, TaskState.COMPLETED, "")
            return None
        if wanted is None and gang.completed and not self.by_task[task.id]:
            self._say(task, TaskState.COMPLETED, "")
            return None
        if gang.missing or not self.by_task[task.id]:
            waits = f"groups of {task.spec.group_size} need {max(1, gang.missing)} more nodes"
            return f"{waits}: {self._why_no_node(task, set())}"
        return ""

    def _filled_ranks(self, task: OpenTask) -> list[GangRank]:
        filled_ranks = [
            GangRank(outcome.group.id, outcome.group.rank, outcome.node, done=True)
            for outcome in self.outcomes[task.id]
            if outcome.group is not None and outcome.state is AssignmentState.COMPLETED
        ]
        for node in self.by_task[task.id]:
            group = self.held[node.address].group
            if group is not None:
                filled_ranks.append(GangRank(group.id, group.rank, node.address))
        return filled_ranks

    def _fitting(self, task: OpenTask) -> list[Candidate]:
        """Returns the nodes that may take the task now, in the order in which they are used.

        Free nodes come first, smallest first. Then come nodes that run a task of lower priority,
        which is stopped.
        """
        free: list[Candidate] = []
        busy: list[Candidate] = []
        for node in self.healthy:
            placement = self.held.get(node.address)
            if placement is not None and not self._yields(placement, task):
                continue
            if self._cools_off(task, node.address) or shortfalls(node.machine, task.spec):
                continue
            (free if placement is None else busy).append(node)
        busy.sort(key=lambda node: self._urgency(self.held[node.address]))
        return free + busy

    def _yields(self, placement: TaskPlacement, task: OpenTask) -> bool:
        return self.by_id[placement.task_id].spec.priority < task.spec.priority

    def _urgency(self, placement: TaskPlacement) -> tuple[int, int]:
        return (self.by_id[placement.task_id].spec.priority, -placement.assigned_at_ms)

    def _cools_off(self, task: OpenTask, address: Address) -> bool:
        failures = [outcome for outcome in self._failures(task) if outcome.node == address]
        if not failures:
            return False
        wait = milliseconds(backoff(self.timeouts.retry, self.timeouts.longest_retry, len(failures)))
        return self.now_ms < max(outcome.at_ms for outcome in failures) + wait

    def _failures(self, task: OpenTask) -> list[AssignmentOutcome]:
        return [
            outcome
            for outcome in self.outcomes[task.id]
            if outcome.state is AssignmentState.FAILED and not self._is_forgiven(task, outcome)
        ]

    def _is_forgiven(self, task: OpenTask, outcome: AssignmentOutcome) -> bool:
        forgiving = task.spec.restart.kind is not RestartKind.NEVER and task.spec.replicas != "every-node"
        return forgiving and outcome.at_ms < self.now_ms - milliseconds(self.timeouts.failures)

    def _forget(self, task: OpenTask) -> None:
        """Deletes outdated outcomes, so that the failures of a task that runs for months don't add up."""
        past = tuple(
            outcome.assignment_id
            for outcome in task.outcomes
            if outcome.spec_generation != task.generation
            or (outcome.state is AssignmentState.FAILED and self._is_forgiven(task, outcome))
        )
        if past:
            self.result.forgets.append(Forget(task.id, past))

    def _most_failures(self, task: OpenTask) -> int:
        once = 1 if task.spec.restart.kind is RestartKind.NEVER else self.timeouts.placements
        replicas = 1 if task.spec.replicas == "every-node" else task.spec.replicas
        return once + replicas - 1

    def _is_unfinished_somewhere(self, task: OpenTask, finished: set[Address]) -> bool:
        """Returns whether a healthy node that fits the task has not finished it yet."""
        return any(node.address not in finished and not shortfalls(node.machine, task.spec) for node in self.healthy)

    def _surplus(self, held: Sequence[Candidate], count: int) -> list[Candidate]:
        """Returns `count` nodes whose assignment is stopped because the task has fewer replicas.

        Nodes on which the task does not run yet come first, then those with the newest assignments.
        """
        order = sorted(held, key=self._progress)
        return order[: max(0, count)]

    def _progress(self, node: Candidate) -> tuple[bool, int, str]:
        placement = self.held[node.address]
        return (placement.state is AssignmentState.RUNNING, -placement.assigned_at_ms, node.address)

    def _start(self, task: OpenTask, node: Candidate, group: GroupPlace | None = None) -> None:
        before = self.held.get(node.address)
        if before is not None:
            self._stop(node, f"task {task.spec.name} with priority {task.spec.priority} needs the node")
        placement = TaskPlacement(
            id="",
            task_id=task.id,
            spec_generation=task.generation,
            state=AssignmentState.PENDING,
            assigned_at_ms=self.now_ms,
            group=group,
        )
        self.held[node.address] = placement
        self.by_task[task.id].append(node)
        self.result.starts.append(StartTask(node.address, task.id, group))

    def _stop(self, node: Candidate, because: str) -> None:
        placement = self.held.pop(node.address)
        self.by_task[placement.task_id].remove(node)
        self.result.stops.append(StopTask(node.address, placement.id, because))

    def _why_no_node(self, task: OpenTask, finished: set[Address]) -> str:
        others = [node for node in self.healthy if node.address not in finished]
        lacking = {node.address: shortfalls(node.machine, task.spec) for node in others}
        fit = [node for node in others if not lacking[node.address]]
        if not fit:
            return explain([short for short in lacking.values() if short])
        resting = sum(self._cools_off(task, node.address) for node in fit)
        busy = sum(self.held.get(node.address) is not None for node in fit)
        if resting:
            return f"it failed on {resting} of {len(fit)} fitting nodes, which wait before they try it again"
        return f"{busy} of {len(fit)} fitting nodes run tasks that are at least as urgent"

    def _conclude_every_node(
        self, task: OpenTask, done: Sequence[AssignmentOutcome], failed: Sequence[AssignmentOutcome]
    ) -> None:
        if failed:
            total = len(done) + len(failed)
            self._say(task, TaskState.FAILED, f"{len(failed)} of {total} nodes failed it: {failed[-1].detail}")
        else:
            self._say(task, TaskState.COMPLETED, "")

    def _fail(self, task: OpenTask, failed: Sequence[AssignmentOutcome]) -> None:
        times = "once" if len(failed) == 1 else f"{len(failed)} times"
        self._say(task, TaskState.FAILED, f"it failed {times}, the last time on {failed[-1].node}: {failed[-1].detail}")
        for node in list(self.by_task[task.id]):
            self._stop(node, "the task failed")

    def _say(self, task: OpenTask, state: TaskState, reason: str) -> None:
        self.result.verdicts.append(TaskVerdict(task.id, state, reason))

    def _is_past_deadline(self, task: OpenTask) -> bool:
        return task.spec.deadline_ms is not None and self.now_ms >= task.spec.deadline_ms
