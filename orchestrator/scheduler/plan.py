"""Inputs and decisions of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from orchestrator.scheduler.requirements import NodeHardware
from protocol.identifiers import Address
from protocol.wire.heartbeat import NodeState
from protocol.wire.tasks import AssignmentState, GroupPlace, TaskSpec, TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlacement:
    """Current assignment of a node."""

    id: str
    task_id: str
    spec_generation: int
    """Generation of the task that was sent to the node."""
    state: AssignmentState
    assigned_at_ms: int
    detail: str = ""
    group: GroupPlace | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A node as the scheduler sees it."""

    address: Address
    state: NodeState
    since_ms: int
    machine: NodeHardware
    placement: TaskPlacement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentOutcome:
    """Outcome of one assignment."""

    assignment_id: str
    node: Address
    spec_generation: int
    state: AssignmentState
    at_ms: int
    detail: str = ""
    group: GroupPlace | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTask:
    """A task that is neither completed, failed nor deleted."""

    id: str
    generation: int
    spec: TaskSpec
    created_at_ms: int
    outcomes: tuple[AssignmentOutcome, ...] = ()


@dataclass(frozen=True, slots=True)
class StopTask:
    """Ends an assignment of a node."""

    node: Address
    assignment_id: str
    because: str


@dataclass(frozen=True, slots=True)
class Settle:
    """Records the final state of an assignment that the node reported."""

    node: Address
    assignment_id: str
    state: AssignmentState
    detail: str


@dataclass(frozen=True, slots=True)
class Renew:
    """Sends the task's new generation to the node that runs it."""

    node: Address
    assignment_id: str


@dataclass(frozen=True, slots=True)
class StartTask:
    """Assigns a task to a node."""

    node: Address
    task_id: str
    group: GroupPlace | None = None


@dataclass(frozen=True, slots=True)
class TaskVerdict:
    """State of a task after the plan, with the reason."""

    task_id: str
    state: TaskState
    reason: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Deletes outcomes of a task's assignments that no later plan needs."""

    task_id: str
    assignment_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerTimeouts:
    """Time limits of the scheduler."""

    drain: timedelta = timedelta(minutes=10)
    """Time that a draining node may take to finish a task that ends by itself."""
    failures: timedelta = timedelta(hours=1)
    """Failures older than this no longer count."""
    retry: timedelta = timedelta(seconds=30)
    """Pause before a node gets a task again that failed there; doubled with each failure."""
    placements: int = 3
    """Failures of a replica after which its task fails; one if the task's restart policy is `never`."""


@dataclass(slots=True)
class SchedulePlan:
    """Decisions, written in this order: settle, stop, renew, start; then the state of each task; then forget."""

    settles: list[Settle] = field(default_factory=list)
    stops: list[StopTask] = field(default_factory=list)
    renewals: list[Renew] = field(default_factory=list)
    starts: list[StartTask] = field(default_factory=list)
    verdicts: list[TaskVerdict] = field(default_factory=list)
    forgets: list[Forget] = field(default_factory=list)
