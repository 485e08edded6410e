"""Interface between the orchestrator and one run on the ledger; `chain/run.py` implements it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from ledger.client.contract import Refusal
from ledger.client.event_follower import ObservedEvent
from ledger.client.work import WorkRecord
from protocol.identifiers import Address, Digest
from protocol.identity.typed_data import SigningDomain
from protocol.wire.leases import SignedWorkClaim
from protocol.wire.relayed import JoinRequest, SignedDispute


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedCheckpoint:
    """A version of the policy as announced on the ledger."""

    version: int
    attempt: int
    digest: Digest
    block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Funds:
    """Funds, prices (in 10⁻¹⁸ MUST) and periods of a pool."""

    free: int
    """Escrow that no open work reserves, minus an announced withdrawal of the owner."""
    price: int
    """Price per work unit."""
    penalty: int
    """Slash per work unit of the lease if its work is forged; the stake must cover it."""
    fees: int = 0
    """Verdict fees that one work item reserves in addition to its reward."""
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
    """A node's membership in the pool."""

    provider: Address
    block: int
    """The block in which the node joined."""


@dataclass(frozen=True, slots=True)
class RunEvents:
    """Events since the last commit."""

    events: tuple[ObservedEvent, ...]
    commit: Callable[[], Awaitable[None]]
    """Commits the events as processed; until then they are returned again."""
    more: bool
    """Whether more events can be read immediately."""


class RunLedger(Protocol):
    """One run of one pool on the ledger. Every method may raise `Unavailable` while the chain is down."""

    @property
    def domain(self) -> SigningDomain:
        """Signing domain of the contract that accepts work."""
        ...

    async def announced(self, version: int | None = None) -> AnnouncedCheckpoint | None:
        """Returns the newest attempt of a version, or the newest version; None if it was never announced."""
        ...

    async def publisher_of(self, announced: AnnouncedCheckpoint) -> Address:
        """Returns the key that announced a version: the publisher's, or its former key during a rotation."""
        ...

    async def funds(self) -> Funds:
        """Returns the pool's present funds."""
        ...

    async def free_stake(self, provider: Address) -> int:
        """Returns a provider's stake that neither memberships nor open work lock."""
        ...

    async def seat(self, node: Address) -> PoolSeat | None:
        """Returns a node's membership; None if it is not a member."""
        ...

    async def held_until(self, node: Address) -> int:
        """Returns the latest expiry of leases that a former member may still use, in Unix seconds; 0 if none."""
        ...

    async def block_hash(self, block: int) -> Digest | None:
        """Returns the hash of a block; None until the block has the pool's confirmations."""
        ...

    async def work(self, key: Digest) -> WorkRecord | None:
        """Returns the ledger's record of a work item; None if it was never submitted."""
        ...

    async def submit_work(self, claims: Sequence[SignedWorkClaim]) -> list[Refusal]:
        """Submits work of several nodes in one transaction; returns the refused items."""
        ...

    async def work_refusals(self, claims: Sequence[SignedWorkClaim]) -> list[Refusal]:
        """Returns the submissions that the ledger would refuse now. Costs no gas."""
        ...

    async def redeem_invites(self, joins: Sequence[JoinRequest]) -> list[Refusal]:
        """Redeems invites of several nodes in one transaction; returns the refused ones."""
        ...

    async def join_refusals(self, joins: Sequence[JoinRequest]) -> list[Refusal]:
        """Returns the joins that the ledger would refuse now. Costs no gas."""
        ...

    async def open_disputes(self, disputes: Sequence[SignedDispute]) -> list[Refusal]:
        """Opens disputes for nodes, each in its own transaction; returns the refused ones, which cost no gas."""
        ...

    async def events(self) -> RunEvents:
        """Returns events since the last commit; before the first commit, all events."""
        ...

    def forget_position(self) -> None:
        """Makes the next read start at the committed position, which another orchestrator may have moved."""
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
