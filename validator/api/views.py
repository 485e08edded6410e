"""Response models of the validator's API."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from protocol.identifiers import WireAddress, WireDigest
from protocol.wire.base import LongText, Milliseconds, PoolId, ShortText, WireModel
from protocol.wire.leases import Count


class QueueView(WireModel):
    """Lengths of the queue."""

    waiting: Count
    """Another validator's turn comes first, or the next try is still to come."""
    ready: Count
    in_hand: Count
    parked: Count
    not_final: Count
    """Work whose windows are still open."""


class VerdictCount(WireModel):
    """Number of verdicts of one kind."""

    outcome: ShortText
    reason: ShortText
    count: Count


class LatencyView(WireModel):
    """Latency from reading a submission on the ledger to its verdict, for recent verdicts of this process."""

    p50_s: float | None
    p99_s: float | None
    of: Count


class RatesView(WireModel):
    """Per second, over the last minute, of this process."""

    files: float
    rows: float
    prefilled_tokens: float


class ValidatorSeen(WireModel):
    """A validator of the pool."""

    address: WireAddress
    here: bool
    """Whether it shares this Redis."""
    heard_at_ms: Milliseconds | None
    """Ledger time of its last verdict or epoch."""


class MemberView(WireModel):
    """A process that shares this validator's Redis."""

    address: WireAddress
    place: LongText
    """Its host and directory."""
    is_this: bool
    """Whether this is the responding process."""
    state: Literal["starting", "well", "unwell", "silent"]
    """Well ones take work; unwell ones try themselves again and again; silent ones said nothing for a minute."""
    code: ShortText = ""
    why: LongText = ""
    hint: LongText = ""
    since_ms: Milliseconds
    """Since when it is so; of a silent one, when it was last heard of."""
    tests: Count = 0
    """Self-tests that failed since then."""


class LoopView(WireModel):
    """A piece of background work."""

    name: ShortText
    rounds: Count
    crashes: Count
    last_error: LongText = ""


class ParkedView(WireModel):
    """Work that waits for a person."""

    id: ShortText
    key: WireDigest
    kind: ShortText
    node: WireAddress
    step: Count
    index: Count
    attempts: Count
    parked_at_ms: Milliseconds
    deadline_ms: Milliseconds
    """By the chain's time, or a little later: then it expires, unpaid and blameless."""
    code: ShortText
    why: LongText
    hint: LongText = ""


class ParkedList(WireModel):
    """Answer of `GET /v1/parked`: each node's longest parked first, then each one's second."""

    items: tuple[ParkedView, ...]


class StatusView(WireModel):
    """Answer of `GET /v1/status`."""

    validator: WireAddress
    pool_id: PoolId
    version: ShortText
    seated: bool | None
    """Whether the pool accepts its verdicts; None while the chain is unavailable."""
    chain_block: Count | None
    """The newest that was seen; None while the chain could not be asked yet."""
    next_block: Count | None
    """Events before it were read."""
    epoch: Count | None
    """Current epoch; 0 before the first, None while the chain is unavailable."""
    queue: QueueView
    verdicts: tuple[VerdictCount, ...]
    latency: LatencyView
    rates: RatesView
    validators: tuple[ValidatorSeen, ...]
    members: tuple[MemberView, ...] = ()
    """Processes that share this Redis, this one first."""
    parked: tuple[ParkedView, ...]
    """The first of them."""
    loops: tuple[LoopView, ...]
    looks: dict[str, int] = {}
    """Second looks since the start."""


class Resolve(WireModel):
    """Body of `POST /v1/parked/{id}/resolve`: a person decides. Nobody is slashed by hand."""

    outcome: Literal["accepted", "rejected"]
    words: Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f\x7f]*$")]
    """Reason; the contributor reads it."""


class Unparked(WireModel):
    """Answer to both ways of taking work up again."""

    ids: tuple[ShortText, ...]
