"""The heartbeat: periodic report of a worker to its orchestrator, and the answer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protocol.enumerations import WireEnum
from protocol.wire.base import Identifier, LongText, Milliseconds, Name, PoolId, ShortText, WireModel
from protocol.wire.tasks import Assignment, AssignmentState

MAX_METRICS = 64
"""Maximum number of gauges in a heartbeat."""
MAX_COMMANDS = 16
"""Maximum number of commands in an answer, and of acknowledgements in a heartbeat."""


class NodeState(WireEnum):
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
    """Progress of the image's pull, error of the container engine, or exit status, as text."""
    exit_code: Annotated[int, Field(ge=-255, le=255)] | None = None
    restarts: Annotated[int, Field(ge=0, le=2**31)] = 0
    started_at_ms: Milliseconds | None = None


class Heartbeat(WireModel):
    """Body of `POST /v1/heartbeat`.

    It does not name the node: the signature of the request does.
    """

    pool_id: PoolId
    worker_version: ShortText
    assignment: AssignmentReport | None = None
    metrics: Annotated[dict[Name, float], Field(max_length=MAX_METRICS)] = {}
    """Gauges: CPU, memory and GPU use of the machine, and those that the task reported through the bridge."""
    acknowledged: Annotated[tuple[Identifier, ...], Field(max_length=MAX_COMMANDS)] = ()
    """Ids of commands that the worker has executed since the last answer."""
    draining: bool = False
    """Whether the contributor wants to leave. The worker then finishes its task, and the orchestrator assigns no new
    one.
    """


class CommandKind(WireEnum):
    """Kind of a command to a worker."""

    SEND_LOGS = "send-logs"
    """Push log lines of an assignment to `POST /v1/logs` until `until_ms`. `text` is the assignment's id, `since` the
    number of the first line. The assignment may have ended, because its last lines are requested before its container
    is removed.
    """
    DRAIN = "drain"
    """Finish the task, deliver its work, and take no other task."""
    RESUME = "resume"
    """Take tasks again after a drain."""
    SHOW_NOTICE = "show-notice"
    """Show `text` to the contributor."""


class Command(WireModel):
    """A command to a worker.

    Every heartbeat answer repeats it until the worker acknowledges it. Commands are idempotent.
    """

    id: Identifier
    kind: CommandKind
    text: LongText = ""
    since: Annotated[int, Field(ge=0)] = 0
    until_ms: Milliseconds = 0


class HeartbeatAnswer(WireModel):
    """Answer to a heartbeat.

    The orchestrator signs it, so that an attacker on the network path can't start containers.
    """

    state: NodeState
    assignment: Assignment | None
    reason: LongText = ""
    """Reason why the node has no assignment, as text."""
    commands: Annotated[tuple[Command, ...], Field(max_length=MAX_COMMANDS)] = ()
    next_interval_seconds: Annotated[float, Field(gt=0, le=3600)]
    server_time_ms: Milliseconds


MOST_SEQUENCE = 2**53 - 2
"""Maximum sequence number. It and its successor are exact as doubles, which Lua and many JSON parsers use."""


LONGEST_LINE = 8192
"""Maximum length of a log line, in characters."""
LINE_OVERHEAD = 100
"""Number of characters that a line takes in a batch in addition to its text."""
BATCH_LINES = 500
"""Maximum number of lines that a worker puts into a batch."""
BATCH_CHARACTERS = 200_000
"""Maximum number of characters that a worker puts into a batch. It fills a batch up to one of these two limits before
it sends another.
"""


class LogLine(WireModel):
    """One line of a task's output."""

    sequence: Annotated[int, Field(ge=0, le=MOST_SEQUENCE)]
    """Position in the assignment's log, from 0. A gap means that the worker dropped lines; a line with stream `worker`
    reports this.
    """
    time_ms: Milliseconds
    stream: Annotated[str, Field(pattern="^(stdout|stderr|worker)$", examples=["stdout"])]
    """Origin of the line: the task's standard output or error, or the worker itself."""
    text: Annotated[str, Field(max_length=LONGEST_LINE)]


class LogBatch(WireModel):
    """Body of `POST /v1/logs`, signed by the node."""

    assignment_id: Identifier
    lines: Annotated[tuple[LogLine, ...], Field(max_length=1000)]

    @property
    def has_room(self) -> bool:
        """Whether another line would have fitted into the batch.

        If so, the node had no further lines when it sent the batch.
        """
        size = sum(len(line.text) + LINE_OVERHEAD for line in self.lines)
        return len(self.lines) < BATCH_LINES and size + LONGEST_LINE + LINE_OVERHEAD <= BATCH_CHARACTERS


class LogReceipt(WireModel):
    """Answer to a batch of log lines."""

    next_sequence: Annotated[int, Field(ge=0)]
    """Sequence number of the next line to send. Lower ones are stored already."""
    wanted_until_ms: Milliseconds
    """Time until which the worker should push lines, because a client reads them; 0 to stop."""
