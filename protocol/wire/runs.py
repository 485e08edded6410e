"""A run as its parts speak of it: which step, which policy, which slot, what was submitted and what came of it.

The numbers of a run, once for all parts: **version v is the policy that has learned every step below v** (version 0 is
the base, and one that is published every second step has even numbers). Step s is what the trainer turns into version
s + 1, out of rollouts of versions s and a little older.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from protocol.identifiers import WireAddress, WireDigest
from protocol.verdicts import Outcome
from protocol.wire.base import MAX_INT64, Bytes, Identifier, Milliseconds, Name, ShortText, WireModel
from protocol.wire.invites import SignedInvite
from protocol.wire.leases import Count, Signature, SignedLease, SignedWork

MOST_GROUPS_PER_SLOT = 4096
MOST_GROUPS_PER_STEP = 1 << 20
MOST_UNITS_PER_GROUP = 1 << 32
MOST_RELAYS = 64
MOST_ARITHMETIC = 16
MOST_FIGURES = 16
MOST_RELEASED = 64

Step = Annotated[int, Field(ge=0, lt=1 << 48)]
Version = Annotated[int, Field(ge=0, lt=1 << 48)]
"""Small enough that every part's numbers hold it exactly (Redis scripts have doubles only)."""
Attempt = Annotated[int, Field(ge=0, lt=1 << 32)]
SlotIndex = Annotated[int, Field(ge=0, lt=1 << 32)]
SlotGroups = Annotated[int, Field(ge=1, le=MOST_GROUPS_PER_SLOT)]
StepGroups = Annotated[int, Field(ge=0, le=MOST_GROUPS_PER_STEP)]
Units = Annotated[int, Field(ge=1, lt=1 << 56)]
UnitsPerGroup = Annotated[int, Field(ge=1, le=MOST_UNITS_PER_GROUP)]
RelayUrl = Annotated[str, StringConstraints(min_length=8, max_length=512, pattern=r"^https?://[!-~]+$")]
ArithmeticName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{1,31}/[a-z0-9_-]{1,31}$")]
"""An engine in a type: `torch/float32`."""
Arithmetic = Annotated[tuple[ArithmeticName, ...], Field(max_length=MOST_ARITHMETIC)]
"""All the engines and types that a version is paid for; empty if nobody has said so, and the recipe has to be read."""
Figures = Annotated[dict[Name, float], Field(max_length=MOST_FIGURES)]
"""What a node says of a file in a few numbers (`samples`, `reward`, `length`): shown to people, believed by nobody."""


# The policy


class NewCheckpoint(WireModel):
    """Body of `PUT /v1/run/checkpoint`: the trainer has announced a version on the ledger and tells what leases need.

    The digest must be the one that the ledger names for (version, attempt); versions never go back.
    """

    version: Version
    attempt: Attempt = 0
    digest: WireDigest
    units_per_group: UnitsPerGroup
    """The most work units (generated tokens) that one group of this version may hold."""
    relays: Annotated[tuple[RelayUrl, ...], Field(max_length=MOST_RELAYS)] = ()
    arithmetic: Arithmetic = ()
    """What the version's recipe takes."""
    trainer: ShortText = ""
    """The lease of the trainer that says so; empty for a person's word, which no lease stands against."""


class CheckpointRef(WireModel):
    """A version of the policy that the ledger names: what slots are leased for now."""

    version: Version
    attempt: Attempt
    digest: WireDigest
    """The version digest. A task looks for the files in `checkpoints/<digest>` of its shared volume."""
    block: Count
    """The block of the announcement."""
    publisher: WireAddress
    """Whose signature the version's manifest carries."""
    relays: Annotated[tuple[RelayUrl, ...], Field(max_length=MOST_RELAYS)] = ()
    """Where it can be fetched. What comes from there is believed for its digest only."""
    arithmetic: Arithmetic = ()
    """What the trainer says that the version's recipe takes, so that a node learns it before it fetches the version.
    The recipe itself counts."""


# Steps


