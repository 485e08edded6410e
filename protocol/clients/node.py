"""Client of an orchestrator for a node: heartbeats, logs, work, and the node's own state.

A validator uses the same client for its audit files and its report of numerics classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from protocol.http.client import CALL_TIMEOUT, ServiceClient
from protocol.identifiers import Digest
from protocol.wire.heartbeat import Heartbeat, HeartbeatAnswer
from protocol.wire.joining import JoiningInformation
from protocol.wire.leases import SignedWorkClaim
from protocol.wire.logs import LogBatch, LogReceipt
from protocol.wire.me import EndedSessions, LoginLink
from protocol.wire.pool import NodeSelf
from protocol.wire.relayed import (
    ConsentReceipt,
    DisputeReceipt,
    JoinReceipt,
    JoinRequest,
    LeaveReceipt,
    SignedConsents,
    SignedDispute,
    SignedLeave,
    SubmissionReceipt,
    SubmissionRequest,
)
from protocol.wire.runs import StepAnswer
from protocol.wire.slots import Deliveries, ReleasedSlots, SlotGrant, SlotName, SlotRequest
from protocol.wire.uploads import ObjectKey, ObjectLink, UploadRequest, UploadTicket
from protocol.wire.validators import NumericsReceipt, NumericsReport

HEARTBEAT_TIMEOUT = timedelta(seconds=15)
"""Default time limit of a heartbeat."""
JOINING_LIMIT = 64 * 1024
"""Maximum bytes of the answer of `/v1/joining`."""


class NodeClient(ServiceClient):
    """Client of a pool's orchestrator for one node.

    It accepts only answers that the orchestrator signed.
    """

    async def joining(self, *, call_timeout: timedelta = CALL_TIMEOUT) -> JoiningInformation:
        """Returns what a contributor needs to join the pool; any key may ask.

        Raises:
            NotFound: The orchestrator's release is older than this route.
        """
        answer = await self.call(
            "GET", "/v1/joining", signed_answer=True, answer_limit=JOINING_LIMIT, call_timeout=call_timeout
        )
        return answer.read(JoiningInformation)

    async def heartbeat(self, heartbeat: Heartbeat, *, call_timeout: timedelta = HEARTBEAT_TIMEOUT) -> HeartbeatAnswer:
        """Sends a heartbeat and returns the answer.

        Raises:
            Forbidden: The pool refuses this node. The hint says what to do.
            Unauthenticated: The orchestrator did not sign the answer, or the clocks differ too much.
        """
        answer = await self.call(
            "POST",
            "/v1/heartbeat",
            body=heartbeat,
            signed_answer=True,
            call_timeout=call_timeout,
            attempt_timeout=call_timeout,
            repeatable=True,
        )
        return answer.read(HeartbeatAnswer)

    async def push_logs(self, batch: LogBatch) -> LogReceipt:
        """Sends lines of the assignment's output.

        The orchestrator skips lines that it has already.
        """
        answer = await self.call("POST", "/v1/logs", body=batch, signed_answer=True, repeatable=True)
        return answer.read(LogReceipt)

    async def request_upload(self, request: UploadRequest) -> UploadTicket:
        """Requests an upload URL for a file of this node.

        Raises:
            Forbidden: The node is not a member of the pool.
            Conflict: The file is a rollout file, and the node has no live lease for its slot.
            TooLarge: The file is larger than the pool or the lease allows.
            RateLimited: The node has reached its limit of uploads for now.
            Unavailable: The store is down or full.
        """
        answer = await self.call("POST", "/v1/uploads", body=request, signed_answer=True, repeatable=True)
        return answer.read(UploadTicket)

    async def object_link(self, key: ObjectKey) -> ObjectLink:
        """Returns a download link for one of the node's own files, or for any audit file.

        Raises:
            Forbidden: The object belongs to another node.
            NotFound: The store does not have the object.
        """
        answer = await self.call("GET", "/v1/objects", query={"key": str(key)}, signed_answer=True)
        return answer.read(ObjectLink)

    async def me(self) -> NodeSelf:
        """Returns the state and history of this node.

        Raises:
            NotFound: The pool does not know the node yet.
        """
        return (await self.call("GET", "/v1/nodes/me", signed_answer=True)).read(NodeSelf)

    async def login(self) -> LoginLink:
        """Returns a one-time link to the contributor's page; nodes and their providers may ask.

        Raises:
            Forbidden: The pool knows no node of this key or provider.
            NotFound: The orchestrator's release is older than this route.
        """
        return (await self.call("POST", "/v1/me/logins", signed_answer=True)).read(LoginLink)

    async def revoke_sessions(self) -> int:
        """Ends all sessions of the contributor's page; returns their number.

        Raises:
            Forbidden: The pool knows no node of this key or provider.
        """
        return (await self.call("POST", "/v1/me/logins/revoke", signed_answer=True)).read(EndedSessions).ended

    # Work

    async def step(self) -> StepAnswer:
        """Returns the step that needs rollouts, and the policy version to use.

        Raises:
            NotFound: The pool has no run.
        """
        return (await self.call("GET", "/v1/run/step", signed_answer=True)).read(StepAnswer)

    async def slot(self, request: SlotRequest) -> SlotGrant:
        """Leases a slot.

        A repeated call with the same `request_id` returns the same slot.

        Raises:
            Conflict: No slot is available for this node now. The detail gives the reason. `step` returns how long to
                wait before the next attempt.
            Forbidden: The node is not an active member of the pool.
        """
        answer = await self.call("POST", "/v1/slots", body=request, signed_answer=True, repeatable=True)
        return answer.read(SlotGrant)

    async def release(self, slots: Sequence[SlotName]) -> None:
        """Releases slots that the node will not deliver.

        Slots whose lease has ended are skipped.
        """
        body = ReleasedSlots(slots=tuple(slots))
        await self.call("POST", "/v1/slots/release", body=body, signed_answer=True, repeatable=True)

    async def my_leases(self) -> Deliveries:
        """Returns the outcomes of this node's leases."""
        return (await self.call("GET", "/v1/nodes/me/leases", signed_answer=True)).read(Deliveries)

    async def submit_work(
        self, work: SignedWorkClaim, *, figures: Mapping[str, float] | None = None
    ) -> SubmissionReceipt:
        """Submits work through the relayer; returns the relayer's progress.

        Repeating the call submits nothing new.

        Args:
            work: Work claim signed by this node, under a lease of this pool.
            figures: Metrics of the file for display. They are not verified.

        Raises:
            Forbidden: The lease is for another node or from another pool.
            Unprocessable: A signature, the number of units or the ledger's address is wrong.
            Conflict: The lease has expired, or different work was submitted under it.
        """
        body = SubmissionRequest(work=work, figures=dict(figures or {}))
        answer = await self.call("POST", "/v1/submissions", body=body, signed_answer=True, repeatable=True)
        return answer.read(SubmissionReceipt)

    async def submission(self, key: Digest) -> SubmissionReceipt:
        """Returns the relayer's progress with a submission of this node.

        `key` is the work key.

        Raises:
            NotFound: The work was never submitted, or the orchestrator has deleted the old record.
        """
        return (await self.call("GET", f"/v1/submissions/{key}", signed_answer=True)).read(SubmissionReceipt)

    async def dispute(self, dispute: SignedDispute) -> DisputeReceipt:
        """Disputes a verdict through the relayer; returns the relayer's progress.

        Repeating the call submits nothing new.

        Raises:
            NotFound: The orchestrator has not read such work of this node from the ledger.
            Conflict: The verdict accepts the work, or can no longer be disputed.
            Unprocessable: The signature or the deadline is wrong.
        """
        answer = await self.call("POST", "/v1/disputes", body=dispute, signed_answer=True, repeatable=True)
        return answer.read(DisputeReceipt)

    async def join(self, joining: JoinRequest) -> JoinReceipt:
        """Joins the pool through the relayer; returns the relayer's progress.

        Repeating the call submits nothing new.

        Raises:
            Forbidden: The invite is for another node or to another pool.
            Conflict: The invite has expired.
        """
        answer = await self.call("POST", "/v1/joins", body=joining, signed_answer=True, repeatable=True)
        return answer.read(JoinReceipt)

    async def register(self, consents: SignedConsents) -> ConsentReceipt:
        """Registers this node on the ledger through the relayer; returns the relayer's progress.

        Repeating the call submits nothing new.

        Raises:
            Conflict: The node is registered already, or the provider's free stake is too low.
            Forbidden: The pool has banned the node or its provider.
            Unprocessable: A signature, the nonce, the deadline or the capacity is wrong.
            RateLimited: The limits for today are reached.
            NotFound: The pool has no run, or the orchestrator is of a release that relays no consents.
        """
        answer = await self.call("POST", "/v1/consents", body=consents, signed_answer=True, repeatable=True)
        return answer.read(ConsentReceipt)

    async def leave(self, leave: SignedLeave) -> LeaveReceipt:
        """Leaves the pool through the relayer; returns the relayer's progress.

        Repeating the call submits nothing new.

        Raises:
            Conflict: The node is not a member.
            Unprocessable: The signature, the nonce or the deadline is wrong.
            RateLimited: The node has left too often today.
            NotFound: The pool has no run, or the orchestrator is of a release that relays no leaves.
        """
        answer = await self.call("POST", "/v1/leaves", body=leave, signed_answer=True, repeatable=True)
        return answer.read(LeaveReceipt)

    # Validators

    async def report_numerics(self, report: NumericsReport) -> NumericsReceipt:
        """Reports the numerics classes that this validator can verify; replaces its earlier report.

        Raises:
            Forbidden: The client's key is not a validator of the pool.
            NotFound: The orchestrator is of a release that takes no such reports.
        """
        path = "/v1/validators/me/numerics"
        answer = await self.call("PUT", path, body=report, signed_answer=True, repeatable=True)
        return answer.read(NumericsReceipt)
