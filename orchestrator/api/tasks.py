"""Routes of tasks, and of the groups of nodes that run a task together."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from orchestrator.api.access import IdentifierPath, Operator, Reader
from orchestrator.api.idempotency import OnceRoute, OperatorOnce
from orchestrator.api.views import group_views
from orchestrator.dependencies import dependencies_of
from orchestrator.scheduler.template_variables import check_variables
from protocol.http.openapi import json_body
from protocol.wire.pool import GroupList
from protocol.wire.tasks import NewTask, Task, TaskPage, TaskPatch

router = APIRouter(prefix="/v1", tags=["tasks"], route_class=OnceRoute)

Cursor = Annotated[
    str | None, Query(max_length=32, pattern="^[0-9]{1,20}$", description="`next_cursor` of the last page")
]


@router.post("/tasks", status_code=201, openapi_extra=json_body(NewTask))
async def create_task(owner: OperatorOnce, request: Request) -> Task:
    """Post a task.

    The task's secrets and registry password are stored encrypted, and no answer to the owner contains them.
    """
    new = owner.read(NewTask)
    check_variables(new.spec)
    return await dependencies_of(request).tasks.create(new, actor=owner.name, key=owner.idempotency_key)


@router.get("/tasks")
async def list_tasks(
    _owner: Reader, request: Request, cursor: Cursor = None, limit: Annotated[int, Query(ge=1, le=500)] = 100
) -> TaskPage:
    """List tasks, oldest first."""
    rows, following = await dependencies_of(request).tasks.page(after=cursor, limit=limit)
    return TaskPage(tasks=tuple(row.task for row in rows), next_cursor=following)


@router.get("/tasks/{task_id}")
async def get_task(_owner: Reader, request: Request, task_id: IdentifierPath) -> Task:
    """Return one task."""
    return (await dependencies_of(request).tasks.get(task_id)).task


@router.patch("/tasks/{task_id}", openapi_extra=json_body(TaskPatch))
async def change_task(owner: OperatorOnce, request: Request, task_id: IdentifierPath) -> Task:
    """Change a task.

    A change makes a new generation, which replaces the running one on the task's nodes. Changes of replicas, priority
    and deadline make no new generation.
    """
    patch = owner.read(TaskPatch)
    if patch.spec is not None:
        check_variables(patch.spec)
    return await dependencies_of(request).tasks.patch(task_id, patch, actor=owner.name)


@router.delete("/tasks/{task_id}", status_code=204)
async def delete_task(owner: Operator, request: Request, task_id: IdentifierPath) -> Response:
    """Delete a task and stop its assignments."""
    await dependencies_of(request).tasks.delete(task_id, actor=owner.name)
    return Response(status_code=204)


@router.get("/groups", tags=["groups"])
async def list_groups(_owner: Reader, request: Request) -> GroupList:
    """List the groups of nodes that run a task together, with their members and ranks."""
    return GroupList(groups=tuple(await group_views(dependencies_of(request))))
