"""Requests to the relayer, which pays the gas of nodes: registrations, joins, work, disputes and leaves."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protocol.enumerations import WireEnum
from protocol.identifiers import WireAddress, WireDigest
from protocol.wire.base import PoolId, ShortText, SignedModel, WireModel
from protocol.wire.invites import SignedInvite
from protocol.wire.leases import Count, Signature, SignedWorkClaim
from protocol.wire.runs import Figures


class SubmissionRequest(WireModel):
    """Body of `POST /v1/submissions`, signed by the node that did the work."""

    work: SignedWorkClaim
    figures: Figures = {}


class ReceiptState(WireEnum):
    """Progress of a relayed request."""

    QUEUED = "queued"
    CARRIED = "carried"
    """The ledger contains the content of the request. For work, this means the same file and units."""
    REFUSED = "refused"
    """The ledger or the orchestrator does not accept the content; `reason` says why. A repeated request would be
    refused too.
    """


class SubmissionReceipt(WireModel):
    """Answer of `POST /v1/submissions` and of `GET /v1/submissions/{key}`."""

    key: WireDigest
    """Work key of the submission."""
    state: ReceiptState
    reason: ShortText = ""
    transaction: WireDigest | None = None


class JoinRequest(WireModel):
    """Body of `POST /v1/joins`: a node's acceptance of an invite.

    The relayer pays the gas.
    """

    invite: SignedInvite
    signature: Signature
    """The node's EIP-712 signature of a `Join` with the invite's hash."""


class JoinReceipt(WireModel):
    """Answer of `POST /v1/joins`.

    A repeated request returns the progress of the same invite.
    """

    state: ReceiptState
    reason: ShortText = ""


class SignedDispute(SignedModel):
    """Body of `POST /v1/disputes`: a node's signed dispute of a verdict on its work.

    The relayer sends it to the ledger.
    """

    key: WireDigest
    """Work key of the disputed work."""
    evidence_hash: WireDigest
    """SHA-256 of a statement that the node publishes elsewhere; zero if there is none."""
    deadline: Count
    """Unix time in seconds until which the ledger accepts the dispute."""
    signature: Signature
    """The node's EIP-712 signature of `Dispute` with the three fields above."""


class DisputeReceipt(WireModel):
    """Answer of `POST /v1/disputes`.

    A repeated request returns the progress of the same dispute.
    """

    key: WireDigest
    state: ReceiptState
    reason: ShortText = ""


class SignedLeave(SignedModel):
    """Body of `POST /v1/leaves`: a node's signed exit from the pool.

    The relayer sends it to the ledger.
    """

    pool_id: PoolId
    node: WireAddress
    nonce: Count
    """How often the node has joined the pool: `joins` of `ComputePools.membershipOf`."""
    deadline: Count
    """Unix time in seconds until which the ledger accepts the exit."""
    signature: Signature
    """The node's EIP-712 signature of `Leave` with the four fields above."""


class LeaveReceipt(WireModel):
    """Answer of `POST /v1/leaves`.

    A repeated request returns the progress of the same exit.
    """

    state: ReceiptState
    reason: ShortText = ""


class SignedConsents(SignedModel):
    """Body of `POST /v1/consents`: the consents of a node and of its provider to register the node.

    The relayer sends them to the ledger.
    """

    provider: WireAddress
    """An ordinary account. A contract wallet sends its consent to the ledger itself."""
    node: WireAddress
    specs_hash: WireDigest
    """Hash in the provider's consent; zeros are allowed."""
    capacity: Annotated[int, Field(ge=1, lt=1 << 32)]
    nonce: Count
    """`ComputeRegistry.consentNonce(node)`."""
    deadline: Count
    """Unix time in seconds until which the ledger accepts both consents."""
    provider_signature: Signature
    """The provider's EIP-712 signature of `ProviderConsent` with the six fields above."""
    node_signature: Signature
    """The node's EIP-712 signature of `NodeConsent`."""


class ConsentReceipt(WireModel):
    """Answer of `POST /v1/consents`.

    A repeated request returns the progress of the same consents.
    """

    state: ReceiptState
    reason: ShortText = ""
