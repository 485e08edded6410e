"""Routes with which the pool's owner lists, restarts, drains and bans nodes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from orchestrator.api.access import NodePath, Reader
from orchestrator.api.idempotency import AdminOnce, OnceRoute, OperatorOnce
from orchestrator.api.paging import read_page, split_label
from orchestrator.api.views import node_views
from orchestrator.api.waiting import Version, Wait, wait_for_change
from orchestrator.dependencies import Dependencies, dependencies_of
from orchestrator.domain.node_states import NodeEvent
from orchestrator.store.assignments import check_renewed
from orchestrator.store.database import new_id
from orchestrator.store.idempotency import created_id
from protocol.errors import Conflict
from protocol.http.deprecation import Deprecation
from protocol.http.openapi import json_body
from protocol.http.tokens import OwnerRequest
from protocol.identifiers import Address, address
from protocol.identity.signing import unix_ms
from protocol.wire.heartbeat import Command, CommandKind
from protocol.wire.nodes import NodeState
from protocol.wire.pool import Cause, History, NodeMetrics, NodeView, NodeViewPage

router = APIRouter(prefix="/v1/nodes", tags=["nodes"], route_class=OnceRoute)

Cursor = Annotated[
    str | None, Query(max_length=42, pattern="^0x[0-9a-fA-F]{40}$", description="`next_cursor` of the previous page")
]

BAN_WITHOUT_REASON = Deprecation(
    since=datetime(2026, 12, 1, tzinfo=UTC),
    sunset=datetime(2027, 12, 1, tzinfo=UTC),
    link="/docs",
    route=("POST", "/v1/nodes/{node}/ban"),
)
"""Announces that a ban without a reason will be refused. Wire version 1 can't begin to require a field."""


@router.get("")
async def list_nodes(
    _owner: Reader,
    request: Request,
    *,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
    state: Annotated[
        list[NodeState], Query(max_length=len(NodeState), description="Only these states; may be repeated")
    ] = [],  # noqa: B006 - FastAPI copies the default
    task: Annotated[str | None, Query(pattern="^[0-9a-f]{32}$", description="Only nodes that hold this task")] = None,
    label: Annotated[str | None, Query(max_length=264, description="Only nodes with this `name=value`")] = None,
    metric: Annotated[
        str | None, Query(max_length=63, description="Gauge of the last heartbeat to return with each node")
    ] = None,
) -> NodeViewPage:
    """List nodes in the order of their addresses."""
    dependencies = dependencies_of(request)
    name, value = split_label(label) if label is not None else ("", "")

    async def read(position: str | None, size: int) -> list[tuple[str, NodeView | None]]:
        found = await dependencies.nodes.page(after=None if position is None else address(position), limit=size)
        rows = await dependencies.nodes.get_many(found)
        chosen = [row for row in rows if not state or row.state in state]
        views = {view.address: view for view in await node_views(dependencies, chosen, metric=metric)}
        return [(node, views.get(node)) for node in found]

    def wanted(view: NodeView) -> bool:
        held = view.assignment if view.assignment is not None and view.assignment.ended_at_ms is None else None
        return (task is None or (held is not None and held.task_id == task)) and (
            label is None or view.labels.get(name) == value
        )

    is_filtered = bool(state) or task is not None or label is not None
    turns = dependencies.filtered_reads if is_filtered else None
    page = await read_page(read, after=cursor, limit=limit, turns=turns, wanted=wanted if is_filtered else None)
    return NodeViewPage(
        nodes=tuple(page.items), next_cursor=None if page.following is None else address(page.following)
    )


@router.get("/{node}")
async def get_node(
    owner: Reader, request: Request, node: NodePath, wait: Wait = 0, version: Version = None
) -> NodeView:
    """Return one node with its assignment; with `wait` and `version`, when it has changed, or after the wait.

    Heartbeats that only renew `last_seen_ms` and metrics are no change.
    """
    dependencies = dependencies_of(request)
    nodes = dependencies.nodes
    await wait_for_change(
        dependencies, request, caller=owner.name, wait=wait, version=version, current=lambda: nodes.version(node)
    )
    return await _view(dependencies, node)


@router.get("/{node}/history")
async def list_node_history(
    _owner: Reader, request: Request, node: NodePath, limit: Annotated[int, Query(ge=1, le=256)] = 100
) -> History:
    """Return the node's state changes, newest first, with time, cause and actor."""
    dependencies = dependencies_of(request)
    await dependencies.nodes.get_known(node)
    return History(entries=await dependencies.nodes.history(node, limit=limit))


@router.get("/{node}/metrics")
async def get_node_metrics(_owner: Reader, request: Request, node: NodePath) -> NodeMetrics:
    """Return the gauges of the node's last heartbeat."""
    dependencies = dependencies_of(request)
    await dependencies.nodes.get_known(node)
    time_ms, gauges = await dependencies.nodes.metrics(node)
    return NodeMetrics(time_ms=time_ms, metrics=gauges)


