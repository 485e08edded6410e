"""Loop that removes dead nodes from the pool on the ledger, in batches, with retries."""

from __future__ import annotations

from datetime import timedelta

from orchestrator.dependencies import Dependencies
from orchestrator.domain.node_states import NodeEvent
from protocol.errors import MusterError
from protocol.identity.signing import unix_ms
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.clock import milliseconds
from protocol.runtime.logs import get_logger
from protocol.wire.nodes import NodeState

BATCH = 100
"""Maximum number of nodes per transaction; the removal of one node costs about 40,000 gas."""

RETRY_AFTER = timedelta(seconds=30)
"""Delay before a node that could not be removed is due again."""

_log = get_logger(__name__)


class Removals:
    """Removes one batch of dead nodes per round.

    Args:
        dependencies: The orchestrator's dependencies.
        lease: The leader lease of this loop.
    """

    def __init__(self, dependencies: Dependencies, *, lease: LeaderLease) -> None:
        self._dependencies = dependencies
        self._lease = lease

    async def round(self) -> int:
        """Removes the nodes that are due; returns their number.

        Raises:
            MusterError: The transaction failed; the nodes are due again after `RETRY_AFTER`.
        """
        if not await self._lease.hold():
            return 0
        dependencies = self._dependencies
        now = unix_ms(dependencies.clock.now())
        due = await dependencies.nodes.due_removals(now_ms=now, limit=BATCH)
        rows = await dependencies.nodes.get_many(due)
        # A node that returns is deleted from the list of removals. The state of each node is checked again
        # nevertheless, because a removal can't be undone.
        dead = [row.address for row in rows if row.state is NodeState.DEAD]
        await dependencies.nodes.forget_removals([row.address for row in rows if row.state is not NodeState.DEAD])
        if not dead:
            return 0
        # The nodes are postponed before the transaction, so that they are due again if this process crashes.
        await dependencies.nodes.postpone_removals(dead, until_ms=now + milliseconds(RETRY_AFTER))
        try:
            await dependencies.ledger.remove(dead, reason="silent")
        except MusterError as error:
            _log.warning("removal-failed", nodes=len(dead), code=error.code, reason=error.detail)
            raise
        for node in dead:
            dependencies.status_cache.forget(node)
            await dependencies.transitions.apply(
                node,
                NodeEvent.REMOVED,
                cause="it was silent for too long and was removed from the pool on the ledger",
                actor=dependencies.key.address,
                fields={"member": "0"},
            )
        await dependencies.nodes.forget_removals(dead)
        return len(dead)
