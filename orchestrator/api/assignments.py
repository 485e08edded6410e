"""Routes of assignments: which node ran which task, since when, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Request

from orchestrator.api.access import IdentifierPath, Reader
from orchestrator.api.paging import Limit, Order, Sort, read_page
from orchestrator.dependencies import Dependencies, dependencies_of
from protocol.identifiers import Address, WireAddress
from protocol.wire.assignments import AssignmentState
from protocol.wire.pool import AssignmentPage, AssignmentView

router = APIRouter(prefix="/v1", tags=["assignments"])

Cursor = Annotated[
    str | None,
    Query(max_length=47, pattern="^[0-9]{14}-[0-9a-f]{32}$", description="`next_cursor` of the previous page"),
]
States = Annotated[
    list[AssignmentState], Query(max_length=len(AssignmentState), description="Only these states; may be repeated")
]
OfNode = Annotated[
    WireAddress | None, Query(pattern="^0x[0-9a-fA-F]{40}$", description="Only assignments of this node")
]


@router.get("/assignments")
async def list_assignments(
    _owner: Reader,
    request: Request,
    *,
    task: Annotated[
        str | None, Query(pattern="^[0-9a-f]{32}$", description="Only assignments of this task, also of a deleted one")
    ] = None,
    node: OfNode = None,
    state: States = [],  # noqa: B006 - FastAPI copies the default
    sort: Sort = Order.OLDEST,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> AssignmentPage:
    """List assignments, current and ended ones, by the time when they were placed.

    Ended assignments and their logs are kept for 7 days, at most 50,000 of them.
    """
    return await _page(
        dependencies_of(request), task=task, node=node, states=state, sort=sort, cursor=cursor, limit=limit
    )


@router.get("/assignments/{assignment_id}")
async def get_assignment(_owner: Reader, request: Request, assignment_id: IdentifierPath) -> AssignmentView:
    """Return one assignment."""
    return await dependencies_of(request).assignments.get(assignment_id)


@router.get("/tasks/{task_id}/assignments", tags=["tasks"])
async def list_task_assignments(
    _owner: Reader,
    request: Request,
    task_id: IdentifierPath,
    *,
    node: OfNode = None,
    state: States = [],  # noqa: B006 - FastAPI copies the default
    sort: Sort = Order.OLDEST,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> AssignmentPage:
    """List the assignments of a task, current and ended ones.

    Those of a deleted task are in `/v1/assignments?task=ID`.
    """
    dependencies = dependencies_of(request)
    await dependencies.tasks.get(task_id)
    return await _page(dependencies, task=task_id, node=node, states=state, sort=sort, cursor=cursor, limit=limit)


async def _page(
    dependencies: Dependencies,
    *,
    task: str | None,
    node: Address | None,
    states: Sequence[AssignmentState],
    sort: Order,
    cursor: str | None,
    limit: int,
) -> AssignmentPage:
    async def read(after: str | None, size: int) -> list[tuple[str, AssignmentView | None]]:
        return await dependencies.assignments.page(
            node=node, task=task, after=after, limit=size, newest_first=sort is Order.NEWEST
        )

    def wanted(one: AssignmentView) -> bool:
        return (not states or one.state in states) and (task is None or one.task_id == task)

    is_filtered = bool(states) or (task is not None and node is not None)
    page = await read_page(
        read,
        after=cursor,
        limit=limit,
        turns=dependencies.filtered_reads if is_filtered else None,
        wanted=wanted if is_filtered else None,
    )
    return AssignmentPage(assignments=tuple(page.items), next_cursor=page.following)
