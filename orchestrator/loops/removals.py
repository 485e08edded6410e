"""Takes dead nodes from the pool on the ledger, in batches, again and again until it is done."""

from __future__ import annotations

from datetime import timedelta

import structlog

from orchestrator.dependencies import Dependencies
from orchestrator.domain.node_states import NodeEvent
from protocol.errors import MusterError
from protocol.identity.signing import unix_ms
from protocol.redis.leader_lease import LeaderLease
from protocol.wire.heartbeat import NodeState

BATCH = 100
"""Nodes per transaction; a removal costs some 40,000 gas."""

AGAIN = timedelta(seconds=30)

_log = structlog.get_logger(__name__)


class Removals:
    """One batch.

    Args:
        parts: The orchestrator's.
        lease: Of this loop.
    """

    def __init__(self, parts: Dependencies, *, lease: LeaderLease) -> None:
        self._parts = parts
        self._lease = lease

    async def round(self) -> int:
        """Removes what is due; returns how many nodes that were.

        Raises:
            MusterError: The ledger did not do it; the nodes come again in half a minute.
        """
        if not await self._lease.hold():
            return 0
        parts = self._parts
        now = unix_ms(parts.clock.now())
        due = await parts.nodes.due_removals(now_ms=now, limit=BATCH)
        rows = await parts.nodes.get_many(due)
        # Who came back meanwhile was taken from the list by the same write that made it healthy.
        dead = [row.address for row in rows if row.state is NodeState.DEAD]
        await parts.nodes.forget_removals([row.address for row in rows if row.state is not NodeState.DEAD])
        if not dead:
            return 0
        # Put off first: whatever happens to us now, they come again.
        await parts.nodes.put_off_removals(dead, until_ms=now + int(AGAIN.total_seconds() * 1000))
        try:
            await parts.ledger.remove(dead, reason="silent")
        except MusterError as error:
            _log.warning("removal-failed", nodes=len(dead), code=error.code, reason=error.detail)
            raise
        for node in dead:
            parts.standings.forget(node)
            await parts.life.happened(
                node,
                NodeEvent.REMOVED,
                cause="it was silent for too long and was taken from the pool on the ledger",
                actor=parts.key.address,
                fields={"member": "0"},
            )
        await parts.nodes.forget_removals(dead)
        return len(dead)
