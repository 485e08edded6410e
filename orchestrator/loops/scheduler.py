"""Loop of the scheduler: reads changed nodes and tasks, plans, and writes the decisions."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from orchestrator.loops.node_cache import NodeCache
from orchestrator.scheduler.plan import AssignmentOutcome, OpenTask, SchedulePlan, SchedulerTimeouts, Settle
from orchestrator.scheduler.planner import brief, plan
from orchestrator.store.assignments import AssignmentStore, SchedulerLeaseLost
from orchestrator.store.database import Database, new_id
from orchestrator.store.nodes import NodeStore
from orchestrator.store.scripts import WriteTaskState
from orchestrator.store.tasks import TaskStore
from protocol.errors import Conflict
from protocol.identifiers import Address, address
from protocol.identity.signing import unix_ms
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.runtime.threads import run_in_thread
from protocol.wire.assignments import AssignmentState
from protocol.wire.heartbeat import Command, CommandKind
from protocol.wire.nodes import NodeState
from protocol.wire.tasks import TaskState

MAX_CHANGES = 5000
"""Maximum number of changed nodes that one round takes from the list of changes."""
THREAD_ABOVE = 500
"""Pools with more nodes are planned in a thread, so that the event loop answers heartbeats meanwhile."""

REPLAN_EVERY = timedelta(seconds=5)
"""Interval of planning while no node or task changes, but a task has a deadline or a failure, or a node drains.

