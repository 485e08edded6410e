"""Loop that finds nodes whose deadline for a heartbeat or for an invite has passed.

It reads only deadlines that have passed, so nodes that send heartbeats cause no work here.
"""

from __future__ import annotations

from datetime import timedelta

from orchestrator.domain.heartbeat_interval import HeartbeatInterval
from orchestrator.domain.node_states import NodeEvent, overdue, transition
from orchestrator.nodes.transitions import NodeTransitions
from orchestrator.store.database import Database
from orchestrator.store.nodes import NodeRow, NodeStore
from orchestrator.store.scripts import FindOverdue, WriteTransition
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.clock import Clock, milliseconds
from protocol.runtime.logs import get_logger

AT_ONCE = 1000
"""Number of overdue nodes that are handled per round trip to Redis."""

_CAUSES = {
    NodeEvent.MISSED: "it missed its heartbeats",
    NodeEvent.SILENT: "it was silent for too long",
    NodeEvent.INVITE_EXPIRED: "the invite was not redeemed in time",
}

_log = get_logger(__name__)


class Liveness:
    """Applies the events of overdue nodes, such as missed heartbeats and expired invites.

    Args:
        database: The pool's database.
        nodes: Store of nodes.
        transitions: Applies events to nodes.
        heartbeat_interval: Heartbeat interval, from which deadlines follow.
        clock: Clock of the deadlines.
        every: Interval of this loop. After a much longer gap, during which the loop did not run, nodes get more time.
        lease: The leader lease of this loop.
        furthest: Maximum time until a deadline; twice the time until a silent node is dead, if that is longer. A later
            deadline was set while the clock was wrong, so it is brought forward.
    """

    def __init__(
        self,
        *,
        database: Database,
        nodes: NodeStore,
        transitions: NodeTransitions,
        heartbeat_interval: HeartbeatInterval,
        clock: Clock,
        every: timedelta,
        lease: LeaderLease,
        furthest: timedelta,
    ) -> None:
        self._database = database
        self._nodes = nodes
        self._transitions = transitions
        self._heartbeat_interval = heartbeat_interval
        self._clock = clock
        self._every = every
        self._lease = lease
        self._furthest = furthest

    async def tick(self) -> int:
        """Handles all overdue nodes; returns their number.

        Raises:
            StoreUnavailable: Redis is down; the next round finds the same nodes.
        """
        if not await self._lease.hold():
            return 0
        handled = 0
        while addresses := await self._overdue():
            rows = await self._nodes.get_many(addresses)
            changes = [change for row in rows if (change := self._change(row)) is not None]
            written = sum(await self._nodes.write_many(changes))
            handled += written
            if written == 0:
                break  # all these nodes sent a heartbeat meanwhile
        return handled

    async def _overdue(self) -> list[Address]:
        expected = await self._nodes.expected()
        interval = self._heartbeat_interval.interval(expected, draw=1)
        gap = max(4 * self._every, self._heartbeat_interval.shortest / 2)
        amnesty = self._heartbeat_interval.unhealthy_in(interval)
        furthest = max(self._heartbeat_interval.dead_in(interval) * 2, self._furthest)
        addresses = await self._database.run(
            FindOverdue(
                lease=self._lease.value,
                now_ms=unix_ms(self._clock.now()),
                gap_ms=milliseconds(gap),
                amnesty_ms=milliseconds(amnesty),
                furthest_ms=milliseconds(furthest),
                limit=AT_ONCE,
            )
        )
        return list(addresses)

    def _change(self, row: NodeRow) -> WriteTransition | None:
        event = overdue(row.state)
        if event is None:
            # The node's state has no deadline, so this deadline is left over from an earlier state. No heartbeat can
            # have set it, because heartbeats are only recorded in states with a deadline.
            return self._transitions.forget_deadline(row)
        result = transition(row.state, event)
        return self._transitions.change(row, event, result, cause=_CAUSES[event], actor="liveness", only_if_due=True)
