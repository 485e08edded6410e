"""Routes of tasks, and of the groups of nodes that run a task together."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from orchestrator.api.access import IdentifierPath, Operator, Reader
from orchestrator.api.paging import CreatedAfter, CreatedBefore, Limit, Order, Sort, read_page, split_label
from orchestrator.api.views import group_views
from orchestrator.api.waiting import Version, Wait, wait_for_change
from orchestrator.dependencies import dependencies_of
from orchestrator.scheduler.template_variables import check_variables
from orchestrator.store.tasks import TaskRow
from protocol.http.openapi import json_body
from protocol.wire.pool import GroupList
from protocol.wire.tasks import IDEMPOTENCY_HEADER, NewTask, Task, TaskPage, TaskPatch, TaskState

router = APIRouter(prefix="/v1", tags=["tasks"])

Cursor = Annotated[
    str | None,
    Query(max_length=53, pattern="^[0-9]{1,20}(-[0-9a-f]{32})?$", description="`next_cursor` of the previous page"),
]


IdempotencyKey = Annotated[
    str | None,
    Header(
        alias=IDEMPOTENCY_HEADER,
        pattern="^[0-9a-f]{32}$",
        description="32 random hex digits. A repeated post with the same digits returns the same task",
    ),
]


@router.post("/tasks", status_code=201, openapi_extra=json_body(NewTask))
async def create_task(owner: Operator, request: Request, idempotency_key: IdempotencyKey = None) -> Task:
    """Post a task.

    The task's secrets and registry password are stored encrypted, and no answer to the owner contains them.
    """
    new = owner.read(NewTask)
    check_variables(new.spec)
    return await dependencies_of(request).tasks.create(new, actor=owner.name, key=idempotency_key)


@router.get("/tasks")
async def list_tasks(
    _owner: Reader,
    request: Request,
    *,
    state: Annotated[
        list[TaskState], Query(max_length=len(TaskState), description="Only these states; may be repeated")
    ] = [],  # noqa: B006 - FastAPI copies the default
    name: Annotated[str | None, Query(max_length=63, description="Only tasks with this name")] = None,
    label: Annotated[
        str | None, Query(max_length=264, description="Only tasks whose selector has this `name=value`")
    ] = None,
    created_after_ms: CreatedAfter = None,
    created_before_ms: CreatedBefore = None,
    sort: Sort = Order.OLDEST,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> TaskPage:
    """List tasks by the time of their creation."""
    tasks = dependencies_of(request).tasks
    of_label = None if label is None else split_label(label)

    async def read(after: str | None, size: int) -> list[tuple[str, TaskRow | None]]:
        return await tasks.page(
            after=after,
            limit=size,
            newest_first=sort is Order.NEWEST,
            created_after_ms=created_after_ms,
            created_before_ms=created_before_ms,
        )

    def wanted(row: TaskRow) -> bool:
        task = row.task
        return (
            (not state or task.state in state)
            and (name is None or task.spec.name == name)
            and (of_label is None or task.spec.selector.labels.get(of_label[0]) == of_label[1])
        )

    is_filtered = bool(state) or name is not None or label is not None
    page = await read_page(read, after=cursor, limit=limit, wanted=wanted if is_filtered else None)
    return TaskPage(tasks=tuple(row.task for row in page.items), next_cursor=page.following)


@router.get("/tasks/{task_id}")
async def get_task(
    _owner: Reader, request: Request, task_id: IdentifierPath, wait: Wait = 0, version: Version = None
) -> Task:
    """Return one task; with `wait` and `version`, when it has changed, or after the wait."""
    dependencies = dependencies_of(request)
    tasks = dependencies.tasks
    await wait_for_change(dependencies, request, wait=wait, version=version, current=lambda: tasks.version(task_id))
    return (await tasks.get(task_id)).task


@router.patch("/tasks/{task_id}", openapi_extra=json_body(TaskPatch))
async def change_task(owner: Operator, request: Request, task_id: IdentifierPath) -> Task:
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