In these cases the plan may change because time passes.
"""

REREAD_EVERY = timedelta(minutes=10)
"""Interval at which all nodes are read again, in case a change was missed."""

_log = get_logger(__name__)


class Scheduler:
    """Plans the assignments of tasks to nodes and writes the plan.

    Args:
        database: The pool's database.
        nodes: Store of nodes.
        tasks: Store of tasks.
        assignments: Store of assignments.
        timeouts: Time limits of the planner.
        clock: Clock of deadlines and intervals.
        lease: The leader lease of this loop.
    """

    def __init__(
        self,
        *,
        database: Database,
        nodes: NodeStore,
        tasks: TaskStore,
        assignments: AssignmentStore,
        timeouts: SchedulerTimeouts,
        clock: Clock,
        lease: LeaderLease,
    ) -> None:
        self._database = database
        self._nodes = nodes
        self._tasks = tasks
        self._assignments = assignments
        self._timeouts = timeouts
        self._clock = clock
        self._lease = lease
        self._cache = NodeCache(nodes, assignments)
        self._read_at: float | None = None
        self._planned_at = 0.0
        self._pending: set[Address] = set()
        self._time_dependent = True

    async def tick(self) -> bool:
        """Makes and writes a plan if anything changed; returns whether it made one.

        Raises:
            StoreUnavailable: Redis is down; the next round reads everything again.
        """
        before = self._lease.value
        if not await self._lease.hold():
            self._read_at = None
            return False
        if self._lease.value != before:
            self._read_at = None
        try:
            return await self._plan_changes()
        except SchedulerLeaseLost:
            _log.info("schedule-handed-over")
            self._read_at = None
            return False
        except Exception:
            # The changes that this round took from the list may not be planned yet, so the next round reads all nodes.
            self._read_at = None
            raise

    async def _plan_changes(self) -> bool:
        now = self._clock.monotonic()
        changed = set(await self._nodes.take_changed(limit=MAX_CHANGES))
        if self._read_at is None or now - self._read_at >= REREAD_EVERY.total_seconds():
            await self._cache.read_all()
            self._read_at = now
        elif changed or self._pending:
            addresses = {address(name) for name in changed if name != "tasks"} | self._pending
            await self._cache.read(addresses)
        elif not self._time_dependent or now - self._planned_at < REPLAN_EVERY.total_seconds():
            return False
        self._pending.clear()
        self._planned_at = now
        tasks = await self._tasks.open_tasks()
        now_ms = unix_ms(self._clock.now())
        candidates = list(self._cache.candidates.values())
        self._time_dependent = any(_waits_for_time(task) for task in tasks) or any(
            node.state is NodeState.DRAINING and node.placement is not None for node in candidates
        )
        if len(candidates) > THREAD_ABOVE:
            result = await run_in_thread(plan, tasks, candidates, now_ms=now_ms, timeouts=self._timeouts)
        else:
            result = plan(tasks, candidates, now_ms=now_ms, timeouts=self._timeouts)
        await self._write_plan(result, {task.id: task for task in tasks}, now_ms)
        return True

    async def _write_plan(self, result: SchedulePlan, tasks: dict[str, OpenTask], now_ms: int) -> None:
        await asyncio.gather(*(self._settle(settle, now_ms) for settle in result.settles))
        await asyncio.gather(
            *(
                self._assignments.end(
                    lease=self._lease.value,
                    node=stop.node,
                    identifier=stop.assignment_id,
                    state=AssignmentState.STOPPED,
                    why=stop.because,
                    now_ms=now_ms,
                    outcome=None,
                )
                for stop in result.stops
            )
        )
        for renewal in result.renewals:
            row = self._cache.rows[renewal.node]
            await self._assignments.renew(
                row,
                lease=self._lease.value,
                task_generation=tasks[self._task_of(renewal.node)].generation,
                restart=None,
                now_ms=now_ms,
                why="the task was changed",
                actor="scheduler",
            )
        for start in range(0, len(result.starts), 256):
            await asyncio.gather(
                *(
                    self._assignments.place(
                        lease=self._lease.value,
                        node=one.node,
                        identifier=new_id(),
                        task_id=one.task_id,
                        task_name=tasks[one.task_id].spec.name,
                        task_generation=tasks[one.task_id].generation,
                        group=one.group,
                        now_ms=now_ms,
                    )
                    for one in result.starts[start : start + 256]
                )
            )
        for verdict in result.verdicts:
            await self._database.run(
                WriteTaskState(
                    lease=self._lease.value,
                    task=verdict.task_id,
                    generation=tasks[verdict.task_id].generation,
                    state=verdict.state,
                    reason=verdict.reason,
                    now_ms=now_ms,
                    over=verdict.state in {TaskState.COMPLETED, TaskState.FAILED},
                )
            )
        for forget in result.forgets:
            await self._tasks.forget_outcomes(forget.task_id, forget.assignment_ids)
        for decisions in (result.settles, result.stops, result.renewals, result.starts):
            self._pending |= {decision.node for decision in decisions}

    async def _settle(self, settle: Settle, now_ms: int) -> None:
        placement = self._cache.candidates[settle.node].placement
        if placement is None:
            return
        outcome = AssignmentOutcome(
            assignment_id=settle.assignment_id,
            node=settle.node,
            spec_generation=placement.spec_generation,
            state=settle.state,
            at_ms=now_ms,
            detail=brief(settle.detail),
            group=placement.group,
        )
        # The task's last log lines are requested now, because the worker will soon delete its container.
        following, _ = await self._assignments.want_lines(settle.assignment_id, until_ms=now_ms + 60_000)
        command = Command(
            id=new_id(),
            kind=CommandKind.SEND_LOGS,
            text=settle.assignment_id,
            since=following,
            until_ms=now_ms + 60_000,
        )
        try:
            await self._nodes.leave_command(settle.node, command)
        except Conflict as error:  # the node's command queue is full, so only its last log lines are lost
            _log.info("log-not-requested", node=settle.node, reason=error.detail)
        await self._assignments.end(
            lease=self._lease.value,
            node=settle.node,
            identifier=settle.assignment_id,
            state=settle.state,
            why=brief(settle.detail) or f"it {settle.state}",
            now_ms=now_ms,
            outcome=outcome,
        )

    def _task_of(self, node: Address) -> str:
        placement = self._cache.candidates[node].placement
        return "" if placement is None else placement.task_id


def _waits_for_time(task: OpenTask) -> bool:
    """Returns whether the plan of a task may change without a change of the pool.

    A deadline may pass, or a failure may become old enough for another attempt.
    """
    return task.spec.deadline_ms is not None or any(
        outcome.state is AssignmentState.FAILED for outcome in task.outcomes
    )
