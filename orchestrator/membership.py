"""Who is a member of the pool, asked of the ledger rarely and never on the way of an ordinary heartbeat."""

from __future__ import annotations

from collections import OrderedDict
from datetime import timedelta

from orchestrator.chain import NodeStanding, PoolLedger
from protocol.clock import Clock
from protocol.identifiers import Address
from protocol.retry import Deadline

MOST_KNOWN = 65_536


class Standings:
    """What the ledger says of nodes, remembered for a short while.

    Args:
        ledger: The pool on the ledger.
        clock: Whose time counts.
        good_for: How long an answer is remembered.
        refused_for: The same for nodes that are no members: they may have joined a moment ago.
        patience: How long the chain may take.
    """

    def __init__(
        self,
        ledger: PoolLedger,
        *,
        clock: Clock,
        good_for: timedelta = timedelta(seconds=30),
        refused_for: timedelta = timedelta(seconds=1),
        patience: timedelta = timedelta(seconds=5),
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._good_for = good_for
        self._refused_for = refused_for
        self._patience = patience
        self._known: OrderedDict[Address, tuple[float, NodeStanding]] = OrderedDict()

    async def of(self, node: Address) -> NodeStanding:
        """What the ledger says of a node.

        Raises:
            Unavailable: The chain is down or slow.
        """
        now = self._clock.monotonic()
        known = self._known.get(node)
        if known is not None and known[0] > now:
            return known[1]
        deadline = Deadline.after(self._patience, clock=self._clock)
        standing = await deadline.bound(self._ledger.standing(node), what="asking the ledger about a node")
        kept = self._good_for if standing.member else self._refused_for
        self._known[node] = (self._clock.monotonic() + kept.total_seconds(), standing)
        self._known.move_to_end(node)
        if len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)
        return standing

    def known(self, node: Address) -> NodeStanding | None:
        """What the ledger said last, if it is still remembered; asks nobody."""
        entry = self._known.get(node)
        return None if entry is None else entry[1]

    def forget(self, node: Address) -> None:
        """Asks the ledger anew next time: something happened to the node."""
        self._known.pop(node, None)
