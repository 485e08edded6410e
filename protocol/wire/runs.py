"""Wire formats of a run: terms, policy version, steps, and the trainer's lease.

Numbering, common to all packages: **version v is the policy that has learned every step below v** (version 0 is the
base model; if a version is published every second step, versions have even numbers). In step s, the trainer makes
version s + 1 from rollouts of version s and slightly older ones.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from protocol.identifiers import WireAddress, WireDigest
from protocol.wire.base import MAX_INT64, Identifier, Name, ShortText, WireModel
from protocol.wire.leases import Count

MOST_GROUPS_PER_SLOT = 4096
MOST_GROUPS_PER_STEP = 1 << 20
MOST_UNITS_PER_GROUP = 1 << 32
MOST_RELAYS = 64
MOST_ARITHMETIC = 16
MOST_FIGURES = 16

Step = Annotated[int, Field(ge=0, lt=1 << 48)]
Version = Annotated[int, Field(ge=0, lt=1 << 48)]
"""Largest number that every component represents exactly (Redis scripts have doubles only)."""
Attempt = Annotated[int, Field(ge=0, lt=1 << 32)]
SlotIndex = Annotated[int, Field(ge=0, lt=1 << 32)]
SlotGroups = Annotated[int, Field(ge=1, le=MOST_GROUPS_PER_SLOT)]
StepGroups = Annotated[int, Field(ge=0, le=MOST_GROUPS_PER_STEP)]
Units = Annotated[int, Field(ge=1, lt=1 << 56)]
UnitsPerGroup = Annotated[int, Field(ge=1, le=MOST_UNITS_PER_GROUP)]
RelayUrl = Annotated[str, StringConstraints(min_length=8, max_length=512, pattern=r"^https?://[!-~]+$")]
ArithmeticName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_-]{1,31}/[a-z0-9_-]{1,31}$")]
"""An engine with a number type, for example `torch/float32`."""
Arithmetic = Annotated[tuple[ArithmeticName, ...], Field(max_length=MOST_ARITHMETIC)]
"""Engines with number types that a version accepts; empty if unknown until the recipe is read."""
Figures = Annotated[dict[Name, float], Field(max_length=MOST_FIGURES)]
"""Metrics of a file as its node reports them (`samples`, `reward`, `length`); unverified, for display only."""


# The policy


class NewCheckpoint(WireModel):
    """Body of `PUT /v1/run/checkpoint`: a version that the trainer announced on the ledger, with data for leases.

    The digest must be the one that the ledger names for (version, attempt); versions never go back.
    """

    version: Version
    attempt: Attempt = 0
    digest: WireDigest
    units_per_group: UnitsPerGroup
    """Maximum number of work units (generated tokens) in one group of this version."""
    relays: Annotated[tuple[RelayUrl, ...], Field(max_length=MOST_RELAYS)] = ()
    arithmetic: Arithmetic = ()
    """Arithmetic that the version's recipe accepts."""
    trainer: ShortText = ""
    """The trainer's lease; empty for a request by a person, which is accepted under any lease."""


class CheckpointRef(WireModel):
    """The version of the policy, announced on the ledger, for which slots are leased."""

    version: Version
    attempt: Attempt
    digest: WireDigest
    """The version digest. A task looks for the files in `checkpoints/<digest>` of its shared volume."""
    block: Count
    """The block of the announcement."""
    publisher: WireAddress
    """Key that signed the version's manifest."""
    relays: Annotated[tuple[RelayUrl, ...], Field(max_length=MOST_RELAYS)] = ()
    """URLs of relays. Downloads are verified by the digest."""
    arithmetic: Arithmetic = ()
    """Arithmetic that the recipe accepts according to the trainer, so that a node knows it before the download. The
    recipe itself is authoritative."""


# Steps


class StepAnswer(WireModel):
    """Answer of `GET /v1/run/step`, by orchestrator and bridge: the step that needs rollouts."""

    run: Name
    run_id: WireDigest
    step: Step
    """The smallest step of the window that needs rollouts; if none does, the last step that was checked."""
    need: StepGroups
    """Groups that no node has leased, submitted or delivered. 0: nothing to do, see `reason`."""
    groups_per_slot: SlotGroups
    """Maximum groups of one slot."""
    checkpoint: CheckpointRef | None
    retry_after_ms: Annotated[int, Field(ge=0, le=3_600_000)]
    """Time until the next request if there is nothing to do."""
    reason: ShortText = ""
    """Reason why there is nothing to do; for display."""


class Demand(WireModel):
    """Body of `PUT /v1/run/demand`: the trainer's total demand of a step, in groups.

    Each raise begins a round. A raise beyond the run's maximum of rounds closes the step with the rollouts that it has.
    A demand that is not above the previous one changes nothing, so the request may be sent twice.
    """

    step: Step
    groups: StepGroups
    closed: bool = False
    """The trainer has its batch: the step, and every one below it, needs no more rollouts."""
    trainer: ShortText = ""
    """The trainer's lease; empty for a request by a person."""


class StepView(WireModel):
    """Counts of one step, in groups.

    `need` = demand - accepted - pending - leased + spare, never below zero.
    """

    step: Step
    demand: StepGroups
    rounds: Annotated[int, Field(ge=0, le=1_000_000)]
    """Number of times that the demand was raised."""
    closed: bool
    accepted: StepGroups
    pending: StepGroups
    """Submitted groups whose file is in the store and whose verdict can still arrive in time."""
    leased: StepGroups
    """Leased groups that are not submitted yet."""
    spare: StepGroups = 0
    """Part of `leased` for which the step does not wait: leases past half of their time, of nodes on trial and of
    former members."""
    rejected: StepGroups
    need: StepGroups


class RunView(WireModel):
    """Answer of `GET /v1/run`: state of the run."""

    run: Name
    run_id: WireDigest
    checkpoint: CheckpointRef | None
    units_per_group: UnitsPerGroup | None
    steps: Annotated[tuple[StepView, ...], Field(max_length=64)]
    """The steps of the window and a few earlier ones, ascending."""
    async_level: Annotated[int, Field(ge=0, le=1024)]
    max_rounds: Annotated[int, Field(ge=0, le=1_000_000)]
    queued_submissions: Annotated[int, Field(ge=0, le=MAX_INT64)]
    """Number of transactions that wait for the relayer."""
    paused: ShortText = ""
    """Reason why no slots are leased now, for instance an escrow that can't cover more; empty if slots are leased."""


# The trainer's lease


class TrainerWish(WireModel):
    """Body of `PUT /v1/run/trainer`: a trainer acquires, renews or releases the run's trainer lease."""

    holder: Identifier
    """Id of the trainer, kept across restarts."""
    lease: ShortText = ""
    """The lease that the trainer holds; empty at its start."""
    start: Identifier | None = None
    """Random id of the trainer's start. If an answer is lost, the repeated request of the same start gets the same
    lease."""
    life_ms: Annotated[int, Field(ge=1, le=600_000)]
    """Time in milliseconds until the lease expires unless renewed; 1 releases the lease."""


class TrainerLease(WireModel):
    """Answer of `PUT /v1/run/trainer`. Requests under an older lease are refused, which fences off a former trainer."""

    lease: ShortText
    life_ms: Annotated[int, Field(ge=1, le=600_000)]
