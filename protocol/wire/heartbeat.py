"""Heartbeat: periodic report of a worker to its orchestrator, and the response."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from protocol.wire.base import Identifier, LongText, Milliseconds, Name, PoolId, ShortText, WireModel
from protocol.wire.tasks import Assignment, AssignmentState

MAX_METRICS = 64
MAX_COMMANDS = 16


class NodeState(StrEnum):
    """State of a node, as the orchestrator sees it."""

    DISCOVERED = "discovered"
    INVITED = "invited"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DEAD = "dead"
    DRAINING = "draining"
    EVICTED = "evicted"
    BANNED = "banned"


class AssignmentReport(WireModel):
    """Progress of a worker with its assignment."""

    id: Identifier
    generation: Annotated[int, Field(ge=1)]
    state: AssignmentState
    detail: LongText = ""
    """Progress of the pull, error of the engine, or exit status, as text."""
    exit_code: Annotated[int, Field(ge=-255, le=255)] | None = None
    restarts: Annotated[int, Field(ge=0, le=2**31)] = 0
    started_at_ms: Milliseconds | None = None


class Heartbeat(WireModel):
    """Body of `POST /v1/heartbeat`. The sender is known only from the signature."""

    pool_id: PoolId
    worker_version: ShortText
    assignment: AssignmentReport | None = None
    metrics: Annotated[dict[Name, float], Field(max_length=MAX_METRICS)] = {}
    """Compact gauges: cpu, memory, gpu use, and gauges that the task reported through the bridge."""
    acknowledged: Annotated[tuple[Identifier, ...], Field(max_length=MAX_COMMANDS)] = ()
    """Commands executed since the last response."""
    draining: bool = False
    """The contributor wants to leave: the worker finishes its task, and the orchestrator assigns no new one."""


class CommandKind(StrEnum):
    """Kind of a command to a worker."""

    SEND_LOGS = "send-logs"
    """Push the log lines of the assignment whose id is `text`, from `since` on, until `until_ms`, to `POST /v1/logs`.

    The assignment may have ended: its last lines are requested before its container is removed."""
    DRAIN = "drain"
    """Finish the task, deliver its work, take no other task."""
    RESUME = "resume"
    """Take work again after a drain."""
    SHOW_NOTICE = "show-notice"
    """Show `text` to the contributor."""


class Command(WireModel):
    """A command that heartbeat answers repeat until the worker acknowledges it. Commands are idempotent."""

    id: Identifier
    kind: CommandKind
    text: LongText = ""
    since: Annotated[int, Field(ge=0)] = 0
    until_ms: Milliseconds = 0


class HeartbeatAnswer(WireModel):
    """Answer to a heartbeat; signed by the orchestrator, so that no party on the path can start containers."""

    state: NodeState
    assignment: Assignment | None
    reason: LongText = ""
    """Reason why there is no assignment, as text."""
    commands: Annotated[tuple[Command, ...], Field(max_length=MAX_COMMANDS)] = ()
    next_interval_seconds: Annotated[float, Field(gt=0, le=3600)]
    server_time_ms: Milliseconds


MOST_SEQUENCE = 2**53 - 2
"""Largest sequence number. It and its successor are exact as doubles, which Lua and many JSON parsers use."""


LONGEST_LINE = 8192
LINE_OVERHEAD = 100
"""Characters of a line in a batch in addition to its text."""
BATCH_LINES = 500
BATCH_CHARACTERS = 200_000
"""A node fills each batch up to one of these two limits before it sends another."""


class LogLine(WireModel):
    """One line of a task's output."""

    sequence: Annotated[int, Field(ge=0, le=MOST_SEQUENCE)]
    """Position in the assignment's log, from 0; gaps mean that the worker dropped lines; a line of stream `worker` says
    so."""
    time_ms: Milliseconds
    stream: Annotated[str, Field(pattern="^(stdout|stderr|worker)$")]
    text: Annotated[str, Field(max_length=LONGEST_LINE)]


class LogBatch(WireModel):
    """Body of `POST /v1/logs`, signed by the node."""

    assignment_id: Identifier
    lines: Annotated[tuple[LogLine, ...], Field(max_length=1000)]

    @property
    def has_room(self) -> bool:
        """True if another line would have fitted: the node had no further lines when it sent this batch."""
        size = sum(len(line.text) + LINE_OVERHEAD for line in self.lines)
        return len(self.lines) < BATCH_LINES and size + LONGEST_LINE + LINE_OVERHEAD <= BATCH_CHARACTERS


class LogReceipt(WireModel):
    """Answer to a batch of log lines."""

    next_sequence: Annotated[int, Field(ge=0)]
    """Number of the next line; lower ones are stored already."""
    wanted_until_ms: Milliseconds
    """Time until which the worker pushes lines, because a client reads them; 0 to stop."""
