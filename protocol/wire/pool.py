"""Views of a pool: nodes with their history, groups, events and webhooks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, IPvAnyAddress, SecretStr, StringConstraints, field_serializer

from protocol.identifiers import WireAddress
from protocol.identity.scopes import Scope
from protocol.wire.base import Identifier, Labels, LongText, Milliseconds, Name, PoolId, ShortText, WireModel
from protocol.wire.heartbeat import LogLine, NodeState
from protocol.wire.nodes import Hardware, Software
from protocol.wire.tasks import AssignmentState, GroupPlace

PAGE_PATH = "/page/"
"""Path of the pool owner's web page."""


class Caller(WireModel):
    """The caller, as the orchestrator knows it."""

    name: str
    """The token's name, or the manager's address."""
    scope: Scope


class PoolOverview(WireModel):
    """Answer of `GET /v1/pool`: the pool in numbers that are cheap to read at any size."""

    pool_id: PoolId
    service: WireAddress
    """The orchestrator that answers."""
    release: ShortText
    """Version of the orchestrator's software."""
    run: Name | None
    """The run that the pool works on."""
    time_ms: Milliseconds
    """Time of the orchestrator's clock; ages are relative to it."""
    nodes_known: Annotated[int, Field(ge=0)]
    nodes_expected: Annotated[int, Field(ge=0)]
    """Number of healthy, unhealthy and draining nodes, from which heartbeats are expected."""
    removals_waiting: Annotated[int, Field(ge=0)]
    """Number of dead nodes that are still members on the ledger."""
    tasks_open: Annotated[int, Field(ge=0)]
    """Number of tasks that should run and have not ended."""
    caller: Caller


class AssignmentView(WireModel):
    """Present or last assignment of a node, as the node reported it."""

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
    """End of the assignment: completed, failed, stopped or withdrawn."""
    ended_because: str = ""
    group: GroupPlace | None = None


class NodeView(WireModel):
    """One node as the pool's owner sees it, and as it sees itself."""

    address: WireAddress
    state: NodeState
    since_ms: Milliseconds
    reason: str
    """Reason for the state, or for not being invited, as text."""
    member: bool
    """Whether the node is a member of the pool on the ledger, as far as the orchestrator has read."""
    provider: WireAddress | None = None
    worker_version: ShortText | None = None
    hardware: Hardware | None = None
    software: Software | None = None
    labels: Labels = {}
    last_seen_ms: Milliseconds | None = None
    """Time of the last heartbeat."""
    assignment: AssignmentView | None = None
    metrics: dict[str, float] = {}
    """Requested gauge of the last heartbeat."""


class NodeViewPage(WireModel):
    """Answer of `GET /v1/nodes`."""

    nodes: tuple[NodeView, ...]
    next_cursor: str | None


class AllowedNode(WireModel):
    """An active node and the IP of its last heartbeat."""

    node: WireAddress
    ip: IPvAnyAddress


class AllowList(WireModel):
    """Answer of `GET /v1/nodes/allowlist`: nodes that may fetch checkpoints now."""

    nodes: tuple[AllowedNode, ...]
    next_cursor: str | None


class HistoryEntry(WireModel):
    """One entry in a node's history."""

    time_ms: Milliseconds
    before: NodeState
    after: NodeState
    event: str
    """Kind of event from a closed list: `heartbeat`, `missed`, `silent`, `joined`, …"""
    cause: str
    """Text of the event."""
    actor: str
    """Originator: an address, `ledger`, `discovery`, `liveness`, or the name of an API token."""


class History(WireModel):
    """Answer of `GET /v1/nodes/{address}/history`: newest first, bounded per node."""

    entries: tuple[HistoryEntry, ...]


class NodeSelf(WireModel):
    """Answer of `GET /v1/nodes/me`, a request that the node signs."""

    node: NodeView
    history: tuple[HistoryEntry, ...]


class NodeMetrics(WireModel):
    """Answer of `GET /v1/nodes/{address}/metrics`: gauges of the last heartbeat."""

    time_ms: Milliseconds | None
    metrics: dict[str, float]


class NodeLogs(WireModel):
    """Answer of `GET /v1/nodes/{address}/logs`."""

    assignment_id: Identifier | None
    lines: tuple[LogLine, ...]
    next_sequence: Annotated[int, Field(ge=0)]
    """Value of `since` for the next request."""


class Cause(WireModel):
    """Body of requests that need a reason: ban, unban, drain, restart."""

    reason: ShortText = ""


class GroupMember(WireModel):
    """A node in a group, by rank."""

    rank: Annotated[int, Field(ge=0)]
    node: WireAddress
    assignment_id: Identifier
    state: AssignmentState


class GroupView(WireModel):
    """Nodes that run one task together. A rank without a member awaits a replacement node."""

    id: Identifier
    task_id: Identifier
    size: Annotated[int, Field(ge=2)]
    members: tuple[GroupMember, ...]


class GroupList(WireModel):
    """Answer of `GET /v1/groups`."""

    groups: tuple[GroupView, ...]


class PoolEvent(WireModel):
    """Event of the pool, and body of a webhook's delivery."""

    id: Annotated[str, StringConstraints(pattern=r"^[0-9]{1,20}-[0-9]{1,20}$")]
    """Increasing number of the event; a reader continues after the last number that it has read."""
    time_ms: Milliseconds
    kind: Annotated[str, StringConstraints(pattern=r"^[a-z]+(\.[a-z-]+)+$", max_length=64)]
    """`node.joined`, `node.healthy`, `node.dead`, `task.completed`, `assignment.failed`, `command.acknowledged`, …"""
    detail: str
    actor: str
    node: WireAddress | None = None
    task_id: Identifier | None = None


class EventPage(WireModel):
    """Answer of `GET /v1/events`; oldest first."""

    events: tuple[PoolEvent, ...]
    next_cursor: str
    """Value of `after` for the next request."""


class NewWebhook(WireModel):
    """Body of `POST /v1/webhooks`."""

    url: Annotated[str, StringConstraints(max_length=2048, pattern=r"^https?://[\x21-\x7e]+$")]
    events: Annotated[tuple[Annotated[str, StringConstraints(max_length=64)], ...], Field(max_length=64)] = ()
    """Kinds of events, or prefixes that end with a dot, such as `node.`; empty for all."""


class Webhook(WireModel):
    """A webhook as the API returns it, without its secret."""

    id: Identifier
    url: str
    events: tuple[str, ...]
    created_at_ms: Milliseconds
    delivered: int
    """Events that the receiver accepted."""
    waiting: bool
    """Whether the last delivery failed and will be retried."""
    last_error: str = ""


class CreatedWebhook(WireModel):
    """Answer of `POST /v1/webhooks`, the only one that shows the secret."""

    webhook: Webhook
    secret: SecretStr
    """Key of the HMAC-SHA256 in each delivery's `X-Muster-Webhook-Signature`."""

    @field_serializer("secret", when_used="json")
    def _reveal(self, secret: SecretStr) -> str:
        return secret.get_secret_value()


class WebhookList(WireModel):
    """Answer of `GET /v1/webhooks`."""

    webhooks: tuple[Webhook, ...]
