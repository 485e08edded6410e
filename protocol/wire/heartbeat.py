"""The heartbeat: periodic report of a worker to its orchestrator, and the answer."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protocol.enumerations import WireEnum
from protocol.wire.assignments import AssignmentState
from protocol.wire.base import Identifier, LongText, Milliseconds, Name, PoolId, ShortText, WireModel
from protocol.wire.nodes import NodeState
from protocol.wire.tasks import Assignment

MAX_METRICS = 64
"""Maximum number of gauges in a heartbeat."""
MAX_COMMANDS = 16
"""Maximum number of commands in an answer, and of acknowledgements in a heartbeat."""


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
