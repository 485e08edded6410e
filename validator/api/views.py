"""Request and response models of the validator's API."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from protocol.identifiers import WireAddress, WireDigest
from protocol.wire.base import LongText, Milliseconds, PoolId, ShortText, WireModel
from protocol.wire.leases import Count


class QueueView(WireModel):
    """Number of items in the work queue by state."""

    waiting: Count
    """Number of items that no process may take yet: they wait for this validator's turn or for the next attempt."""
    ready: Count
    """Number of items that a process may take now."""
    in_hand: Count
    """Number of items that a process on this Redis has leased and works on."""
    parked: Count
    """Number of items that wait for a person."""
    not_final: Count
    """Number of the pool's submissions that are not final on the ledger yet, with or without a verdict."""


class VerdictCount(WireModel):
    """Number of verdicts with this outcome and reason that the ledger accepted."""

    outcome: ShortText
    reason: ShortText
    count: Count


class LatencyView(WireModel):
    """Latency from reading a submission on the ledger to its verdict, for recent verdicts of this process."""

    p50_s: float | None
    """Median in seconds; None before the first verdict."""
    p99_s: float | None
    """99th percentile in seconds; None before the first verdict."""
    of: Count
    """Number of verdicts from which both percentiles are computed, at most the last 1000."""


class RatesView(WireModel):
    """Rates per second of this process, over the last minute."""

    files: float
    rows: float
    prefilled_tokens: float


class ValidatorSeen(WireModel):
    """A validator of the pool."""

    address: WireAddress
    here: bool
    """True if a process with this validator's key now uses the same Redis as the responding process."""
    heard_at_ms: Milliseconds | None
    """Chain time of the validator's last verdict or audit commitment; None if the validator has not been active."""


class MemberView(WireModel):
    """A validator process that uses the same Redis as the responding process."""

    address: WireAddress
    """Address of the process's key; several processes may share a key."""
    place: LongText
    """Host and state directory of the process."""
    is_this: bool
    """True for the process that sends this response."""
    state: Literal["starting", "well", "unwell", "silent"]
    """`starting`: the first self-test has not ended. `well`: the process takes work.

    `unwell`: the process takes no work and repeats its self-test until it passes. `silent`: the process has announced
    nothing for a minute.
    """
    code: ShortText = ""
    """Error code of an unwell process; empty otherwise."""
    why: LongText = ""
    """Error text of an unwell process; empty otherwise."""
    hint: LongText = ""
    """Suggested action for the operator of an unwell process; empty otherwise."""
    since_ms: Milliseconds
    """Start of this state in Unix milliseconds; for a silent process, the time of its last announcement."""
    tests: Count = 0
    """Number of self-tests in a row that failed with the error `code`; 0 for a well process."""
    numerics: tuple[ShortText, ...] = ()
    """Numerics classes that the process can verify."""


class LoopView(WireModel):
    """A background loop of this process."""

    name: ShortText
    rounds: Count
    """Number of rounds since the start."""
    crashes: Count
    """Number of rounds that ended with an exception."""
    last_error: LongText = ""
    """Text of the last exception; empty if there was none."""


class ParkedView(WireModel):
    """A parked item, which waits for a person."""

    id: ShortText
    """Id of the item, `WORKKEY.KIND`."""
    key: WireDigest
    """The work key."""
    kind: ShortText
    """Reason for the examination: `first`, `second-look`, `paid-look` or `dispute`."""
    node: WireAddress
    step: Count
    index: Count
    """Number of the slot among the slots that this node has in this step."""
    attempts: Count
    """Number of failed attempts of all validators."""
    parked_at_ms: Milliseconds
    deadline_ms: Milliseconds
    """Lower bound of the verdict's deadline, in Unix milliseconds of the chain's clock.

    If the ledger has no verdict by the deadline, the work expires without penalty.
    """
    code: ShortText
    """Error code of the last attempt."""
    why: LongText
    """Error text of the last attempt."""
    hint: LongText = ""
    """Action for the operator."""


class ParkedList(WireModel):
    """Response of `GET /v1/parked`: each node's oldest item, then each node's second, and so on."""

    items: tuple[ParkedView, ...]


class StatusView(WireModel):
    """Response of `GET /v1/status`."""

    validator: WireAddress
    pool_id: PoolId
    version: ShortText
    seated: bool | None
    """True if the pool lists this validator's key, so the ledger accepts its verdicts; None if the chain is down."""
    chain_block: Count | None
    """Number of the newest block of the chain; None until this process has read events."""
    next_block: Count | None
    """Number of the block from which the next events are read; None until this process has read events."""
    epoch: Count | None
    """Number of this validator's newest audit epoch; 0 before the first, None while the chain is unavailable."""
    queue: QueueView
    verdicts: tuple[VerdictCount, ...]
    latency: LatencyView
    rates: RatesView
    validators: tuple[ValidatorSeen, ...]
    members: tuple[MemberView, ...] = ()
    """Validator processes that use the same Redis, the responding process first."""
    parked: tuple[ParkedView, ...]
    """First entries of `GET /v1/parked`, at most 20."""
    loops: tuple[LoopView, ...]
    looks: dict[str, int] = {}
    """Numbers of second looks and disputes since this process started, by the field names of `LookCounts`."""


class Resolve(WireModel):
    """Body of `POST /v1/parked/{id}/resolve`: a person's decision, which can't slash a node."""

    outcome: Literal["accepted", "rejected"]
    words: Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f\x7f]*$")]
    """Reason of the decision in one line, which the contributor can read."""


class Unparked(WireModel):
    """Response of the routes that retry or resolve parked items."""

    ids: tuple[ShortText, ...]
    """Ids of the items that went back into the queue."""
