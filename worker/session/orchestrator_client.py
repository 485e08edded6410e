"""Client of the pool's orchestrator; its requests carry the orchestrator's own time."""

from __future__ import annotations

import httpx

from protocol.clients import ServiceLocation
from protocol.clients.node import NodeClient
from protocol.identity.keys import Key
from protocol.runtime.clock import Clock
from worker.membership.joining import OrchestratorLocation
from worker.session.server_time import ServerTime


class OrchestratorSession(NodeClient):
    """Session of a node with its orchestrator.

    The session rejects answers that the pool's orchestrator key did not sign.

    Args:
        membership: URL and key of the orchestrator.
        key: The node's key.
        clock: The machine's clock. When the orchestrator's time is known, requests carry the orchestrator's time
            instead of the machine's.
        allow_plain_http: Whether `http` to other machines is allowed.
        transport: HTTP transport for tests that serve the orchestrator in the same process.
    """

    def __init__(
        self,
        membership: OrchestratorLocation,
        *,
        key: Key,
        clock: Clock,
        allow_plain_http: bool = False,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.time = ServerTime(clock)
        self.address = membership.orchestrator
        """Address of the orchestrator's key, which must sign answers and leases."""
        super().__init__(
            ServiceLocation(membership.url, membership.orchestrator),
            key=key,
            clock=self.time,
            allow_plain_http=allow_plain_http,
            transport=transport,
        )
