"""Views of a pool for its owner: nodes with their history, assignments and groups."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, IPvAnyAddress

from protocol.identifiers import WireAddress
from protocol.identity.scopes import Scope
from protocol.wire.assignments import AssignmentState, GroupPlace
from protocol.wire.base import Identifier, Labels, LongText, Milliseconds, Name, PoolId, ShortText, WireModel
from protocol.wire.logs import LogLine
from protocol.wire.nodes import Hardware, NodeState, Software

PAGE_PATH = "/page/"
"""Path of the pool owner's web page."""


class Caller(WireModel):
    """The authenticated caller of the owner's API."""

    name: str
    """Name of the token, or address of the manager."""
    scope: Scope


class PoolOverview(WireModel):
    """Answer of `GET /v1/pool`: the pool in numbers.

    Reading them is cheap for a pool of any size.
    """

    pool_id: PoolId
    service: WireAddress
    """Address of the orchestrator that answers."""
    release: ShortText
    """Version of the orchestrator's software."""
    run: Name | None
    """Name of the run that the pool works on; None if it has none."""
    time_ms: Milliseconds
    """Current time of the orchestrator's clock, from which a page computes ages."""
    nodes_known: Annotated[int, Field(ge=0)]
    nodes_expected: Annotated[int, Field(ge=0)]
    """Number of healthy, unhealthy and draining nodes, from which heartbeats are expected."""
    removals_waiting: Annotated[int, Field(ge=0)]
    """Number of dead nodes that are still members on the ledger."""
    tasks_open: Annotated[int, Field(ge=0)]
    """Number of tasks that should run and have not ended."""
    caller: Caller


class AssignmentView(WireModel):
    """An assignment of a task to a node, as the node reported it."""

    id: Identifier
    task_id: Identifier
    task_name: Name
    node: WireAddress
    generation: Annotated[int, Field(ge=1)]
    state: AssignmentState
    detail: LongText = ""
    exit_code: int | None = None
    restarts: int = 0
    assigned_at_ms: Milliseconds
    started_at_ms: Milliseconds | None = None
    ended_at_ms: Milliseconds | None = None
    """Time at which the assignment completed, failed, was stopped or was withdrawn; None while it lasts."""
    ended_because: str = ""
    group: GroupPlace | None = None
    kept_until_ms: Milliseconds | None = None
    """Time at which the orchestrator deletes the ended assignment with its log; None while the assignment lasts."""


class AssignmentPage(WireModel):
    """Answer of `GET /v1/assignments`."""

    assignments: tuple[AssignmentView, ...]
    next_cursor: str | None


class NodeView(WireModel):
    """One node, as the pool's owner and the node itself see it."""

    address: WireAddress
    state: NodeState
    since_ms: Milliseconds
    reason: str
    """Reason for the state, or why the node was not invited, as text."""
    member: bool
    """Whether the node is a member of the pool on the ledger, as far as the orchestrator has read the ledger."""
    provider: WireAddress | None = None
    worker_version: ShortText | None = None
    hardware: Hardware | None = None
    software: Software | None = None
    labels: Labels = {}
    last_seen_ms: Milliseconds | None = None
    """Time of the last heartbeat."""
    assignment: AssignmentView | None = None
    metrics: dict[str, float] = {}
    """Value of the requested gauge in the last heartbeat."""
    version: Annotated[int, Field(ge=0)] = 0
    """Number that every change raises, for blocking reads. A heartbeat that only renews time and metrics does not raise
    it."""


class NodeViewPage(WireModel):
    """Answer of `GET /v1/nodes`."""

    nodes: tuple[NodeView, ...]
    next_cursor: str | None


class AllowedNode(WireModel):
    """An active node, and the IP that its last heartbeat came from."""

    node: WireAddress
    ip: Annotated[IPvAnyAddress, Field(examples=["203.0.113.7"])]


class AllowList(WireModel):
    """Answer of `GET /v1/nodes/allowlist`: nodes that may download checkpoints now."""

    nodes: tuple[AllowedNode, ...]
    next_cursor: str | None


class HistoryEntry(WireModel):
    """One change of a node's state."""

    time_ms: Milliseconds
    before: NodeState
    after: NodeState
    event: str
    """Kind of the event from a fixed list: `heartbeat`, `missed`, `silent`, `joined`, …"""
    cause: str
    """Explanation of the event as text."""
    actor: str
    """Originator of the event: an address, `ledger`, `discovery`, `liveness`, or the name of an API token."""


class History(WireModel):
    """Answer of `GET /v1/nodes/{address}/history`.

    The newest entry is first. The number of entries per node is bounded.
    """

    entries: tuple[HistoryEntry, ...]


class NodeSelf(WireModel):
    """Answer of `GET /v1/nodes/me`, which a node requests about itself."""

    node: NodeView
    history: tuple[HistoryEntry, ...]


class NodeMetrics(WireModel):
    """Answer of `GET /v1/nodes/{address}/metrics`: gauges of the node's last heartbeat."""

    time_ms: Milliseconds | None
    metrics: dict[str, float]


class NodeLogs(WireModel):
    """Answer of `GET /v1/nodes/{address}/logs`."""

    assignment_id: Identifier | None
    lines: tuple[LogLine, ...]
    next_sequence: Annotated[int, Field(ge=0)]
    """Value for `since` in the next request."""


class Cause(WireModel):
    """Body of requests that may give a reason: ban, unban, drain, resume, restart."""

    reason: ShortText = ""


class GroupMember(WireModel):
    """A node in a group, with its rank."""

    rank: Annotated[int, Field(ge=0)]
    node: WireAddress
    assignment_id: Identifier
    state: AssignmentState


class GroupView(WireModel):
    """Nodes that run one task together.

    A rank without a member waits for a replacement node.
    """

    id: Identifier
    task_id: Identifier
    size: Annotated[int, Field(ge=2)]
    members: tuple[GroupMember, ...]


class GroupList(WireModel):
    """Answer of `GET /v1/groups`."""

    groups: tuple[GroupView, ...]
