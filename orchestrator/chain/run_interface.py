"""Interface of a run to the ledger; `chain/run.py` implements it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from orchestrator.domain.slots import SlotEvent, SlotState
from protocol.identifiers import Address, Digest
from protocol.identity.typed_data import SigningDomain
from protocol.verdicts import Outcome
from protocol.wire.leases import SignedWorkClaim
from protocol.wire.relayed import JoinRequest, SignedDispute


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedCheckpoint:
    """An announcement of a checkpoint version on the ledger."""

    version: int
    attempt: int
    digest: Digest
    block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Funds:
    """Funds, prices (in 10⁻¹⁸ MUST) and periods of a pool."""

    free: int
    """The escrow that no open work reserves, less a withdrawal that the owner announced."""
    price: int
    """Per work unit."""
    penalty: int
    """Per work unit of the lease, if its work is forged: what the stake must cover."""
    fees: int = 0
    """Fees that a piece of work reserves for verdicts, besides its reward."""
    active: bool
    """Whether the pool accepts work."""
    notice: timedelta
    """Maximum lease time: escrow and membership are guaranteed for the notice period only."""
    judging: timedelta
    """Time limit of the first verdict after submission."""
    settling: timedelta
    """Maximum time that work is open after its submission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSeat:
    """A node's place in the pool."""

    provider: Address
    block: int
    """The block in which it joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkEvent:
    """One event about a work item of this run."""

    what: SlotEvent
    key: Digest
    node: Address
    block: int
    transaction: Digest
    reverted: bool = False
    """A reorg removed the event; the current state must be read from the ledger."""
    step: int = 0
    index: int = 0
    version: int = 0
    digest: Digest | None = None
    sha256: Digest | None = None
    units: int = 0
    groups: int = 0
    max_units: int = 0
    beacon_block: int = 0
    outcome: Outcome | None = None
    reason: int = 0
    audit_hash: Digest | None = None
    judge: Address | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatEvent:
    """A node joined or left, so its cached membership is invalid."""

    node: Address
    expelled: bool = False
    """Whether the pool evicted or banned the node; later missing deliveries are then excused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BanEvent:
    """A provider was banned. Its nodes stay members, but may only use the leases that they have."""

    provider: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class MoneyEvent:
    """Change of a provider's stake or of the pool's escrow."""

    provider: Address | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncementEvent:
    """A version was announced, or a reorg removed its announcement."""

    version: int


RunEvent = WorkEvent | SeatEvent | BanEvent | MoneyEvent | AnnouncementEvent


@dataclass(frozen=True, slots=True)
class RunEvents:
    """Events since the last commit."""

    events: tuple[RunEvent, ...]
    commit: Callable[[], Awaitable[None]]
    """Commits the events as processed; until then they are returned again."""
    more: bool
    """Whether more events can be read immediately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkNow:
    """Current state of a work item on the ledger."""

    state: SlotState
    sha256: Digest
    units: int
    outcome: Outcome | None
    reason: int


@dataclass(frozen=True, slots=True)
class LedgerRefusal:
    """A request that the ledger refused, alone or in a batch."""

    name: Digest | Address
    """The work's key, or the node that wanted to join."""
    error: str
    """Name of the contract's error."""
    detail: str
    """The error with its arguments, or an explanation that ends with its name."""


class RunLedger(Protocol):
    """One run of one pool on the ledger. Every method may raise `Unavailable` while the chain is down."""

    @property
    def domain(self) -> SigningDomain:
        """EIP-712 domain of the contract that accepts work."""
        ...

    async def announced(self, version: int | None = None) -> AnnouncedCheckpoint | None:
        """Returns the newest attempt of a version, or of the newest version; None if it was never announced."""
        ...

    async def publisher_of(self, announced: AnnouncedCheckpoint) -> Address:
        """Returns the key that announced a version; the publisher's former key counts during rotation."""
        ...

    async def funds(self) -> Funds:
        """Returns the pool's present funds."""
        ...

    async def free_stake(self, provider: Address) -> int:
        """Returns a provider's stake that neither memberships nor open work bind."""
        ...

    async def seat(self, node: Address) -> PoolSeat | None:
        """Returns the membership of a node; None if it is no member."""
        ...

    async def held_until(self, node: Address) -> int:
        """Returns the latest expiry of leases that a former member may still use, in Unix seconds; 0 for none."""
        ...

    async def block_hash(self, block: int) -> Digest | None:
        """Returns the hash of a block; None until it has the pool's confirmations."""
        ...

    async def work(self, key: Digest) -> WorkNow | None:
        """Returns the state of a work item; None if it was never submitted."""
        ...

    async def submit_work(self, works: Sequence[SignedWorkClaim]) -> list[LedgerRefusal]:
        """Submits work for its nodes; returns the refused submissions."""
        ...

    async def work_refusals(self, works: Sequence[SignedWorkClaim]) -> list[LedgerRefusal]:
        """Returns the submissions that the ledger would refuse now, by a dry run without gas."""
        ...

    async def join_refusals(self, joins: Sequence[JoinRequest]) -> list[LedgerRefusal]:
        """Returns the joins that the ledger would refuse now, by a dry run."""
        ...

    async def submit_joins(self, joins: Sequence[JoinRequest]) -> list[LedgerRefusal]:
        """Redeems invites for their nodes; returns the refused joins."""
        ...

    async def submit_disputes(self, disputes: Sequence[SignedDispute]) -> list[LedgerRefusal]:
        """Opens disputes for their nodes, a transaction each; returns the refused ones, which cost no gas."""
        ...

    async def events(self) -> RunEvents:
        """Returns events since the last commit, at first from the beginning."""
        ...

    def forget_position(self) -> None:
        """Continues from the position that any orchestrator committed last."""
        ...

    async def aclose(self) -> None:
        """Closes connections."""
        ...


def error_name(reason: str) -> str:
    """Returns the contract's error in a refusal: `Name(arguments)`, or an explanation that ends with `(Name)`."""
    match = re.match(r"([A-Z]\w+)\(", reason) or re.search(r"\(([A-Z]\w+)\)$", reason)
    return match[1] if match else ""


def holds_until(dispute: SignedDispute) -> datetime:
    """Returns the latest time at which the ledger accepts a signed dispute."""
    return datetime.fromtimestamp(min(dispute.deadline, 2**37), UTC)
