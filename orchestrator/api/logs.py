"""Routes of task logs. The orchestrator keeps logs after the container was deleted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel

from orchestrator.api.access import IdentifierPath, NodePath, Reader
from orchestrator.api.streams import EVENTS_DESCRIPTION, Read, follow
from orchestrator.dependencies import Dependencies, dependencies_of
from orchestrator.store.database import new_id
from orchestrator.store.nodes import NodeRow
from protocol.errors import Conflict, NotFound
from protocol.http.openapi import event_stream
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.wire.heartbeat import Command, CommandKind
from protocol.wire.logs import LogLine
from protocol.wire.pool import NodeLogs

WANTED_MS = 60_000
"""Time for which a node pushes its log after a request for the log, in milliseconds. An open stream repeats the
request."""

LINES_AT_ONCE = 1000
"""Maximum number of lines in one read."""

PUSH_MS = 2_000
"""Time that a node takes to push its first lines after it received the command, in milliseconds."""
LONGEST_BACKLOG_WAIT_MS = 15_000
"""Maximum wait of a new stream for the node's first push, in milliseconds. The node receives the command to push with
the answer to its next heartbeat, so the wait depends on the heartbeat interval."""

router = APIRouter(prefix="/v1", tags=["nodes"])

STREAM = event_stream(
    EVENTS_DESCRIPTION.format("LogLine"),
    'id: 7\ndata: {"sequence":7,"time_ms":1767225600000,"stream":"stdout","text":"step 3"}\n\n',
)

Since = Annotated[int | None, Query(ge=0, le=2**53, description="Lines from this sequence number on")]
Tail = Annotated[
    int,
    Query(
        ge=0,
        le=5000,
        description="Number of newest lines to start with, unless `since` is given; 0 with `follow`: only new lines",
    ),
]
LastEventId = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        max_length=16,
        pattern="^[0-9]{1,16}$",
        description="With `follow`: continue after this line, instead of `since` and `tail`",
    ),
]
Follow = Annotated[bool, Query(alias="follow", description="Stream further lines as server-sent events")]


@router.get("/nodes/{node}/logs", response_model=NodeLogs, responses=STREAM)
async def get_node_logs(
    _owner: Reader,
    request: Request,
    node: NodePath,
    *,
    assignment: Annotated[str | None, Query(pattern="^[0-9a-f]{32}$", description="Default: the newest")] = None,
    since: Since = None,
    tail: Tail = 200,
    follow_: Follow = False,
    last_event_id: LastEventId = None,
) -> Response | NodeLogs:
    """Return lines of the log of a node's assignment.

    `Last-Event-ID` needs `assignment`, because the newest assignment may have changed since the last event.

    The request also makes the node push the lines that it has not pushed yet.
    """
    dependencies = dependencies_of(request)
    row = await dependencies.nodes.get_known(node)
    identifier = assignment or row.assignment_id or row.last_assignment_id
    if identifier is None:
        if follow_:
            raise Conflict(
                f"{node} has not run anything yet",
                hint="wait until it has a task; `muster pool nodes` shows why it has none",
                code="no-assignment",
                retryable=True,
            )
        return NodeLogs(assignment_id=None, lines=(), next_sequence=0)
    held = (await dependencies.assignments.views([identifier])).get(identifier)
    if held is None or held.node != node:
        raise NotFound(
            f"{node} has no assignment {identifier}",
            hint=f"`GET /v1/assignments?node={node}` lists those whose logs are kept",
            code="no-assignment",
        )
    if follow_ and last_event_id is not None and assignment is not None:
        since = int(last_event_id) + 1
    return await _logs(request, row, identifier, since=since, tail=tail, follows=follow_)


@router.get("/assignments/{assignment_id}/logs", response_model=NodeLogs, responses=STREAM, tags=["assignments"])
async def get_assignment_logs(
    _owner: Reader,
    request: Request,
    assignment_id: IdentifierPath,
    *,
    since: Since = None,
    tail: Tail = 200,
    follow_: Follow = False,
    last_event_id: LastEventId = None,
) -> Response | NodeLogs:
    """Return lines of an assignment's log, also after the assignment has ended.

    The request also makes the node push the lines that it has not pushed yet.
    """
    dependencies = dependencies_of(request)
    held = await dependencies.assignments.get(assignment_id)
    row = await dependencies.nodes.get(held.node)
    if follow_ and last_event_id is not None:
        since = int(last_event_id) + 1
    return await _logs(request, row, assignment_id, since=since, tail=tail, follows=follow_)


async def _logs(
    request: Request, row: NodeRow, identifier: str, *, since: int | None, tail: int, follows: bool
) -> Response | NodeLogs:
    dependencies, node = dependencies_of(request), row.address
    is_current = await _ask_for_more(dependencies, node, identifier)
    if since is None and tail == 0:
        since = await dependencies.assignments.next_sequence(identifier)
    lines = await _first(dependencies, identifier, since=since, tail=tail)
    if not follows:
        return NodeLogs(
            assignment_id=identifier, lines=tuple(lines), next_sequence=lines[-1].sequence + 1 if lines else since or 0
        )
    backlog = None
    if since is None and not is_current and identifier == row.assignment_id:
        now = unix_ms(dependencies.clock.now())
        wait_ms = min((row.interval_ms or 0) + PUSH_MS, LONGEST_BACKLOG_WAIT_MS)
        backlog = Backlog(tail, opened_ms=now, wait_until_ms=now + wait_ms)
    return follow(
        dependencies, request, reader(dependencies, node, identifier, lines, since=since or 0, backlog=backlog)
    )


class Backlog:
    """Lines written before a stream was opened, some of which the node may not have pushed yet.

    Args:
        tail: Maximum number of these lines to show.
        opened_ms: Time when the stream was opened, Unix ms; all later lines are shown.
        wait_until_ms: End of the wait for the node's push, Unix ms.
    """

    def __init__(self, tail: int, *, opened_ms: int, wait_until_ms: int) -> None:
        self.wait_until_ms = wait_until_ms
        self.is_over = False
        """True once a line has arrived that was written after the stream was opened."""
        self._tail = tail
        self._opened_ms = opened_ms
        self._held: list[LogLine] = []

    def add(self, lines: Sequence[LogLine]) -> None:
        """Adds lines and drops the oldest ones if there are more than `tail`."""
        held = [*self._held, *lines]
        new = next((at for at, line in enumerate(held) if line.time_ms >= self._opened_ms), len(held))
        self.is_over = new < len(held)
        self._held = held[max(0, new - self._tail) :]

    def take(self) -> list[LogLine]:
        """Returns and removes the lines to show."""
        held, self._held = self._held, []
        return held


def reader(
    dependencies: Dependencies,
    node: Address,
    identifier: str,
    first: Sequence[LogLine],
    *,
    since: int = 0,
    backlog: Backlog | None = None,
) -> Read:
    """Returns a function that reads the next lines of a stream.

    Args:
        dependencies: Dependencies of the orchestrator.
        node: The node.
        identifier: Id of the assignment.
        first: Stored lines with which the stream begins.
        since: Sequence number from which the stream continues if `first` is empty.
        backlog: Holds lines back until the node's first push; if it is None, each line is shown at once.
    """
    waiting = list(first)
    following = first[-1].sequence + 1 if first else since

    async def read() -> Sequence[tuple[str, BaseModel]]:
        nonlocal following, backlog
        found, pushed = list(waiting), False
        if found:
            waiting.clear()
        else:
            await _ask_for_more(dependencies, node, identifier)
            found = await dependencies.assignments.lines(identifier, since=following, limit=LINES_AT_ONCE)
            pushed = bool(found)
        if found:
            following = found[-1].sequence + 1
        if backlog is not None:
            backlog.add(found)
            if pushed and (backlog.is_over or not await dependencies.assignments.more_lines_come(identifier)):
                found, backlog = backlog.take(), None
            elif unix_ms(dependencies.clock.now()) < backlog.wait_until_ms:
                found = []
            else:
                found = backlog.take()
        return [(str(line.sequence), line) for line in found]

    return read


async def _first(dependencies: Dependencies, identifier: str, *, since: int | None, tail: int) -> list[LogLine]:
    if since is not None:
        return await dependencies.assignments.lines(identifier, since=since, limit=LINES_AT_ONCE)
    return await dependencies.assignments.last_lines(identifier, limit=tail)


async def _ask_for_more(dependencies: Dependencies, node: Address, identifier: str) -> bool:
    """Sends the node a command to push its log, unless an earlier command is still valid.

    Returns:
        True if an earlier command is still valid.
    """
    now = unix_ms(dependencies.clock.now())
    until = await dependencies.assignments.wanted_until(identifier)
    if until > now + WANTED_MS // 2:
        return True
    following, _ = await dependencies.assignments.want_lines(identifier, until_ms=now + WANTED_MS)
    command = Command(
        id=new_id(), kind=CommandKind.SEND_LOGS, text=identifier, since=following, until_ms=now + WANTED_MS
    )
    with suppress(Conflict):  # the command queue is full because the node sends no heartbeats
        await dependencies.nodes.leave_command(node, command)
    return until > now
