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
    """It is on the ledger, with this node's file and units."""
    REFUSED = "refused"
    """The ledger, or the orchestrator before it, does not take it; `reason` says why. Carrying it again can't help."""


class SubmissionReceipt(WireModel):
    """Answer of `POST /v1/submissions` and of `GET /v1/submissions/{key}`."""

    key: WireDigest
    """The work key."""
    state: ReceiptState
    reason: ShortText = ""
    transaction: WireDigest | None = None


class JoinRequest(WireModel):
    """Body of `POST /v1/joins`: a node takes its invite and has the orchestrator carry it, so that it needs no gas."""

    invite: SignedInvite
    signature: Signature
    """The node's EIP-712 `Join` over the invite's hash."""


class JoinReceipt(WireModel):
    """Answer of `POST /v1/joins`; sent again, it says how far the same invite is."""

    state: ReceiptState
    reason: ShortText = ""


class SignedDispute(SignedModel):
    """Body of `POST /v1/disputes`: a node's signed dispute of a verdict on its work, to be relayed to the ledger."""

    key: WireDigest
    """The work key."""
    evidence_hash: WireDigest
    """SHA-256 of the node's statement, or zero."""
    deadline: Count
    """Unix time in seconds until which it may be carried."""
    signature: Signature
    """The node's EIP-712 `Dispute` over these three."""


class DisputeReceipt(WireModel):
    """Answer of `POST /v1/disputes`; sent again, it says how far it is."""

    key: WireDigest
    state: ReceiptState
    reason: ShortText = ""
