"""State machine of a node: one pure function over one table.

    discovered ──▶ invited ──▶ unhealthy ⇄ healthy ⇄ draining
        ▲             │             │         │          │
        │◀── expired ─┘             └────▶ dead ◀────────┘       (silent too long)
        │◀──────────── seen in discovery ───┤
        └◀──────────── seen in discovery ── evicted     banned ── unbanned ──▶ discovered

`unhealthy` is also where a node begins that joined on the ledger and has not spoken yet. Nothing here knows of time,
Redis or the ledger: events come in, a state and actions come out. Every state but banned has a way back that needs no
person; banned has one that needs one (design, section 7).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from protocol.wire.heartbeat import NodeState


class NodeEvent(StrEnum):
    """Event of a node."""

    LISTED = "listed"
    """A discovery service lists it, and it may not be invited: it is only noted, with the reason."""
    SEEN = "seen"
    """A discovery service lists it, it is no member, and it may be invited."""
    INVITE_POSTED = "invite-posted"
    INVITE_EXPIRED = "invite-expired"
    JOINED = "joined"
    """The ledger has it as a member."""
    HEARTBEAT = "heartbeat"
    """A member spoke."""
    MISSED = "missed"
    """The first deadline passed in silence."""
    SILENT = "silent"
    """The last deadline passed in silence."""
    DRAIN = "drain"
    """The owner or the contributor wants it to finish and take nothing new."""
    RESUME = "resume"
    LEFT = "left"
    """It left the pool on the ledger, by its own wish or its provider's."""
    REMOVED = "removed"
    """It was taken from the pool on the ledger without blame."""
    EVICTED = "evicted"
    BANNED = "banned"
    UNBANNED = "unbanned"


class NodeAction(StrEnum):
    """Side effect that a transition requests."""

    INVITE = "invite"
    """Sign an invite and leave it at discovery."""
    AWAIT_JOIN = "await-join"
    """Watch for the end of the invite's life."""
    WATCH = "watch"
    """Set the deadline of the next heartbeat."""
    WATCH_LAST = "watch-last"
    """Set the last deadline: after it the node is dead."""
    UNWATCH = "unwatch"
    """Expect nothing from it any more."""
    RELEASE = "release"
    """Give what it ran to somebody else."""
    REMOVE = "remove"
    """Take it from the pool on the ledger."""
    KEEP = "keep"
    """Forget a removal that has not happened yet."""


@dataclass(frozen=True, slots=True)
class Transition:
    """The state after an event, and what to do because of it."""

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
        # A dead node that is still a member on the ledger may simply speak again; one that is not is invited again.
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
"""The whole life. A pair that is not here changes nothing and asks for nothing."""

MEMBERS = frozenset({NodeState.HEALTHY, NodeState.UNHEALTHY, NodeState.DRAINING})
"""States of nodes that the orchestrator counts on being members of the pool."""

_OVERDUE = {
    NodeState.INVITED: NodeEvent.INVITE_EXPIRED,
    NodeState.HEALTHY: NodeEvent.MISSED,
    NodeState.UNHEALTHY: NodeEvent.SILENT,
    NodeState.DRAINING: NodeEvent.SILENT,
}


def transition(state: NodeState, event: NodeEvent) -> Transition:
    """Returns where `event` takes a node that is in `state`, and what follows. Total: no pair is an error."""
    return TABLE[state].get(event, Transition(state))


def overdue(state: NodeState) -> NodeEvent | None:
    """Returns the event of a missed deadline; None if no heartbeat was due."""
    return _OVERDUE.get(state)
