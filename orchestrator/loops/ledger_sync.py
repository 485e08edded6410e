"""Loop that applies the ledger's joins, departures, evictions and bans to nodes."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.chain.interface import MemberEvent, MembershipChange, NodeLedgerStatus
from orchestrator.dependencies import Dependencies
from orchestrator.domain.node_states import NodeEvent
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.logs import get_logger

_EVENTS = {
    MemberEvent.JOINED: (NodeEvent.JOINED, "1", "it joined the pool on the ledger"),
    MemberEvent.LEFT: (NodeEvent.LEFT, "0", "it left the pool on the ledger"),
    MemberEvent.REMOVED: (NodeEvent.REMOVED, "0", "it was removed from the pool on the ledger"),
    MemberEvent.EVICTED: (NodeEvent.EVICTED, "0", "it was evicted on the ledger"),
    MemberEvent.BANNED: (NodeEvent.BANNED, "0", "it was banned on the ledger"),
    MemberEvent.UNBANNED: (NodeEvent.UNBANNED, "0", "its ban was lifted on the ledger"),
}

_log = get_logger(__name__)


class LedgerSync:
    """Reads new membership events from the ledger and applies them.

    Args:
        dependencies: The orchestrator's dependencies.
        lease: The leader lease of this loop.
    """

    def __init__(self, dependencies: Dependencies, *, lease: LeaderLease) -> None:
        self._dependencies = dependencies
        self._lease = lease

    async def round(self) -> int:
        """Reads new events and writes them to the nodes; returns the number of events.

        An event may be read more than once; applying it twice changes nothing.

        Raises:
            Unavailable: The chain is down; no event is skipped.
        """
        read = 0
        while True:
            before = self._lease.value
            held = await self._lease.hold()
            if not held or self._lease.value != before:
                self._dependencies.ledger.forget_position()
            if not held:
                return read
            started_ms = unix_ms(self._dependencies.clock.now())
            found = await self._dependencies.ledger.changes()
            for change in latest_changes(found.changes):
                for node in await self._nodes_of(change):
                    self._dependencies.status_cache.forget(node)
                    await self._apply(node, change)
            await found.commit()
            read += len(found.changes)
            if not found.more:
                await self._dependencies.nodes.mark_events_read(started_ms)
                return read

    async def _apply(self, node: Address, change: MembershipChange) -> None:
        event = change.event
        status: NodeLedgerStatus | None = None
        if event in {MemberEvent.REVERTED, MemberEvent.JOINED, MemberEvent.UNBANNED} or change.node is None:
            # After a loss of Redis all events are read again, and these events may be outdated. So the node's present
            # state is read from the ledger.
            status = await self._dependencies.ledger.node_status(node)
            event = _present_event(status, event)
        node_event, member, default_cause = _EVENTS[event]
        fields = {"member": member}
        if status is not None and status.provider is not None:
            fields["provider"] = status.provider
        await self._dependencies.transitions.apply(
            node, node_event, cause=change.cause or default_cause, actor="ledger", fields=fields
        )

    async def _nodes_of(self, change: MembershipChange) -> list[Address]:
        if change.node is not None:
            return [change.node]
        found: list[Address] = []
        after: str | None = None
        while page := await self._dependencies.nodes.page(after=after, limit=500):
            rows = await self._dependencies.nodes.get_many(page)
            found += [row.address for row in rows if row.provider == change.provider]
            after = page[-1]
        return found


def latest_changes(changes: Sequence[MembershipChange]) -> list[MembershipChange]:
    """Returns the last change of each node and of each provider, in the order of the events."""
    last = {(change.node, change.provider): index for index, change in enumerate(changes)}
    return [change for index, change in enumerate(changes) if last[change.node, change.provider] == index]


def _present_event(status: NodeLedgerStatus, event: MemberEvent) -> MemberEvent:
    """Returns the event that leads to a node's present state on the ledger."""
    if status.banned:
        return MemberEvent.BANNED
    if status.member:
        return MemberEvent.JOINED
    return MemberEvent.UNBANNED if event is MemberEvent.UNBANNED else MemberEvent.LEFT
