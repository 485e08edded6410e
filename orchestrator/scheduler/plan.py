"""Inputs of the scheduler's planner, and the decisions of which a plan consists."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from orchestrator.scheduler.requirements import NodeHardware
from protocol.identifiers import Address
from protocol.wire.assignments import AssignmentState, GroupPlace
from protocol.wire.nodes import NodeState
from protocol.wire.tasks import TaskSpec, TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlacement:
    """Current assignment of a task to a node."""

    id: str
    """Id of the assignment; empty while it is only planned."""
    task_id: str
    spec_generation: int
    """Generation of the task's specification that was sent to the node."""
    state: AssignmentState
    assigned_at_ms: int
    detail: str = ""
    group: GroupPlace | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A node to which a task may be assigned, with its current assignment."""

    address: Address
    state: NodeState
    since_ms: int
    machine: NodeHardware
    placement: TaskPlacement | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentOutcome:
    """Outcome of an ended assignment, which counts as a completion or failure of its task."""

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
    """Decision to end an assignment of a node, with the reason."""

    node: Address
    assignment_id: str
    because: str


@dataclass(frozen=True, slots=True)
class Settle:
    """Decision to end an assignment in the final state that its node reported."""

    node: Address
    assignment_id: str
    state: AssignmentState
    detail: str


@dataclass(frozen=True, slots=True)
class Renew:
    """Decision to send the task's new generation to a node that runs an older one."""

    node: Address
    assignment_id: str


@dataclass(frozen=True, slots=True)
class StartTask:
    """Decision to assign a task to a node."""

    node: Address
    task_id: str
    group: GroupPlace | None = None


@dataclass(frozen=True, slots=True)
class TaskVerdict:
    """Decision on the state of a task, with the reason."""

    task_id: str
    state: TaskState
    reason: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Decision to delete outcomes of a task's assignments that no later plan needs."""

    task_id: str
    assignment_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerTimeouts:
    """Time limits of the scheduler."""

    drain: timedelta = timedelta(minutes=10)
    """Time that a draining node may take to finish a task that ends by itself."""
    failures: timedelta = timedelta(hours=1)
    """Time for which a failure counts, unless the task is never restarted or runs on every node."""
    retry: timedelta = timedelta(seconds=30)
    """Pause before a node gets a task again that failed on it; each further failure doubles the pause."""
    longest_retry: timedelta = timedelta(hours=8)
    """Maximum of that pause."""
    placements: int = 3
    """Number of failures, on all nodes together, after which a task with one replica fails.

    Each further replica allows one more failure. For the restart policy `never` the number is 1.
    """


@dataclass(slots=True)
class SchedulePlan:
    """All decisions of one plan, in the order of the fields in which they have to be written."""

    settles: list[Settle] = field(default_factory=list)
    stops: list[StopTask] = field(default_factory=list)
    renewals: list[Renew] = field(default_factory=list)
    starts: list[StartTask] = field(default_factory=list)
    verdicts: list[TaskVerdict] = field(default_factory=list)
    forgets: list[Forget] = field(default_factory=list)
