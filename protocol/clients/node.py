"""The client of an orchestrator for a node: heartbeats, logs, and where it stands."""

from __future__ import annotations

from datetime import timedelta

from protocol.clients.base import TypedClient
from protocol.wire.heartbeat import Heartbeat, HeartbeatAnswer, LogBatch, LogReceipt
from protocol.wire.pool import NodeSelf

HEARTBEAT_PATIENCE = timedelta(seconds=15)


class NodeClient(TypedClient):
    """Speaks to a pool's orchestrator as one node. Only answers that the orchestrator signed are believed."""

    async def heartbeat(self, heartbeat: Heartbeat, *, patience: timedelta = HEARTBEAT_PATIENCE) -> HeartbeatAnswer:
        """Says how the node is and hears what to do.

        Raises:
            Forbidden: The pool does not want this node; the hint says why and what to do.
            Unauthenticated: Somebody on the path answered, or the clocks differ.
        """
        answer = await self.call(
            "POST",
            "/v1/heartbeat",
            body=heartbeat,
            signed_answer=True,
            patience=patience,
            attempt_patience=patience,
            repeatable=True,
        )
        return answer.read(HeartbeatAnswer)

    async def push_logs(self, batch: LogBatch) -> LogReceipt:
        """Pushes lines of the assignment's output; lines that are there already are skipped."""
        answer = await self.call("POST", "/v1/logs", body=batch, signed_answer=True, repeatable=True)
        return answer.read(LogReceipt)

    async def me(self) -> NodeSelf:
        """The node's own state and history, as the pool has it.

        Raises:
            NotFound: The pool does not know the node yet.
        """
        return (await self.call("GET", "/v1/nodes/me", signed_answer=True)).read(NodeSelf)