class StepAnswer(WireModel):
    """Answer of `GET /v1/run/step`, of the orchestrator and of the bridge: what to work on now."""

    run: Name
    run_id: WireDigest
    step: Step
    """The smallest step of the window that wants rollouts; where none does, the last one looked at."""
    need: StepGroups
    """How many groups it wants that nobody has leased, submitted or delivered. 0: nothing to do, see `reason`."""
    groups_per_slot: SlotGroups
    """The most groups of one slot."""
    checkpoint: CheckpointRef | None
    retry_after_ms: Annotated[int, Field(ge=0, le=3_600_000)]
    """When to ask again if there is nothing to do."""
    reason: ShortText = ""
    """In words: why there is nothing to do."""


class Demand(WireModel):
    """Body of `PUT /v1/run/demand`: how many groups the trainer wants of a step in all.

    Raising it is one round; after the run's most rounds a further raise closes the step with what it has. A demand that
    is not above what was asked before changes nothing, so that it may be sent twice.
    """

    step: Step
    groups: StepGroups
    closed: bool = False
    """The trainer has its batch: the step, and every one below it, wants nothing any more."""
    trainer: ShortText = ""
    """The lease of the trainer that says so; empty for a person's word."""


class StepView(WireModel):
    """How one step stands, in groups. `need` = demand - accepted - pending - leased, never below zero."""

    step: Step
    demand: StepGroups
    rounds: Annotated[int, Field(ge=0, le=1_000_000)]
    """How often the demand was raised."""
    closed: bool
    accepted: StepGroups
    pending: StepGroups
    """Submitted, and a verdict may still come in time."""
    leased: StepGroups
    """Leased, and not submitted yet."""
    rejected: StepGroups
    need: StepGroups


class RunView(WireModel):
    """Answer of `GET /v1/run`: the run at a glance."""

    run: Name
    run_id: WireDigest
    checkpoint: CheckpointRef | None
    units_per_group: UnitsPerGroup | None
    steps: Annotated[tuple[StepView, ...], Field(max_length=64)]
    """The window, and a few steps before it; ascending."""
    async_level: Annotated[int, Field(ge=0, le=1024)]
    max_rounds: Annotated[int, Field(ge=0, le=1_000_000)]
    queued_submissions: Annotated[int, Field(ge=0, le=MAX_INT64)]
    """What waits for the relayer."""
    paused: ShortText = ""
    """In words: why no slots are leased now, for instance an escrow that can't cover more; empty if they are."""


# Who trains


class TrainerWish(WireModel):
    """Body of `PUT /v1/run/trainer`: a trainer wants to be the only one, or to stay it, or not to be it any more."""

    holder: Identifier
    """The trainer, over its restarts: made once."""
    lease: ShortText = ""
    """The lease that it has; empty when it begins."""
    start: Identifier | None = None
    """This start of it, drawn anew: asked twice by one start, as after an answer that was lost, it is one lease."""
    life_ms: Annotated[int, Field(ge=1, le=600_000)]
    """How long it lasts unless it is renewed; 1 gives it up."""


class TrainerLease(WireModel):
    """Answer of `PUT /v1/run/trainer`. What a trainer says under an older lease is refused: it fences the run."""

    lease: ShortText
    life_ms: Annotated[int, Field(ge=1, le=600_000)]


# Slots


class SlotRequest(WireModel):
    """Body of `POST /v1/slots`, to the orchestrator."""

    step: Step
    groups: SlotGroups
    """The most that the node will do; the lease may be for fewer."""
    request_id: Identifier
    """Made by the asker once per slot that it wants: a request repeated under it gets the same lease, not another."""


class SlotWish(WireModel):
    """Body of the bridge's `POST /v1/slots`: what a task asks of its worker."""

    step: Step
    groups: SlotGroups


class SlotGrant(WireModel):
    """A leased slot, and the chain's part of its seed."""

    lease: SignedLease
    beacon: WireDigest
    """The hash of the block that the seed stands on."""
    beacon_block: Count


class SlotName(WireModel):
    """Which slot of this node."""

    step: Step
    index: SlotIndex


class ReleasedSlots(WireModel):
    """Body of `POST /v1/slots/release`: a node gives slots up. Their indices are burnt, others may have the groups."""

    slots: Annotated[tuple[SlotName, ...], Field(min_length=1, max_length=MOST_RELEASED)]


