"""Routes of tasks, and of the groups of nodes that run a task together."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from orchestrator.api.access import IdentifierPath, Operator, Reader
from orchestrator.api.idempotency import OnceRoute, OperatorOnce
from orchestrator.api.paging import CreatedAfter, CreatedBefore, Limit, Order, Sort, read_page, split_label
from orchestrator.api.views import group_views
from orchestrator.api.waiting import Version, Wait, wait_for_change
from orchestrator.dependencies import dependencies_of
from orchestrator.scheduler.template_variables import check_variables
from orchestrator.store.tasks import TaskRow
from protocol.http.openapi import json_body
from protocol.http.preconditions import EntityTags
from protocol.wire.pool import GroupList
from protocol.wire.tasks import NewTask, Task, TaskPage, TaskPatch, TaskSecrets, TaskState

TASKS_AT_ONCE = 50
"""Maximum number of tasks that a filtered listing reads at once. The spec of one has up to 256 KiB."""

router = APIRouter(prefix="/v1", tags=["tasks"], route_class=OnceRoute)

Cursor = Annotated[
    str | None,
    Query(max_length=53, pattern="^[0-9]{1,20}(-[0-9a-f]{32})?$", description="`next_cursor` of the previous page"),
]


IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        description="ETag of the task, or a list of them; 412 if the owner has changed the task since",
    ),
]
IfNoneMatch = Annotated[
    str | None, Header(alias="If-None-Match", description="ETag of an earlier answer; 304 if the task is the same")
]
TAGGED: dict[str, Any] = {"headers": {"ETag": {"description": "Version of the task", "schema": {"type": "string"}}}}


@router.post("/tasks", status_code=201, responses={201: TAGGED}, openapi_extra=json_body(NewTask))
async def create_task(owner: OperatorOnce, request: Request, response: Response) -> Task:
    """Post a task.

    The task's secrets and registry password are stored encrypted, and no answer to the owner contains them.
    """
    new = owner.read(NewTask)
    check_variables(new.spec)
    row = await dependencies_of(request).tasks.create(new, actor=owner.name, key=owner.idempotency_key)
    return _tagged(row, response)


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
    page = await read_page(
        read,
        after=cursor,
        limit=limit,
        turns=dependencies_of(request).filtered_reads if is_filtered else None,
        wanted=wanted if is_filtered else None,
        at_once=TASKS_AT_ONCE,
    )
    return TaskPage(tasks=tuple(row.task for row in page.items), next_cursor=page.following)


@router.get("/tasks/{task_id}", response_model=Task, responses={200: TAGGED, 304: {"description": "Not modified"}})
async def get_task(
    owner: Reader,
    request: Request,
    response: Response,
    task_id: IdentifierPath,
    *,
    wait: Wait = 0,
    version: Version = None,
    if_none_match: IfNoneMatch = None,
) -> Task | Response:
    """Return one task; with `wait` and `version`, when it has changed, or after the wait."""
    known = EntityTags.parse(if_none_match, header="If-None-Match")
    dependencies = dependencies_of(request)
    tasks = dependencies.tasks
    await wait_for_change(
        dependencies, request, caller=owner.name, wait=wait, version=version, current=lambda: tasks.version(task_id)
    )
    row = await tasks.get(task_id)
    if known is not None and known.includes(_tag_of(row)):
        return Response(status_code=304, headers={"ETag": _tag_of(row)})
    return _tagged(row, response)


@router.patch("/tasks/{task_id}", responses={200: TAGGED}, openapi_extra=json_body(TaskPatch))
async def change_task(
    owner: OperatorOnce, request: Request, response: Response, task_id: IdentifierPath, if_match: IfMatch = None
) -> Task:
    """Change a task.

    A change makes a new generation, which replaces the running one on the task's nodes. Changes of replicas, priority
    and deadline make no new generation.
    """
    patch = owner.read(TaskPatch)
    if patch.spec is not None:
        check_variables(patch.spec)
    tasks = dependencies_of(request).tasks
    return _tagged(await tasks.patch(task_id, patch, actor=owner.name, only=_revisions(if_match)), response)


@router.put("/tasks/{task_id}/secrets", responses={200: TAGGED}, openapi_extra=json_body(TaskSecrets))
async def change_task_secrets(
    owner: Operator, request: Request, response: Response, task_id: IdentifierPath, if_match: IfMatch = None
) -> Task:
    """Replace a task's secrets or its registry credentials.

    The task's nodes replace their containers at once, by a new generation. A stopped, completed or failed task stays
    so, and gets the new secrets when it is started again. Secrets that equal the present ones change nothing.
    """
    tasks, new = dependencies_of(request).tasks, owner.read(TaskSecrets)
    row = await tasks.change_secrets(task_id, new, actor=owner.name, only=_revisions(if_match))
    return _tagged(row, response)


@router.delete("/tasks/{task_id}", status_code=204)
async def delete_task(owner: Operator, request: Request, task_id: IdentifierPath, if_match: IfMatch = None) -> Response:
    """Delete a task and stop its assignments."""
    await dependencies_of(request).tasks.delete(task_id, actor=owner.name, only=_revisions(if_match))
    return Response(status_code=204)


@router.get("/groups", tags=["groups"])
async def list_groups(_owner: Reader, request: Request) -> GroupList:
    """List the groups of nodes that run a task together, with their members and ranks."""
    return GroupList(groups=tuple(await group_views(dependencies_of(request))))


def _tag_of(row: TaskRow) -> str:
    """Returns the ETag of a task: its revision, which the owner's changes increase, and a hash of the whole answer."""
    return f'"{row.revision}.{hashlib.sha256(row.task.model_dump_json().encode()).hexdigest()[:16]}"'


def _tagged(row: TaskRow, response: Response) -> Task:
    response.headers["ETag"] = _tag_of(row)
    return row.task


def _revisions(if_match: str | None) -> frozenset[str] | None:
    """Returns the revisions that an `If-Match` names; None for any.

    The rest of the tag is not compared. A task's state changes without its owner, and such a change must not refuse the
    owner's request. A weak tag matches nothing (RFC 9110, section 13.1.1).
    """
    named = EntityTags.parse(if_match, header="If-Match")
    if named is None or named.any:
        return None
    return frozenset(tag[1:-1].partition(".")[0] for tag in named.tags if tag.startswith('"'))
