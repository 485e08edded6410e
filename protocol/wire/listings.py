"""Listings of the work submitted to a run, for its trainer, owner and validators."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protocol.enumerations import WireEnum
from protocol.identifiers import WireAddress, WireDigest
from protocol.verdicts import Outcome
from protocol.wire.base import Bytes, Milliseconds, WireModel
from protocol.wire.leases import Count
from protocol.wire.runs import Figures, SlotGroups, SlotIndex, Step, Units, Version

MOST_FIGURED_STEPS = 100
"""Maximum number of steps in a page of metrics."""


class RolloutStatus(WireEnum):
    """State of submitted work on the ledger."""

    SUBMITTED = "submitted"
    PROVISIONAL = "provisional"
    """A validator has judged the work; the verdict can still be disputed."""
    DISPUTED = "disputed"
    FINAL = "final"
    EXPIRED = "expired"
    """No validator wrote a verdict in time. The work is unpaid, and the node is not penalised."""


class RolloutItem(WireModel):
    """One submitted rollout file."""

    key: WireDigest
    node: WireAddress
    provider: WireAddress | None
    """Provider of the node when it joined the pool; None if the orchestrator has not read it from the ledger."""
    step: Step
    index: SlotIndex
    version: Version
    digest: WireDigest
    """Digest of the policy version."""
    beacon_block: Count | None = None
    """Number of the block whose hash is part of the slot's seed, as the lease names it."""
    groups: SlotGroups
    units: Units
    sha256: WireDigest
    size: Bytes | None = None
    """Size of the file in bytes; None if the store does not have it."""
    submitted_block: Count
    submitted_at_ms: Milliseconds
    """Time at which the orchestrator read the submission from the ledger."""
    status: RolloutStatus
    outcome: Outcome | None
    """Outcome of the current verdict; None if there is no verdict."""
    reason: Annotated[int, Field(ge=0, lt=1 << 16)] = 0
    """Reason code of the verdict."""
    audit_hash: WireDigest | None = None
    """SHA-256 of the verdict's audit file."""
    figures: Figures = {}
    file_url: str | None = None
    audit_url: str | None = None


class RolloutPage(WireModel):
    """Answer of `GET /v1/run/rollouts`.

    The items are sorted by step, expiry of the lease, and slot id, so that fast nodes are not listed first.
    """

    items: Annotated[tuple[RolloutItem, ...], Field(max_length=1000)]
    next_cursor: str | None


class StepFigures(WireModel):
    """Mean metrics of a step's accepted files, as nodes report them.

    They are unverified and only for display.
    """

    step: Step
    closed: bool
    files: Annotated[int, Field(ge=0)]
    """Number of accepted files in the means. In a very large step, these are the first ones in the order of leases."""
    reward: float | None = None
    """Mean reward of a sample; None if no node reported it."""
    length: float | None = None
    """Mean length of a sample in tokens; None if no node reported it."""


class FiguresPage(WireModel):
    """Answer of `GET /v1/run/figures`: steps with accepted files, in ascending order."""

    items: Annotated[tuple[StepFigures, ...], Field(max_length=MOST_FIGURED_STEPS)]