@router.post("/{node}/restart", openapi_extra=json_body(Cause, required=False))
async def restart_node(owner: OperatorOnce, request: Request, node: NodePath) -> NodeView:
    """Make the node replace its task's container."""
    dependencies = dependencies_of(request)
    cause = _cause(owner, "the owner asked for a restart")
    row = await dependencies.nodes.get_known(node)
    if row.assignment_id is None:
        raise Conflict(
            f"{node} runs nothing that could be restarted",
            hint="`muster pool tasks` shows why no task runs there",
            code="no-assignment",
        )
    done = await dependencies.assignments.renew(
        row,
        lease="",
        task_generation=None,
        restart=created_id("restart", owner.name, owner.idempotency_key),
        now_ms=unix_ms(dependencies.clock.now()),
        why=cause,
        actor=owner.name,
    )
    check_renewed(done, node)
    return await _view(dependencies, node)


@router.post("/{node}/drain", openapi_extra=json_body(Cause, required=False))
async def drain_node(owner: OperatorOnce, request: Request, node: NodePath) -> NodeView:
    """Let the node finish its task, and assign no other task to it until `resume`."""
    dependencies = dependencies_of(request)
    await dependencies.nodes.get_known(node)
    serving = (NodeState.HEALTHY, NodeState.UNHEALTHY, NodeState.DRAINING)
    cause = _cause(owner, "the owner drains it")
    before, result = await dependencies.transitions.apply(
        node,
        NodeEvent.DRAIN,
        cause=cause,
        actor=owner.name,
        fields={"drain": "owner"},
        only_from=serving,
    )
    if before not in serving:
        raise Conflict(
            f"{node} is {before} and runs nothing that could be drained",
            hint="only healthy, unhealthy and draining nodes can be drained",
            code="not-serving",
        )
    if result.state is NodeState.DRAINING and before is not NodeState.DRAINING:
        await dependencies.nodes.leave_command(node, Command(id=new_id(), kind=CommandKind.DRAIN, text=cause))
    return await _view(dependencies, node)


@router.post("/{node}/resume", openapi_extra=json_body(Cause, required=False))
async def resume_node(owner: OperatorOnce, request: Request, node: NodePath) -> NodeView:
    """End a drain."""
    dependencies = dependencies_of(request)
    await dependencies.nodes.get_known(node)
    before, _ = await dependencies.transitions.apply(
        node,
        NodeEvent.RESUME,
        cause=_cause(owner, "the owner resumes it"),
        actor=owner.name,
        fields={"drain": ""},
        only_from=(NodeState.DRAINING,),
    )
    if before is not NodeState.DRAINING:
        raise Conflict(
            f"{node} is {before}, not draining",
            hint="only a draining node can be resumed; `muster pool node ADDRESS` shows its state",
            code="not-draining",
        )
    await dependencies.nodes.leave_command(node, Command(id=new_id(), kind=CommandKind.RESUME))
    return await _view(dependencies, node)


@router.post("/{node}/ban", openapi_extra=json_body(Cause, required=False))
async def ban_node(owner: AdminOnce, request: Request, response: Response, node: NodePath) -> NodeView:
    """Ban the node on the ledger and in this orchestrator.

    The orchestrator's settings must name the keystore of the pool's manager. A ban needs a `reason`, which is public on
    the ledger, and shown with the node and in the event. A ban without one is deprecated.
    """
    dependencies = dependencies_of(request)
    cause = _cause(owner, "")
    if not cause:
        cause = "the owner banned it and gave no reason"
        for name, value in BAN_WITHOUT_REASON.headers:
            response.headers[name.decode("ascii")] = value.decode("ascii")
    await dependencies.ledger.ban(node, reason=cause)
    dependencies.status_cache.forget(node)
    await dependencies.transitions.apply(node, NodeEvent.BANNED, cause=cause, actor=owner.name, fields={"member": "0"})
    return await _view(dependencies, node)


@router.post("/{node}/unban", openapi_extra=json_body(Cause, required=False))
async def unban_node(owner: AdminOnce, request: Request, node: NodePath) -> NodeView:
    """Lift the ban on the ledger and in this orchestrator; the node may be invited again."""
    dependencies = dependencies_of(request)
    cause = _cause(owner, "the owner lifted the ban")
    await dependencies.ledger.unban(node)
    dependencies.status_cache.forget(node)
    await dependencies.transitions.apply(node, NodeEvent.UNBANNED, cause=cause, actor=owner.name)
    return await _view(dependencies, node)


async def _view(dependencies: Dependencies, node: Address) -> NodeView:
    return (await node_views(dependencies, [await dependencies.nodes.get_known(node)]))[0]


def _cause(owner: OwnerRequest, otherwise: str) -> str:
    return (owner.read(Cause).reason.strip() if owner.body else "") or otherwise
