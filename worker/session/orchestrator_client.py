"""The orchestrator of this node's pool, spoken to in the orchestrator's own time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

import httpx

from protocol.clients import ServiceLocation
from protocol.clients.node import NodeClient
from protocol.identifiers import Digest
from protocol.identity.keys import Key
from protocol.runtime.clock import Clock
from protocol.wire.heartbeat import Heartbeat, HeartbeatAnswer, LogBatch, LogReceipt
from protocol.wire.leases import SignedWorkClaim
from protocol.wire.relayed import SubmissionReceipt
from protocol.wire.runs import StepAnswer
from protocol.wire.slots import SlotGrant, SlotName, SlotRequest
from protocol.wire.uploads import UploadRequest, UploadTicket
from worker.membership.joining import OrchestratorLocation
from worker.session.server_time import ServerTime

PATIENCE = timedelta(seconds=10)


class OrchestratorSession:
    """Speaks to one orchestrator as one node; answers count only with the signature of the pool's orchestrator key.

    Args:
        membership: Where it is, and whose signature counts.
        key: The node's.
        clock: The machine's; requests are signed with the orchestrator's own time once it is known.
        allow_plain_http: Lets `http` go beyond this machine.
        transport: For tests that serve the other side in the same process.
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
        """Whose signature counts."""
        self._client = NodeClient(
            ServiceLocation(membership.url, membership.orchestrator),
            key=key,
            clock=self.time,
            allow_plain_http=allow_plain_http,
            transport=transport,
        )

    async def heartbeat(self, beat: Heartbeat) -> HeartbeatAnswer:
        """Says how it goes, hears what to do.

        Raises:
            Unauthenticated: The answer was not signed by the orchestrator.
            MusterError: Whatever else went wrong.
        """
        return await self._client.heartbeat(beat, patience=PATIENCE)

    async def push_logs(self, batch: LogBatch) -> LogReceipt:
        """Hands lines over; those that it has already are skipped there."""
        return await self._client.push_logs(batch)

    async def step(self) -> StepAnswer:
        """What to work on now."""
        return await self._client.step()

    async def slot(self, request: SlotRequest) -> SlotGrant:
        """Leases a slot."""
        return await self._client.slot(request)

    async def release(self, slots: tuple[SlotName, ...]) -> None:
        """Gives slots up."""
        await self._client.release(slots)

    async def request_upload(self, request: UploadRequest) -> UploadTicket:
        """Asks where to put a file of this node's."""
        return await self._client.request_upload(request)

    async def submit_work(self, work: SignedWorkClaim, *, figures: Mapping[str, float]) -> SubmissionReceipt:
        """Hands work over to be carried to the ledger; again, if need be."""
        return await self._client.submit_work(work, figures=figures)

    async def submission(self, key: Digest) -> SubmissionReceipt:
        """How far the orchestrator is with work that was handed over.

        Raises:
            NotFound: It does not know of any.
        """
        return await self._client.submission(key)

    async def close(self) -> None:
        """Closes connections."""
        await self._client.aclose()
