"""Look-ups of a node's membership, in Redis or by a rate-limited read of the chain."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from orchestrator.chain.interface import NodeLedgerStatus, PoolLedger
from orchestrator.store.nodes import NodeRow, NodeStore
from protocol.errors import RateLimited
from protocol.http.lookups import LookupLimits, Lookups
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock
from protocol.wire.nodes import NodeState

MEMBER_FOR = timedelta(seconds=30)
"""Time for which the ledger's answer about a member is cached."""
OTHER_FOR = timedelta(seconds=1)
"""Time for which the ledger's answer about a non-member is cached. It is short, because the node may join soon."""
FOLLOWED_WITHIN = timedelta(seconds=30)
"""Maximum age of the ledger's events in Redis. If they are older, the chain is read for nodes without a join event."""


@dataclass(frozen=True, slots=True)
class NodeMembership:
    """A node's membership of the pool."""

    member: bool
    banned: bool = False


class NodeStatusCache:
    """Looks up the membership and the ledger state of single nodes.

    Strangers must not cause chain reads, and anybody can create keys that sign requests. So for a node that was not
    invited, the answer comes from the ledger's events, which the loop `ledger` writes to Redis. The chain is read for
    an invited node, because its join may be newer than the events that were read. The chain is also read for every node
    while the events in Redis are outdated, because Redis lost them or the chain was down.

    Args:
        ledger: The pool on the ledger.
        nodes: Store of nodes, with the state that events reported.
        clock: Measures the age of answers and events.
    """

    def __init__(self, ledger: PoolLedger, *, nodes: NodeStore, clock: Clock) -> None:
        self._nodes = nodes
        self._clock = clock
        self._lookups: Lookups[Address, NodeLedgerStatus] = Lookups(
            ledger.node_status,
            what=lambda node: f"asking the ledger about {node}",
            fresh=lambda status: MEMBER_FOR if status.member else OTHER_FOR,
            stale=timedelta(),
            clock=clock,
            limits=LookupLimits(remembered=65_536),
        )

    async def of(self, node: Address) -> NodeLedgerStatus:
        """Returns the ledger's state of a node.

        Raises:
            Unavailable: The chain is down or slow.
            RateLimited: Too many nodes are being looked up.
        """
        status = await self._lookups.get(node)
        if status.member:
            self._lookups.keep(node)
        return status

    async def membership(self, row: NodeRow) -> NodeMembership:
        """Returns whether a node is a member.

        While the chain is down, a node that is a member by the data in Redis counts as a member.

        Args:
            row: The node's row in Redis.

        Raises:
            Unavailable: Redis has no answer, and the chain is down or slow.
            RateLimited: Redis has no answer, and too many nodes are being looked up.
        """
        if row.state is NodeState.BANNED:
            return NodeMembership(member=False, banned=True)
        if row.member:
            return NodeMembership(member=True)
        followed = await self._follows_events()
        if followed and row.state is not NodeState.INVITED:
            return NodeMembership(member=False)
        try:
            status = await self.of(row.address)
        except RateLimited:
            if not followed:
                raise
            return NodeMembership(member=False)
        return NodeMembership(member=status.member and not status.banned, banned=status.banned)

    def known(self, node: Address) -> NodeLedgerStatus | None:
        """Returns the cached ledger state of a node, without a read of the chain."""
        return self._lookups.known(node)

    def forget(self, node: Address) -> None:
        """Invalidates the cached answer for a node that an event changed."""
        self._lookups.forget(node)

    async def _follows_events(self) -> bool:
        age_ms = unix_ms(self._clock.now()) - await self._nodes.events_read_ms()
        return age_ms < FOLLOWED_WITHIN.total_seconds() * 1000
