"""Wire models of slots: requests, leases, and the outcomes of leases."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protocol.enumerations import WireEnum
from protocol.identifiers import WireDigest
from protocol.wire.base import Identifier, Milliseconds, WireModel
from protocol.wire.leases import Count, SignedLease
from protocol.wire.runs import Figures, SlotGroups, SlotIndex, Step, Units, Version

MOST_RELEASED = 64
"""Maximum number of slots that one request can release."""


class SlotRequest(WireModel):
    """Body of the orchestrator's `POST /v1/slots`: a node's request for a lease."""

    step: Step
    groups: SlotGroups
    """Maximum number of groups that the node takes. The lease may be for fewer."""
    request_id: Identifier
    """Random id that the node generates for each slot that it requests. A repeated request with this id gets the same
    lease.
    """


class SlotWish(WireModel):
    """Body of the bridge's `POST /v1/slots`: a task's request for a lease to its worker."""

    step: Step
    groups: SlotGroups


class SlotGrant(WireModel):
    """A signed lease of a slot, and the hash of its beacon block."""

    lease: SignedLease
    beacon: WireDigest
    """Hash of the beacon block that the lease names; part of the slot's seed."""


class SlotName(WireModel):
    """Step and index that identify one of the node's slots."""

    step: Step
    index: SlotIndex


class ReleasedSlots(WireModel):
    """Body of `POST /v1/slots/release`: slots that a node will not deliver.

    Their indices are never leased again, but other nodes can lease the groups under new indices.
    """

    slots: Annotated[tuple[SlotName, ...], Field(min_length=1, max_length=MOST_RELEASED)]


class LeaseState(WireEnum):
    """Current state or outcome of a lease."""

    LIVE = "live"
    """The lease has not expired, and no work was submitted."""
    SUBMITTED = "submitted"
    """The work is on the ledger."""
    FILE_ABSENT = "file-absent"
    """The work is on the ledger, but the store does not have the file. The lease counts as undelivered until the file
    arrives.
    """
    LATE = "late"
    """The work arrived when its step no longer waited for it. The work is paid if it is accepted, but the lease counts
    as undelivered.
    """
    REJECTED = "rejected"
    """The work was rejected, was judged forged, or took too long to score.

    More than a few such leases count as undelivered.
    """
    UNDELIVERED = "undelivered"
    """The lease expired without work. This costs no stake, but lowers the node's delivery rate."""
    RELEASED = "released"
    """The node released the lease. It counts as undelivered. Otherwise a node could lease slots, inspect them and keep
    only those that suit it.
    """
    LAPSED = "lapsed"
    """The lease ended without work through no fault of the node.

    Either the work was submitted in time but never reached the ledger, or the pool removed the node. The lease does not
    affect the delivery rate.
    """


class LeaseView(WireModel):
    """One lease of a node."""

    step: Step
    index: SlotIndex
    version: Version
    groups: SlotGroups
    granted_at_ms: Milliseconds
    expires_at_ms: Milliseconds
    state: LeaseState


class Deliveries(WireModel):
    """Answer of `GET /v1/nodes/{address}/leases` and, for a node itself, `/v1/nodes/me/leases`."""

    delivered: Count
    """Number of the node's newest ended leases that count as delivered."""
    undelivered: Count
    """Number of the node's newest ended leases that count as undelivered."""
    threshold: Annotated[float, Field(ge=0, le=1)]
    """Delivery rate below which the orchestrator grants the node no leases for some time."""
    resting_until_ms: Milliseconds | None
    """Time until which the orchestrator grants the node no leases; None if it may lease now."""
    leases: Annotated[tuple[LeaseView, ...], Field(max_length=500)]
    """Leases of the node, newest first."""


class RolloutOf(WireModel):
    """The slot that a rollout file belongs to: field `rollout` of the bridge's `POST /v1/files`.

    The worker adds the lease that it obtained for this task. So a task can only name a lease, not forge one.
    """

    step: Step
    index: SlotIndex
    units: Units
    """Number of generated tokens in the file, at most the lease's `max_units`. Validators count them again."""
    figures: Figures = {}