class LeaseState(StrEnum):
    """What became of a lease."""

    LIVE = "live"
    SUBMITTED = "submitted"
    """Its work is on the ledger."""
    UNDELIVERED = "undelivered"
    """It expired without work: no guilt, but it counts for the node's delivered share."""
    RELEASED = "released"
    """The node gave it up; counts as undelivered too, or a node could look at slots and choose."""
    LAPSED = "lapsed"
    """Its work was handed to the orchestrator in time and never came to the ledger: counts for nothing."""


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
    """Of the newest leases that are over: how many ended in work on the ledger."""
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


LEASED_WORK = "work"
"""The key of a queue item's metadata under which the bridge leaves a `LeasedWork` as JSON; no task can write it."""


class LeasedWork(WireModel):
    """What the delivery needs to submit a file: the bridge writes it, the worker's queue carries it."""

    lease: SignedLease
    units: Units
    figures: Figures = {}


# Submissions and joins, carried to the ledger by the orchestrator


class Submission(WireModel):
    """Body of `POST /v1/submissions`, signed by the node that did the work."""

    work: SignedWork
    figures: Figures = {}


class ReceiptState(StrEnum):
    """How far the relayer is."""

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


class Joining(WireModel):
    """Body of `POST /v1/joins`: a node takes its invite and has the orchestrator carry it, so that it needs no gas."""

    invite: SignedInvite
    signature: Signature
    """The node's EIP-712 `Join` over the invite's hash."""


class JoinReceipt(WireModel):
    """Answer of `POST /v1/joins`; sent again, it says how far the same invite is."""

    state: ReceiptState
    reason: ShortText = ""


class SignedDispute(WireModel):
    """Body of `POST /v1/disputes`: a node's word that a verdict on its work is wrong, to be carried to the ledger."""

    key: WireDigest
    """The work key."""
    evidence_hash: WireDigest
    """SHA-256 of what the node has to say, or zero."""
    deadline: Count
    """Unix time in seconds until which it may be carried."""
    signature: Signature
    """The node's EIP-712 `Dispute` over these three."""


class DisputeReceipt(WireModel):
    """Answer of `POST /v1/disputes`; sent again, it says how far it is."""

    key: WireDigest
    state: ReceiptState
    reason: ShortText = ""


# What was submitted


class RolloutStatus(StrEnum):
    """Where submitted work is on the ledger."""

    SUBMITTED = "submitted"
    PROVISIONAL = "provisional"
    """Judged; the verdict may be disputed."""
    DISPUTED = "disputed"
    FINAL = "final"
    EXPIRED = "expired"
    """Nobody judged it in time: unpaid, blameless."""


class RolloutItem(WireModel):
    """One submitted file."""

    key: WireDigest
    node: WireAddress
    provider: WireAddress | None
    """Who was the node's provider when it joined, as far as the orchestrator has read."""
    step: Step
    index: SlotIndex
    version: Version
    digest: WireDigest
    """The policy's version digest."""
    beacon_block: Count | None = None
    """The block whose hash the slot's seed stands on, as it was when the slot was leased; None if that is forgotten."""
    groups: SlotGroups
    units: Units
    sha256: WireDigest
    size: Bytes | None = None
    """In bytes, where the store knows the file."""
    submitted_block: Count
    submitted_at_ms: Milliseconds
    """When the orchestrator read it on the ledger."""
    status: RolloutStatus
    outcome: Outcome | None
    """The verdict that counts so far."""
    reason: Annotated[int, Field(ge=0, lt=1 << 16)] = 0
    """The verdict's reason code."""
    audit_hash: WireDigest | None = None
    """SHA-256 of the audit file."""
    figures: Figures = {}
    file_url: str | None = None
    audit_url: str | None = None


class RolloutPage(WireModel):
    """Answer of `GET /v1/run/rollouts`: in lease order (step, then node and index), so that fast nodes aren't first."""

    items: Annotated[tuple[RolloutItem, ...], Field(max_length=1000)]
    next_cursor: str | None
