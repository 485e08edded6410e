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
    """The most that the node will do; the lease may be for fewer."""
    request_id: Identifier
    """Made by the asker once per slot that it wants: a request repeated under it gets the same lease, not another."""


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
    """Slot of this node."""

    step: Step
    index: SlotIndex


class ReleasedSlots(WireModel):
    """Body of `POST /v1/slots/release`: a node gives slots up. Their indices are burnt, others may have the groups."""

    slots: Annotated[tuple[SlotName, ...], Field(min_length=1, max_length=MOST_RELEASED)]


class LeaseState(StrEnum):
    """Outcome of a lease."""

    LIVE = "live"
    SUBMITTED = "submitted"
    """Its work is on the ledger."""
    FILE_ABSENT = "file-absent"
    """The ledger has its work, but the store lacks the file. It counts as undelivered until the file arrives."""
    LATE = "late"
    """Its work came past the time that its step waited for it: it is paid if accepted, and counts as undelivered."""
    REJECTED = "rejected"
    """Its work was rejected or judged forged, or took too long to score; beyond a few it counts as undelivered."""
    UNDELIVERED = "undelivered"
    """It expired without work: no guilt, but it counts for the node's delivered share."""
    RELEASED = "released"
    """The node gave it up; counts as undelivered too, or a node could look at slots and choose."""
    LAPSED = "lapsed"
    """It ended without work, and its node is not the reason: its work was handed in, in time, and never came to the
    ledger, or the pool put the node out. Counts for nothing."""


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
    """Of the newest leases that are over: how many ended in work that counts."""
    undelivered: Count
    threshold: Annotated[float, Field(ge=0, le=1)]
    """The share below which a node rests."""
    resting_until_ms: Milliseconds | None
    """Until when the node gets no leases; None if it gets some."""
    leases: Annotated[tuple[LeaseView, ...], Field(max_length=500)]
    """Newest first, bounded."""


class RolloutOf(WireModel):
    """The member `rollout` of the bridge's `POST /v1/files`, with kind `rollout`: which slot's work the file is.

    The worker attaches the lease itself, from those that it obtained for this task: a task can name one, not make one.
    """

    step: Step
    index: SlotIndex
    units: Units
    """Generated tokens in the file; at most the lease's `max_units`, and validators count again."""
    figures: Figures = {}
