"""Wire formats of slots: requests, leases, outcomes of leases, and the slot that a file belongs to."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from protocol.identifiers import WireDigest
from protocol.wire.base import Identifier, Milliseconds, WireModel
from protocol.wire.leases import Count, SignedLease
from protocol.wire.runs import Figures, SlotGroups, SlotIndex, Step, Units, Version

MOST_RELEASED = 64


class SlotRequest(WireModel):
    """Body of `POST /v1/slots`, to the orchestrator."""

    step: Step
    groups: SlotGroups
    """Maximum number of groups that the node takes; the lease may be for fewer."""
    request_id: Identifier
    """Random id that the node makes for each slot that it wants. A repeated request with this id gets the same
    lease."""


class SlotWish(WireModel):
    """Body of the bridge's `POST /v1/slots`: a task's request to its worker."""

    step: Step
    groups: SlotGroups


class SlotGrant(WireModel):
    """A leased slot, and the hash of its beacon block."""

    lease: SignedLease
    beacon: WireDigest
    """The hash of the block that the lease names, a part of the slot's seed."""


class SlotName(WireModel):
    """Name of one of the node's slots."""

    step: Step
    index: SlotIndex


class ReleasedSlots(WireModel):
    """Body of `POST /v1/slots/release`: slots that a node will not deliver.

    Their indices are not leased again; their groups are available to other nodes.
    """

    slots: Annotated[tuple[SlotName, ...], Field(min_length=1, max_length=MOST_RELEASED)]


class LeaseState(StrEnum):
    """Outcome of a lease."""

    LIVE = "live"
    SUBMITTED = "submitted"
    """The work is on the ledger."""
    FILE_ABSENT = "file-absent"
    """The ledger has the work, but the store lacks the file. The lease counts as undelivered until the file arrives."""
    LATE = "late"
    """The work arrived after its step had stopped waiting. The work is paid if accepted, but the lease counts as
    undelivered."""
    REJECTED = "rejected"
    """The work was rejected or judged forged, or took too long to score.

    More than a few of these count as undelivered.
    """
    UNDELIVERED = "undelivered"
    """The lease expired without work. This costs no stake, but lowers the node's delivery rate."""
    RELEASED = "released"
    """The node released the lease. The lease counts as undelivered: otherwise a node could inspect slots and choose
    among them."""
    LAPSED = "lapsed"
    """The lease ended without work through no fault of the node.

    The work was submitted in time but never reached the ledger, or the pool removed the node. The lease does not affect
    the delivery rate.
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
    """Number of the newest ended leases that count as delivered."""
    undelivered: Count
    threshold: Annotated[float, Field(ge=0, le=1)]
    """Delivery rate below which the node gets no leases for a time."""
    resting_until_ms: Milliseconds | None
    """Time until which the node gets no leases; None if it may lease now."""
    leases: Annotated[tuple[LeaseView, ...], Field(max_length=500)]
    """Leases of the node, newest first."""


class RolloutOf(WireModel):
    """Member `rollout` of the bridge's `POST /v1/files` with kind `rollout`: the slot of the work.

    The worker attaches the lease that it obtained for this task. A task can only name a lease, not create one.
    """

    step: Step
    index: SlotIndex
    units: Units
    """Number of generated tokens in the file, at most the lease's `max_units`. Validators recount them."""
    figures: Figures = {}
