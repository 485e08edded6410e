"""`muster pool logs` and `muster pool events`: show tasks' output and the pool's events."""

from __future__ import annotations

import asyncio
import re
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from cli.keys import resolve_address
from cli.output.printing import JsonOption, note, printable_json, show_json, warn
from cli.output.quantities import moment
from cli.pool.connection import Manager, Where, find_task, open_orchestrator, short, working_nodes
from cli.pool.filters import NewestOption, SinceOption, UntilOption, parsed_moment
from protocol.clients import OrchestratorClient
from protocol.clients.orchestrator import EVERY_EVENT, EventFilter
from protocol.errors import Conflict, InvalidInput, MusterError, NotFound
from protocol.identifiers import Address
from protocol.runtime.logs import printable

if TYPE_CHECKING:
    from protocol.wire.events import PoolEvent
    from protocol.wire.logs import LogLine
    from protocol.wire.tasks import Task

LOOK_FOR_NODES = timedelta(seconds=3)
"""Interval at which `logs --follow` searches for new nodes."""

Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Also print new lines or events as they come, until interrupted.")
]


async def logs(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="[NODE]", help="Address or key name; default: every node that runs a task.")
    ] = None,
    *,
    follow: Follow = False,
    task: Annotated[str | None, typer.Option(help="Only nodes that run this task (id or name).")] = None,
    assignment: Annotated[
        str | None, typer.Option(help="Id of an assignment, also an ended one, to show its lines.")
    ] = None,
    since: Annotated[int | None, typer.Option(min=0, help="Only lines from this sequence number on.")] = None,
    tail: Annotated[int, typer.Option(min=1, max=5000, help="Number of stored lines to print, the newest ones.")] = 200,
    where: Where = None,
    manager: Manager = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Show the output of tasks: the stored lines, and with --follow also new lines as they come."""
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        chosen = None if task is None else await find_task(client, task)
        if name is not None or assignment is not None:
            which = await _node_of(context, client, name, assignment)
            if follow:
                await _follow_one(client, which, assignment, since, tail, as_json=as_json, label=False)
            else:
                await _show_one(client, which, assignment, since, tail, as_json=as_json, label=False)
        elif follow:
            await _follow_all(client, chosen, tail, as_json=as_json)
        else:
            found = await working_nodes(client, chosen)
            if not found:
                what = "anything" if chosen is None else chosen.spec.name
                note(f"no node runs {what} now; `muster pool nodes` and `muster pool tasks` show why")
            for node in found:
                await _show_one(client, node.address, None, since, tail, as_json=as_json, label=True)


async def events(
    context: typer.Context,
    *,
    follow: Follow = False,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only this kind, or a prefix with a dot, such as node.; may be repeated.")
    ] = None,
    node: Annotated[str | None, typer.Option(help="Only events of this node (address or key name).")] = None,
    task: Annotated[str | None, typer.Option(help="Only events of this task (id or name).")] = None,
    assignment: Annotated[str | None, typer.Option(help="Only events of the assignment with this id.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    newest: NewestOption = False,
    after: Annotated[str | None, typer.Option(help="Only events after this id.")] = None,
    before: Annotated[str | None, typer.Option(help="Only events before this id.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Maximum number of events.")] = 100,
    where: Where = None,
    manager: Manager = None,
    as_json: JsonOption = False,
) -> None:
    """Show events of nodes, assignments and tasks. With --json and --follow, one object per line.

    Without filters these are the newest events, with filters the oldest that match, unless --newest. The orchestrator
    searches 10,000 events at a time; if more may match, the command says how to go on.
    """
    if follow and (newest or until is not None or before is not None):
        raise InvalidInput("--follow excludes --newest, --until and --before", hint="leave them out")
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        wanted = EventFilter(
            kinds=kind or (),
            node=None if node is None else resolve_address(context.obj, node),
            task=None if task is None else (await find_task(client, task)).id,
            assignment=assignment,
            since=parsed_moment(since),
        )
        page = await client.events(
            wanted=wanted,
            after=after,
            before=before,
            until=parsed_moment(until),
            newest_first=newest,
            limit=limit,
        )
        if as_json and not follow:
            show_json(page.events)
            return
        for event in page.events:
            _print_event(event, as_json=as_json)
        if not follow:
            if page.next_cursor not in {after, before} and (newest or wanted != EVERY_EVENT):
                note(f"further events: {'--before' if newest else '--after'} {page.next_cursor}")
            elif not page.events:
                note("no events yet" if wanted == EVERY_EVENT else "no such events")
            return
        async for event in client.follow_events(wanted=wanted, after=page.next_cursor):
            _print_event(event, as_json=as_json)


async def _node_of(
    context: typer.Context, client: OrchestratorClient, name: str | None, assignment: str | None
) -> Address:
    """Returns the named node, or the node of the assignment."""
    if name is not None:
        return resolve_address(context.obj, name)
    if assignment is None or not re.fullmatch("[0-9a-f]{32}", assignment):
        raise InvalidInput(
            "--assignment is not an id of 32 hex digits", hint="`muster pool assignments` lists them with their ids"
        )
    return (await client.assignment(assignment)).node


async def _show_one(
    client: OrchestratorClient,
    node: Address,
    assignment: str | None,
    since: int | None,
    tail: int,
    *,
    as_json: bool,
    label: bool,
) -> None:
    kept = await client.logs(node, assignment=assignment, since=since, tail=tail)
    if kept.assignment_id is None:
        note(f"{node} has not run anything yet")
    elif not kept.lines:
        note(f"{node} has sent no lines yet; lines arrive within two heartbeats: try again, or give --follow")
    for line in kept.lines:
        _print_line(node, line, as_json=as_json, label=label)


async def _follow_one(
    client: OrchestratorClient,
    node: Address,
    assignment: str | None,
    since: int | None,
    tail: int,
    *,
    as_json: bool,
    label: bool,
) -> None:
    async for line in client.follow_logs(node, assignment=assignment, since=since, tail=tail):
        _print_line(node, line, as_json=as_json, label=label)


async def _follow_all(client: OrchestratorClient, task: Task | None, tail: int, *, as_json: bool) -> None:
    """Follows the logs of all present and later assignments.

    An error in one log does not stop the others.
    """
    followed: set[str] = set()
    said = False

    async def follow(node: Address, assignment: str) -> None:
        try:
            await _follow_one(client, node, assignment, None, tail, as_json=as_json, label=True)
        except (NotFound, Conflict):
            followed.discard(assignment)  # the node is gone; its log is followed again if it returns
        except MusterError as error:
            warn(f"{short(node)}: {error.detail}")
            followed.discard(assignment)

    async with asyncio.TaskGroup() as group:
        while True:
            for view in await working_nodes(client, task):
                held = view.assignment
                if held is not None and held.id not in followed:
                    followed.add(held.id)
                    group.create_task(follow(view.address, held.id))
            if not followed and not said:
                note("no node runs a task yet; waiting")
                said = True
            await asyncio.sleep(LOOK_FOR_NODES.total_seconds())


def _print_line(node: Address, line: LogLine, *, as_json: bool, label: bool) -> None:
    if as_json:
        text = printable_json(f'{{"node":"{node}",{line.model_dump_json()[1:]}')
    else:
        text = f"{short(node)} │ {printable(line.text)}" if label else printable(line.text)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _print_event(event: PoolEvent, *, as_json: bool) -> None:
    if as_json:
        text = printable_json(event.model_dump_json())
    else:
        time = moment(event.time_ms)
        who = f" {short(event.node)}" if event.node is not None else ""
        stamp = "" if time is None else f"{time:%H:%M:%S} "
        detail = f": {event.detail}" if event.detail else ""
        text = printable(f"{stamp}{event.kind}{who}{detail} (by {event.actor})")
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
