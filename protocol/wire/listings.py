"""Listings of work submitted to a run, for its trainer, its owner and its validators."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from protocol.identifiers import WireAddress, WireDigest
from protocol.verdicts import Outcome
from protocol.wire.base import Bytes, Milliseconds, WireModel
from protocol.wire.leases import Count
from protocol.wire.runs import Figures, SlotGroups, SlotIndex, Step, Units, Version

MOST_FIGURED_STEPS = 100


class RolloutStatus(StrEnum):
    """State of submitted work on the ledger."""

    SUBMITTED = "submitted"
    PROVISIONAL = "provisional"
    """Judged; the verdict may be disputed."""
    DISPUTED = "disputed"
    FINAL = "final"
    EXPIRED = "expired"
    """No verdict was written in time: the work is unpaid, and the node is not penalised."""


class RolloutItem(WireModel):
    """One submitted file."""

    key: WireDigest
    node: WireAddress
    provider: WireAddress | None
    """Provider of the node when it joined, as far as the orchestrator has read the ledger."""
    step: Step
    index: SlotIndex
    version: Version
    digest: WireDigest
    """The policy's version digest."""
    beacon_block: Count | None = None
    """The block whose hash is part of the slot's seed, as the lease names it."""
    groups: SlotGroups
    units: Units
    sha256: WireDigest
    size: Bytes | None = None
    """Size in bytes, if the store has the file."""
    submitted_block: Count
    submitted_at_ms: Milliseconds
    """Time at which the orchestrator read the submission on the ledger."""
    status: RolloutStatus
    outcome: Outcome | None
    """Outcome of the verdict that is in force now."""
    reason: Annotated[int, Field(ge=0, lt=1 << 16)] = 0
    """The verdict's reason code."""
    audit_hash: WireDigest | None = None
    """SHA-256 of the audit file."""
    figures: Figures = {}
    file_url: str | None = None
    audit_url: str | None = None


class RolloutPage(WireModel):
    """Answer of `GET /v1/run/rollouts`: in lease order (step, node, index), so that fast nodes are not listed first."""

    items: Annotated[tuple[RolloutItem, ...], Field(max_length=1000)]
    next_cursor: str | None


class StepFigures(WireModel):
    """Means of a step's accepted files as nodes report them; unverified, for display only."""

    step: Step
    closed: bool
    files: Annotated[int, Field(ge=0)]
    """Number of accepted files in the means; in a very large step, the first ones in lease order."""
    reward: float | None = None
    """None if no node reported it."""
    length: float | None = None
    """Mean length in tokens."""


class FiguresPage(WireModel):
    """Answer of `GET /v1/run/figures`: ascending steps that have accepted files."""

    items: Annotated[tuple[StepFigures, ...], Field(max_length=MOST_FIGURED_STEPS)]
