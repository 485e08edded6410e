"""What nodes' tasks wrote, read by the pool's owner, now or after the container is gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel

from orchestrator.life import new_id
from orchestrator.parts import Parts, parts_of
from orchestrator.routes.access import NodePath, Reader
from orchestrator.routes.streams import Read, follow
from protocol.errors import Conflict, NotFound
from protocol.identifiers import Address
from protocol.signing import unix_ms
from protocol.wire.heartbeat import Command, CommandKind, LogLine
from protocol.wire.pool import NodeLogs

WANTED_MS = 60_000
"""A reader makes the node push its log for so long; one that follows asks again in good time."""

LINES_AT_ONCE = 1000

router = APIRouter(prefix="/v1/nodes", tags=["nodes"])


@router.get("/{node}/logs", response_model=NodeLogs)
async def logs(
    _owner: Reader,
    request: Request,
    node: NodePath,
    *,
    assignment: Annotated[str | None, Query(pattern="^[0-9a-f]{32}$", description="Default: the newest")] = None,
    since: Annotated[int | None, Query(ge=0, le=2**53, description="Lines from this sequence number on")] = None,
    tail: Annotated[int, Query(ge=1, le=5000, description="Without `since`: so many of the newest lines")] = 200,
    follow_: Annotated[bool, Query(alias="follow", description="Go on as server-sent events")] = False,
) -> Response | NodeLogs:
    """The lines of an assignment's log. Reading makes the node push what it has not pushed yet."""
    parts = parts_of(request)
    row = await parts.nodes.get_known(node)
    identifier = assignment or row.assignment_id or row.last_assignment_id
    if identifier is None:
        if follow_:
            raise Conflict(f"{node} has not run anything yet", code="no-assignment", retryable=True)
        return NodeLogs(assignment_id=None, lines=(), next_sequence=0)
    held = (await parts.assignments.views([identifier])).get(identifier)
    if held is None or held.node != node:
        raise NotFound(f"{node} has no assignment {identifier}", hint="logs are kept for a week", code="no-assignment")
    await _ask_for_more(parts, node, identifier)
    lines = await _first(parts, identifier, since=since, tail=tail)
    if not follow_:
        return NodeLogs(
            assignment_id=identifier, lines=tuple(lines), next_sequence=lines[-1].sequence + 1 if lines else since or 0
        )
    return follow(parts, request, _reader(parts, node, identifier, lines, since or 0))


def _reader(parts: Parts, node: Address, identifier: str, first: Sequence[LogLine], since: int) -> Read:
    waiting = list(first)
    following = first[-1].sequence + 1 if first else since

    async def read() -> Sequence[tuple[str, BaseModel]]:
        nonlocal following
        if waiting:
            found = list(waiting)
            waiting.clear()
        else:
            await _ask_for_more(parts, node, identifier)
            found = await parts.assignments.lines(identifier, since=following, limit=LINES_AT_ONCE)
        if found:
            following = found[-1].sequence + 1
        return [(str(line.sequence), line) for line in found]

    return read


async def _first(parts: Parts, identifier: str, *, since: int | None, tail: int) -> list[LogLine]:
    if since is not None:
        return await parts.assignments.lines(identifier, since=since, limit=LINES_AT_ONCE)
    return await parts.assignments.last_lines(identifier, limit=tail)


async def _ask_for_more(parts: Parts, node: Address, identifier: str) -> None:
    """Leaves the node a command to push its log, unless one that is still good was left before."""
    now = unix_ms(parts.clock.now())
    until = await parts.assignments.wanted_until(identifier)
    if until > now + WANTED_MS // 2:
        return
    following, _ = await parts.assignments.want_lines(identifier, until_ms=now + WANTED_MS)
    command = Command(
        id=new_id(), kind=CommandKind.SEND_LOGS, text=identifier, since=following, until_ms=now + WANTED_MS
    )
    try:
        await parts.nodes.leave_command(node, command)
    except Conflict:
        return  # commands wait already because the node does not speak: what is kept is all there is
