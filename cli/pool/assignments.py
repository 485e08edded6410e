"""`muster pool assignments`: lists which node ran which task, and how that ended."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from cli.keys import resolve_address
from cli.output.listing import listing
from cli.output.printing import JsonOption, note, show_json, show_table
from cli.output.tables import Column, Columns
from cli.output.values import Ago
from cli.pool.connection import Manager, Where, find_task, open_orchestrator
from protocol.wire.assignments import AssignmentState
from protocol.wire.pool import AssignmentView

ASSIGNMENTS = Columns.of(
    Column("id", least=8),
    Column("task", least=8),
    "node",
    "state",
    Column("placed", drop=3),
    Column("ended", drop=2),
    Column("why", drop=1, least=12),
)


@listing(watch=True)
async def assignments(
    context: typer.Context,
    *,
    task: Annotated[str | None, typer.Option(help="Only assignments of this task (id or name).")] = None,
    node: Annotated[str | None, typer.Option(help="Only assignments of this node (address or key name).")] = None,
    state: Annotated[AssignmentState | None, typer.Option(help="Only assignments in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Number of newest assignments to show.")] = 100,
    where: Where = None,
    manager: Manager = None,
    as_json: JsonOption = False,
) -> None:
    """List assignments of tasks to nodes, newest first. Ended ones are kept for 7 days with their logs."""
    which = None if node is None else resolve_address(context.obj, node)
    found: list[AssignmentView] = []
    async with open_orchestrator(context.obj, where=where, manager=manager) as client:
        chosen = task  # a full id may be that of a deleted task
        if task is not None and not re.fullmatch("[0-9a-f]{32}", task):
            chosen = (await find_task(client, task)).id
        async for one in client.assignments(task=chosen, node=which, state=state, newest_first=True):
            found.append(one)
            if len(found) == limit:
                break
    if as_json:
        show_json(found)
        return
    show_table(ASSIGNMENTS, [_row(one) for one in found], empty="no such assignment is kept")
    if found:
        note("`muster pool logs --assignment ID` shows the output of one")


def _row(one: AssignmentView) -> tuple[object, ...]:
    ended = None if one.ended_at_ms is None else Ago(one.ended_at_ms)
    why = one.ended_because or one.detail
    return (one.id, one.task_name, one.node, one.state, Ago(one.assigned_at_ms), ended, why)
