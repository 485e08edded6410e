"""Loop that deletes old objects and records, on the instance that holds its leader lease."""

from __future__ import annotations

from datetime import timedelta

from orchestrator.dependencies import Dependencies
from orchestrator.domain.retention import RetentionPolicy
from orchestrator.loops.sweeper import Sweeper, build_sweeper
from orchestrator.metrics import RetentionMetrics
from orchestrator.store.assignments import AssignmentStore
from orchestrator.store.events import EventStore
from orchestrator.store.nodes import NodeStore
from orchestrator.store.tasks import TaskStore
from protocol.errors import Conflict, NotFound, PreconditionFailed
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger

EVENTS_AT_ONCE = 1000
TASKS_AT_ONCE = 100
NODES_AT_ONCE = 500
"""Maximum numbers of records that one round checks, so that no round delays other requests to Redis."""
ACTOR = "retention"
"""Actor of the events about deleted tasks."""

_log = get_logger(__name__)


class RecordSweeper:
    """Deletes old events, tasks, assignments and nodes in Redis, in bounded batches.

    Args:
        events: Store of events.
        tasks: Store of tasks.
        assignments: Store of assignments.
        nodes: Store of nodes.
        policy: Times for which records are kept.
        clock: Clock for the age of records.
        metrics: Metrics of deleted records.
        dry_run: True to delete only assignments, which always have an end.
    """

    def __init__(
        self,
        *,
        events: EventStore,
        tasks: TaskStore,
        assignments: AssignmentStore,
        nodes: NodeStore,
        policy: RetentionPolicy,
        clock: Clock,
        metrics: RetentionMetrics,
        dry_run: bool = False,
    ) -> None:
        self._events = events
        self._tasks = tasks
        self._assignments = assignments
        self._nodes = nodes
        self._policy = policy
        self._clock = clock
        self._metrics = metrics
        self._dry_run = dry_run
        self._task_cursor: str | None = None
        self._node_cursor: Address | None = None

    async def round(self) -> int:
        """Checks one batch of each kind of records; returns the number of deleted ones.

        Raises:
            StoreUnavailable: Redis is down.
        """
        deleted = {"assignment": await self._assignments.forget_ended(now_ms=unix_ms(self._clock.now()))}
        if not self._dry_run:
            deleted |= {"event": await self._forget_events(), "task": await self._forget_tasks()}
            deleted |= {"node": await self._forget_nodes()}
        found = {kind: number for kind, number in deleted.items() if number}
        for kind, number in found.items():
            self._metrics.count_deleted(kind, number=number)
        if found:
            _log.info("records-deleted", **{f"{kind}s": number for kind, number in found.items()})
        return sum(found.values())

    async def _forget_events(self) -> int:
        kept = self._policy.events
        return await self._events.forget_before(self._before_ms(kept), limit=EVENTS_AT_ONCE) if kept else 0

    async def _forget_tasks(self) -> int:
        if not self._policy.tasks:
            return 0
        before = self._before_ms(self._policy.tasks)
        rows, self._task_cursor = await self._tasks.ended_before(before, after=self._task_cursor, limit=TASKS_AT_ONCE)
        deleted = 0
        for row in rows:
            try:
                await self._tasks.delete(row.task.id, actor=ACTOR, only={row.revision})
            except (Conflict, NotFound, PreconditionFailed):  # the owner has just changed or deleted it
                continue
            deleted += 1
        return deleted

    async def _forget_nodes(self) -> int:
        if not self._policy.nodes:
            return 0
        page = await self._nodes.page(after=self._node_cursor, limit=NODES_AT_ONCE)
        self._node_cursor = page[-1] if len(page) == NODES_AT_ONCE else None
        return await self._nodes.forget_unlisted(page, before_ms=self._before_ms(self._policy.nodes))

    def _before_ms(self, kept: timedelta) -> int:
        return unix_ms(self._clock.now() - kept)


class Retention:
    """Runs both sweepers, on the instance that holds the leader lease.

    Args:
        records: Deletes records in Redis.
        objects: Deletes objects in the store.
        lease: The leader lease of this loop.
    """

    def __init__(self, *, records: RecordSweeper, objects: Sweeper, lease: LeaderLease) -> None:
        self._records = records
        self._objects = objects
        self._lease = lease

    async def round(self) -> int:
        """Runs one round; returns the number of deleted objects and records.

        Raises:
            StorageUnavailable: The object store is down; records were deleted.
            StoreUnavailable: Redis is down.
        """
        deleted = await self._records.round() if await self._lease.hold() else 0
        return deleted + await self._objects.round()


def build_retention(dependencies: Dependencies, *, lease: LeaderLease, metrics: RetentionMetrics) -> Retention:
    """Builds the loop of an orchestrator."""
    return Retention(
        records=RecordSweeper(
            events=dependencies.events,
            tasks=dependencies.tasks,
            assignments=dependencies.assignments,
            nodes=dependencies.nodes,
            policy=dependencies.settings.retention(),
            clock=dependencies.clock,
            metrics=metrics,
            dry_run=dependencies.settings.retention_dry_run,
        ),
        objects=build_sweeper(dependencies, lease=lease, metrics=metrics),
        lease=lease,
    )
