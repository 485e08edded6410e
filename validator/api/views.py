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
    """Items that wait for another validator's turn or for their next attempt."""
    ready: Count
    in_hand: Count
    parked: Count
    not_final: Count
    """Work that is not final yet."""


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
    """Rates per second of this process, over the last minute."""

    files: float
    rows: float
    prefilled_tokens: float


class ValidatorSeen(WireModel):
    """A validator of the pool."""

    address: WireAddress
    here: bool
    """True if the validator shares this Redis."""
    heard_at_ms: Milliseconds | None
    """Ledger time of its last verdict or epoch."""


class MemberView(WireModel):
    """A process that shares this validator's Redis."""

    address: WireAddress
    place: LongText
    """Its host and directory."""
    is_this: bool
    """True for the responding process."""
    state: Literal["starting", "well", "unwell", "silent"]
    """`well` processes take work, `unwell` ones repeat their self-test, `silent` ones sent no sign for a minute."""
    code: ShortText = ""
    why: LongText = ""
    hint: LongText = ""
    since_ms: Milliseconds
    """Start of this state; of a silent process, its last sign of life."""
    tests: Count = 0
    """Failed self-tests since then."""


class LoopView(WireModel):
    """A background loop."""

    name: ShortText
    rounds: Count
    crashes: Count
    last_error: LongText = ""


class ParkedView(WireModel):
    """An item that waits for a person."""

    id: ShortText
    key: WireDigest
    kind: ShortText
    node: WireAddress
    step: Count
    index: Count
    attempts: Count
    parked_at_ms: Milliseconds
    deadline_ms: Milliseconds
    """Expiry by the chain's time (or a little later): then the work expires, without pay or penalty."""
    code: ShortText
    why: LongText
    hint: LongText = ""


class ParkedList(WireModel):
    """Answer of `GET /v1/parked`: each node's longest parked item first, then each one's second."""

    items: tuple[ParkedView, ...]


class StatusView(WireModel):
    """Answer of `GET /v1/status`."""

    validator: WireAddress
    pool_id: PoolId
    version: ShortText
    seated: bool | None
    """True if the pool accepts its verdicts; None while the chain is unavailable."""
    chain_block: Count | None
    """Newest block; None until the chain first answered."""
    next_block: Count | None
    """Next block to read events from."""
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
    """First entries of that list."""
    loops: tuple[LoopView, ...]
    looks: dict[str, int] = {}
    """Second looks since the start."""


class Resolve(WireModel):
    """Body of `POST /v1/parked/{id}/resolve`: a person's decision, which can't slash a node."""

    outcome: Literal["accepted", "rejected"]
    words: Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f\x7f]*$")]
    """Reason; the contributor reads it."""


class Unparked(WireModel):
    """Answer of the routes that retry parked work."""

    ids: tuple[ShortText, ...]
