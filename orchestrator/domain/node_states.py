"""State machine of a node: one pure function over one table.

    discovered ──▶ invited ──▶ unhealthy ⇄ healthy ⇄ draining
        ▲             │             │         │          │
        │◀── expired ─┘             └────▶ dead ◀────────┘       (silent too long)
        │◀──────────── seen in discovery ───┤
        └◀──────────── seen in discovery ── evicted     banned ── unbanned ──▶ discovered

A node that joined on the ledger is `unhealthy` until its first heartbeat. The table maps a state and an event to a new
state and actions; it does not depend on time, Redis or the ledger. A node can leave every state without human action,
except `banned`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from protocol.wire.nodes import NodeState


class NodeEvent(StrEnum):
    """Event that may change a node's state."""

    LISTED = "listed"
    """A discovery service lists the node, and the node is not eligible for an invite; the reason is recorded."""
    SEEN = "seen"
    """A discovery service lists the node, which is eligible for an invite and not a member."""
    INVITE_POSTED = "invite-posted"
    INVITE_EXPIRED = "invite-expired"
    JOINED = "joined"
    """The ledger lists the node as a member."""
    HEARTBEAT = "heartbeat"
    """A heartbeat of a member arrived."""
    MISSED = "missed"
    """The deadline of the next heartbeat passed, so the node becomes unhealthy."""
    SILENT = "silent"
    """The last deadline passed without a heartbeat, so the node becomes dead."""
    DRAIN = "drain"
    """The pool owner or the contributor wants the node to finish its task and take no other."""
    RESUME = "resume"
    """The pool owner or the contributor ended a drain."""
    LEFT = "left"
    """The node left the pool on the ledger, by its own or its provider's transaction."""
    REMOVED = "removed"
    """The orchestrator removed the node from the pool on the ledger, without a penalty."""
    EVICTED = "evicted"
    BANNED = "banned"
    UNBANNED = "unbanned"


class NodeAction(StrEnum):
    """Side effect that a transition requests."""

    INVITE = "invite"
    """Sign an invite and post it to discovery."""
    AWAIT_JOIN = "await-join"
    """Set a deadline at the invite's expiry."""
    WATCH = "watch"
    """Set the deadline of the next heartbeat."""
    WATCH_LAST = "watch-last"
    """Set the deadline after which the node is dead."""
    UNWATCH = "unwatch"
    """Clear the deadline."""
    RELEASE = "release"
    """Assign the node's task to another node."""
    REMOVE = "remove"
    """Remove the node from the pool on the ledger."""
    KEEP = "keep"
    """Cancel a removal that has not been sent yet."""


@dataclass(frozen=True, slots=True)
class Transition:
    """The state after an event, and the actions that it requests."""

    state: NodeState
    actions: tuple[NodeAction, ...] = ()


_S, _E, _A = NodeState, NodeEvent, NodeAction

_GONE = (_A.RELEASE, _A.UNWATCH, _A.KEEP)
_DEAD = Transition(_S.DEAD, (_A.RELEASE, _A.UNWATCH, _A.REMOVE))
_LEFT = Transition(_S.DISCOVERED, _GONE)
_EVICTED = Transition(_S.EVICTED, _GONE)
_BANNED = Transition(_S.BANNED, _GONE)
_JOINED = Transition(_S.UNHEALTHY, (_A.WATCH_LAST, _A.KEEP))
_INVITE = Transition(_S.DISCOVERED, (_A.INVITE,))

TABLE: dict[NodeState, dict[NodeEvent, Transition]] = {
    _S.DISCOVERED: {
        _E.SEEN: _INVITE,
        _E.INVITE_POSTED: Transition(_S.INVITED, (_A.AWAIT_JOIN,)),
        _E.JOINED: _JOINED,
        _E.EVICTED: _EVICTED,
        _E.BANNED: _BANNED,
    },
    _S.INVITED: {
        _E.INVITE_EXPIRED: Transition(_S.DISCOVERED, (_A.UNWATCH,)),
        _E.JOINED: _JOINED,
        _E.EVICTED: _EVICTED,
        _E.BANNED: _BANNED,
    },
    _S.HEALTHY: {
        _E.HEARTBEAT: Transition(_S.HEALTHY, (_A.WATCH,)),
        _E.MISSED: Transition(_S.UNHEALTHY, (_A.WATCH_LAST,)),
        _E.SILENT: _DEAD,
        _E.DRAIN: Transition(_S.DRAINING, (_A.WATCH_LAST,)),
        _E.LEFT: _LEFT,
        _E.REMOVED: _LEFT,
        _E.EVICTED: _EVICTED,
        _E.BANNED: _BANNED,
    },
    _S.UNHEALTHY: {
        _E.HEARTBEAT: Transition(_S.HEALTHY, (_A.WATCH, _A.KEEP)),
        _E.SILENT: _DEAD,
        _E.DRAIN: Transition(_S.DRAINING, (_A.WATCH_LAST,)),
        _E.LEFT: _LEFT,
        _E.REMOVED: _LEFT,
        _E.EVICTED: _EVICTED,
        _E.BANNED: _BANNED,
    },
    _S.DRAINING: {
        _E.HEARTBEAT: Transition(_S.DRAINING, (_A.WATCH_LAST,)),
        _E.SILENT: _DEAD,
        _E.RESUME: Transition(_S.HEALTHY, (_A.WATCH,)),
        _E.LEFT: _LEFT,
        _E.REMOVED: _LEFT,
        _E.EVICTED: _EVICTED,
        _E.BANNED: _BANNED,
    },
    _S.DEAD: {
        # A dead node recovers with a heartbeat if it is still a member on the ledger; otherwise it is invited again.
        _E.HEARTBEAT: Transition(_S.HEALTHY, (_A.WATCH, _A.KEEP)),
        _E.JOINED: _JOINED,
        _E.SEEN: _INVITE,
        _E.LEFT: Transition(_S.DEAD, (_A.KEEP,)),
        _E.REMOVED: Transition(_S.DEAD, (_A.KEEP,)),
        _E.EVICTED: _EVICTED,
        _E.BANNED: _BANNED,
    },
    _S.EVICTED: {
        _E.SEEN: _INVITE,
        _E.JOINED: _JOINED,
        _E.BANNED: _BANNED,
    },
    _S.BANNED: {
        _E.UNBANNED: Transition(_S.DISCOVERED),
    },
}
"""All transitions. An event that is missing for a state changes nothing and requests no action."""

MEMBERS = frozenset({NodeState.HEALTHY, NodeState.UNHEALTHY, NodeState.DRAINING})
"""States of nodes that are members of the pool."""

_OVERDUE = {
    NodeState.INVITED: NodeEvent.INVITE_EXPIRED,
    NodeState.HEALTHY: NodeEvent.MISSED,
    NodeState.UNHEALTHY: NodeEvent.SILENT,
    NodeState.DRAINING: NodeEvent.SILENT,
}


def transition(state: NodeState, event: NodeEvent) -> Transition:
    """Returns the transition that `event` causes in `state`.

    An event that the table lacks keeps the state.
    """
    return TABLE[state].get(event, Transition(state))


def overdue(state: NodeState) -> NodeEvent | None:
    """Returns the event of a missed deadline in a state; None if the state has no deadline."""
    return _OVERDUE.get(state)
