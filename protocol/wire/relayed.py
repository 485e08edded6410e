"""Requests to the relayer, which pays gas for nodes: work, joins and disputes."""

from __future__ import annotations

from enum import StrEnum

from protocol.identifiers import WireDigest
from protocol.wire.base import ShortText, SignedModel, WireModel
from protocol.wire.invites import SignedInvite
from protocol.wire.leases import Count, Signature, SignedWorkClaim
from protocol.wire.runs import Figures


class SubmissionRequest(WireModel):
    """Body of `POST /v1/submissions`, signed by the node that did the work."""

    work: SignedWorkClaim
    figures: Figures = {}


class ReceiptState(StrEnum):
    """Progress of the relayer."""

    QUEUED = "queued"
    CARRIED = "carried"
    """The ledger contains the transaction's content; for work, this node's file and units."""
    REFUSED = "refused"
    """The ledger or the orchestrator does not accept the content; `reason` says why. A retry would be refused, too."""


class SubmissionReceipt(WireModel):
    """Answer of `POST /v1/submissions` and of `GET /v1/submissions/{key}`."""

    key: WireDigest
    """The work key."""
    state: ReceiptState
    reason: ShortText = ""
    transaction: WireDigest | None = None


class JoinRequest(WireModel):
    """Body of `POST /v1/joins`: a node's acceptance of an invite. The relayer pays the gas."""

    invite: SignedInvite
    signature: Signature
    """The node's EIP-712 signature of `Join` over the invite's hash."""


class JoinReceipt(WireModel):
    """Answer of `POST /v1/joins`; a repeated request returns the progress of the same invite."""

    state: ReceiptState
    reason: ShortText = ""


class SignedDispute(SignedModel):
    """Body of `POST /v1/disputes`: a node's signed dispute of a verdict on its work, to be relayed to the ledger."""

    key: WireDigest
    """The work key."""
    evidence_hash: WireDigest
    """SHA-256 of the node's statement, or zero."""
    deadline: Count
    """Unix time in seconds until which the ledger accepts the dispute."""
    signature: Signature
    """The node's EIP-712 signature of `Dispute` over the three fields above."""


class DisputeReceipt(WireModel):
    """Answer of `POST /v1/disputes`; a repeated request returns the dispute's progress."""

    key: WireDigest
    state: ReceiptState
    reason: ShortText = ""
