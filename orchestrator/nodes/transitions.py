"""Applies events to nodes: reads the node's row, looks up the transition, and writes it.

It retries if another writer changed the row meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from orchestrator.domain.heartbeat_interval import HeartbeatInterval
from orchestrator.domain.node_states import NodeAction, NodeEvent, Transition, transition
from orchestrator.store.nodes import NodeRow, NodeStore
from orchestrator.store.scripts import WriteTransition
from protocol.errors import Unavailable
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from protocol.wire.nodes import NodeState

MOST_TRIES = 16
REMOVAL_DELAY = timedelta(seconds=2)
"""Delay before a dead node is removed from the ledger, so that one transaction can remove several nodes."""

_log = get_logger(__name__)


class NodeTransitions:
    """Applies events of the state machine in `domain/node_states.py` to the rows of nodes.

    Args:
        nodes: Store of nodes.
        heartbeat_interval: Heartbeat interval, from which deadlines follow.
        clock: Clock of timestamps and deadlines.
        invite_life: Validity of an invite.
    """

    def __init__(
        self, nodes: NodeStore, *, heartbeat_interval: HeartbeatInterval, clock: Clock, invite_life: timedelta
    ) -> None:
        self._nodes = nodes
        self._heartbeat_interval = heartbeat_interval
        self._clock = clock
        self._invite_life = invite_life

    async def apply(
        self,
        address: Address,
        event: NodeEvent,
        *,
        cause: str,
        actor: str,
        fields: Mapping[str, str] | None = None,
        only_from: Sequence[NodeState] | None = None,
    ) -> tuple[NodeState, Transition]:
        """Applies an event to a node; returns the state before it and the transition.

        Args:
            address: The node; an unknown one starts as discovered.
            event: The event.
            cause: Reason that is stored in the node's history.
            actor: Name of the owner's token, or of the component, that caused the event.
            fields: Further fields of the row to write.
            only_from: States from which the event applies; in any other state nothing changes.

        Raises:
            Unavailable: Other writers changed the row in all 16 attempts.
            StoreUnavailable: Redis is down.
        """
        for _ in range(MOST_TRIES):
            row = await self._nodes.get(address)
            if only_from is not None and row.state not in only_from:
                return row.state, Transition(row.state)
            result = transition(row.state, event)
            change = self.change(row, event, result, cause=cause, actor=actor, fields=fields)
            if change is None or await self._nodes.write(change):
                return row.state, result
        raise Unavailable(f"other writers changed node {address} in all {MOST_TRIES} attempts", hint="try again")

    def change(
        self,
        row: NodeRow,
        event: NodeEvent,
        result: Transition,
        *,
        cause: str,
        actor: str,
        fields: Mapping[str, str] | None = None,
        only_if_due: bool = False,
    ) -> WriteTransition | None:
        """Returns the script call that writes a transition to a node's row; None if nothing changes.

        `only_if_due` makes the script write only if the node's deadline has passed.
        """
        moves = result.state is not row.state
        if not moves and not result.actions and not fields and row.revision:
            return None
        now = unix_ms(self._clock.now())
        # A dead node that leaves the pool on the ledger stays dead; the history records nevertheless that it left.
        leaves = event in {NodeEvent.LEFT, NodeEvent.REMOVED} and row.member
        return WriteTransition(
            address=row.address,
            revision=row.revision,
            before=row.state,
            after=result.state,
            event=event,
            cause=cause,
            actor=actor,
            reason=cause if moves or not row.revision else row.reason,
            now_ms=now,
            deadline=self._deadline(row, result, now),
            removal=self._removal(result, now),
            only_if_due_by_ms=now if only_if_due else None,
            quiet=not moves and bool(row.revision) and not leaves,
            fields=fields or {},
        )

    def forget_deadline(self, row: NodeRow) -> WriteTransition:
        """Returns the script call that clears an outdated deadline, which an earlier state of the node had set."""
        now = unix_ms(self._clock.now())
        return WriteTransition(
            address=row.address,
            revision=row.revision,
            before=row.state,
            after=row.state,
            event="overdue",
            cause="",
            actor="liveness",
            reason=row.reason,
            now_ms=now,
            deadline="clear",
            removal="keep",
            only_if_due_by_ms=now,
            quiet=True,
            fields={},
        )

    def _deadline(self, row: NodeRow, result: Transition, now: int) -> str:
        interval = timedelta(milliseconds=row.interval_ms) if row.interval_ms else self._heartbeat_interval.shortest
        unhealthy, dead = self._heartbeat_interval.unhealthy_in(interval), self._heartbeat_interval.dead_in(interval)
        for action in result.actions:
            match action:
                case NodeAction.WATCH:
                    return str(now + _ms(unhealthy))
                case NodeAction.WATCH_LAST:
                    # The deadline counts from the last heartbeat, but is at least the time from unhealthy to dead from
                    # now: after an outage of this orchestrator the last heartbeat is old through no fault of the node.
                    return str(max((row.seen_ms or now) + _ms(dead), now + _ms(dead - unhealthy)))
                case NodeAction.AWAIT_JOIN:
                    return str(now + _ms(self._invite_life))
                case NodeAction.UNWATCH:
                    return "clear"
                case _:
                    continue
        return "keep"

    def _removal(self, result: Transition, now: int) -> str:
        if NodeAction.REMOVE in result.actions:
            return str(now + _ms(REMOVAL_DELAY))
        return "clear" if NodeAction.KEEP in result.actions else "keep"


def _ms(duration: timedelta) -> int:
    return int(duration.total_seconds() * 1000)
