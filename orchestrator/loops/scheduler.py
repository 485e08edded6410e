"""Carries out the schedule: looks at what changed, asks for a plan, writes its decisions, and says why what waits."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import structlog

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
from protocol.wire.heartbeat import Command, CommandKind, NodeState
from protocol.wire.tasks import AssignmentState, TaskState

MOST_CHANGES = 5000
IN_A_THREAD = 500
"""Pools larger than this are planned in a thread, so that heartbeats are answered meanwhile."""

ANYWAY = timedelta(seconds=5)
"""Time passes for tasks with deadlines, failures and drains, so they are looked at though nothing changed."""

ALL = timedelta(minutes=10)
"""Interval of complete re-reads, in case a change was missed."""

_log = structlog.get_logger(__name__)


class Scheduler:
    """One look at the schedule.

    Args:
        database: The pool's.
        nodes: Where nodes are kept.
        tasks: Where tasks are kept.
        assignments: Where assignments are kept.
        patience: How long to wait for what.
        clock: Whose time counts.
        lease: Of this loop.
    """

    def __init__(
        self,
        *,
        database: Database,
        nodes: NodeStore,
        tasks: TaskStore,
        assignments: AssignmentStore,
        patience: SchedulerTimeouts,
        clock: Clock,
        lease: LeaderLease,
    ) -> None:
        self._database = database
        self._nodes = nodes
        self._tasks = tasks
        self._assignments = assignments
        self._patience = patience
        self._clock = clock
        self._lease = lease
        self._snapshot = NodeCache(nodes, assignments)
        self._read_at: float | None = None
        self._planned_at = 0.0
        self._pending: set[Address] = set()
        self._time_matters = True

    async def tick(self) -> bool:
        """Makes and carries out a plan if anything changed; whether it did.

        Raises:
            StoreUnavailable: Redis is down; everything is read again when it is back.
        """
        before = self._lease.value
        if not await self._lease.hold():
            self._read_at = None
            return False
        if self._lease.value != before:
            self._read_at = None
        try:
            return await self._look()
        except SchedulerLeaseLost:
            _log.info("schedule-handed-over")
            self._read_at = None
            return False
        except Exception:
            # What was taken from the list of changes may not have been looked at.
            self._read_at = None
            raise

    async def _look(self) -> bool:
        now = self._clock.monotonic()
        changed = set(await self._nodes.take_changed(limit=MOST_CHANGES))
        if self._read_at is None or now - self._read_at >= ALL.total_seconds():
            await self._snapshot.read_all()
            self._read_at = now
        elif changed or self._pending:
            addresses = {address(name) for name in changed if name != "tasks"} | self._pending
            await self._snapshot.read(addresses)
        elif not self._time_matters or now - self._planned_at < ANYWAY.total_seconds():
            return False
        self._pending.clear()
        self._planned_at = now
        tasks = await self._tasks.open_tasks()
        now_ms = unix_ms(self._clock.now())
        candidates = list(self._snapshot.candidates.values())
        self._time_matters = any(_waits_for_time(task) for task in tasks) or any(
            node.state is NodeState.DRAINING and node.placement is not None for node in candidates
        )
        if len(candidates) > IN_A_THREAD:
            result = await asyncio.to_thread(plan, tasks, candidates, now_ms=now_ms, timeouts=self._patience)
        else:
            result = plan(tasks, candidates, now_ms=now_ms, timeouts=self._patience)
        await self._carry_out(result, {task.id: task for task in tasks}, now_ms)
        return True

    async def _carry_out(self, result: SchedulePlan, tasks: dict[str, OpenTask], now_ms: int) -> None:
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
            row = self._snapshot.rows[renewal.node]
            await self._assignments.renew(
                row,
                lease=self._lease.value,
                task_generation=tasks[self._task_of(renewal.node)].generation,
                restart=False,
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
        placement = self._snapshot.candidates[settle.node].placement
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
        # What the task wrote is asked for now, because its container will soon be gone.
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
        except Conflict as error:  # a node that takes no commands loses its last lines, and nothing else
            _log.info("log-not-asked-for", node=settle.node, reason=error.detail)
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
        placement = self._snapshot.candidates[node].placement
        return "" if placement is None else placement.task_id


def _waits_for_time(task: OpenTask) -> bool:
    """Returns whether time alone may change a task's plan: a deadline passed, or a failure is old enough."""
    return task.spec.deadline_ms is not None or any(
        outcome.state is AssignmentState.FAILED for outcome in task.outcomes
    )
