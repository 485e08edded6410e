"""Client of the pool's orchestrator; requests carry the orchestrator's own time."""

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

REQUEST_TIMEOUT = timedelta(seconds=10)


class OrchestratorSession:
    """Session of a node with its orchestrator; answers not signed by the pool's orchestrator key are rejected.

    Args:
        membership: URL and key of the orchestrator.
        key: The node's key.
        clock: The machine's clock; requests carry the orchestrator's time once it is known.
        allow_plain_http: Allows `http` to other machines.
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
        """The orchestrator's key, which must sign answers and leases."""
        self._client = NodeClient(
            ServiceLocation(membership.url, membership.orchestrator),
            key=key,
            clock=self.time,
            allow_plain_http=allow_plain_http,
            transport=transport,
        )

    async def heartbeat(self, beat: Heartbeat) -> HeartbeatAnswer:
        """Sends a heartbeat and returns the answer.

        Raises:
            Unauthenticated: The answer was not signed by the orchestrator.
            MusterError: The request failed.
        """
        return await self._client.heartbeat(beat, patience=REQUEST_TIMEOUT)

    async def push_logs(self, batch: LogBatch) -> LogReceipt:
        """Pushes log lines; the orchestrator skips those it already has."""
        return await self._client.push_logs(batch)

    async def step(self) -> StepAnswer:
        """Returns the run's current step and policy version."""
        return await self._client.step()

    async def slot(self, request: SlotRequest) -> SlotGrant:
        """Leases a slot."""
        return await self._client.slot(request)

    async def release(self, slots: tuple[SlotName, ...]) -> None:
        """Releases slots."""
        await self._client.release(slots)

    async def request_upload(self, request: UploadRequest) -> UploadTicket:
        """Requests a presigned URL for a file of this node."""
        return await self._client.request_upload(request)

    async def submit_work(self, work: SignedWorkClaim, *, figures: Mapping[str, float]) -> SubmissionReceipt:
        """Submits work to the relayer, which sends it to the ledger; may be repeated."""
        return await self._client.submit_work(work, figures=figures)

    async def submission(self, key: Digest) -> SubmissionReceipt:
        """Returns the relayer's state of submitted work.

        Raises:
            NotFound: The orchestrator does not know this work.
        """
        return await self._client.submission(key)

    async def close(self) -> None:
        """Closes connections."""
        await self._client.aclose()
