"""Interface of a run to the ledger; `chain/run.py` implements it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from ledger.client.contract import Refusal
from orchestrator.domain.slots import SlotEvent, SlotState
from protocol.identifiers import Address, Digest
from protocol.identity.typed_data import SigningDomain
from protocol.verdicts import Outcome
from protocol.wire.leases import SignedWorkClaim
from protocol.wire.relayed import JoinRequest, SignedDispute


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedCheckpoint:
    """A version as the ledger names it."""

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
    """One event about a piece of work of this run."""

    what: SlotEvent
    key: Digest
    node: Address
    block: int
    transaction: Digest
    reverted: bool = False
    """The chain took it back: only the ledger's present word counts."""
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
    """A node joined or left: what was known of its seat is old."""

    node: Address
    put_out: bool = False
    """Whether the pool evicted or banned the node; later missing deliveries are then excused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BanEvent:
    """A provider was banned. Its nodes stay members, and may only use leases that they have."""

    provider: Address


@dataclass(frozen=True, slots=True, kw_only=True)
class MoneyEvent:
    """Change of a provider's stake or of the pool's escrow."""

    provider: Address | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncementEvent:
    """A version was announced, or the chain took that back."""

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
    """A piece of work as it stands on the ledger."""

    state: SlotState
    sha256: Digest
    units: int
    outcome: Outcome | None
    reason: int


class RunLedger(Protocol):
    """One run of one pool on the ledger. Every method may raise `Unavailable` while the chain is down."""

    @property
    def domain(self) -> SigningDomain:
        """The contract that takes work."""
        ...

    async def announced(self, version: int | None = None) -> AnnouncedCheckpoint | None:
        """A version in its newest attempt, or the newest version; None if it was never announced."""
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
        """A member's seat."""
        ...

    async def held_until(self, node: Address) -> int:
        """Up to when a lease of a former member may expire that it can still use, in Unix seconds; 0: none."""
        ...

    async def block_hash(self, block: int) -> Digest | None:
        """The hash of a block that has the pool's confirmations; None before that."""
        ...

    async def work(self, key: Digest) -> WorkNow | None:
        """A piece of work; None if it was never submitted."""
        ...

    async def submit_work(self, claims: Sequence[SignedWorkClaim]) -> list[Refusal]:
        """Submits work for its nodes in one transaction; returns the refused items."""
        ...

    async def work_refusals(self, claims: Sequence[SignedWorkClaim]) -> list[Refusal]:
        """Returns the submissions that the ledger would refuse now. Costs no gas."""
        ...

    async def redeem_invites(self, joins: Sequence[JoinRequest]) -> list[Refusal]:
        """Redeems invites for their nodes in one transaction; returns the refused ones."""
        ...

    async def join_refusals(self, joins: Sequence[JoinRequest]) -> list[Refusal]:
        """Returns the joins that the ledger would refuse now. Costs no gas."""
        ...

    async def open_disputes(self, disputes: Sequence[SignedDispute]) -> list[Refusal]:
        """Opens disputes for their nodes, a transaction each; returns the refused ones, which cost no gas."""
        ...

    async def events(self) -> RunEvents:
        """Returns events since the last commit, at first from the beginning."""
        ...

    def forget_position(self) -> None:
        """Reads on from where any orchestrator committed last."""
        ...

    async def aclose(self) -> None:
        """Closes connections."""
        ...


def error_name(reason: str) -> str:
    """Returns the contract's error in a refusal: `Name(arguments)`, or `(Name)` at the end of a message."""
    match = re.match(r"([A-Z]\w+)\(", reason) or re.search(r"\(([A-Z]\w+)\)$", reason)
    return match[1] if match else ""


def expiry_of(dispute: SignedDispute) -> datetime:
    """Returns the latest time at which a signed dispute may be sent to the ledger."""
    return datetime.fromtimestamp(min(dispute.deadline, 2**37), UTC)
