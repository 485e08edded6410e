"""Interface to one run on the ledger, which `chain/run.py` implements."""

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
from protocol.wire.relayed import JoinRequest, SignedConsents, SignedDispute, SignedLeave


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedCheckpoint:
    """A version of the policy as announced on the ledger."""

    version: int
    attempt: int
    """Number of the announcement: a version may be announced again with another digest."""
    digest: Digest
    block: int
    """Number of the block with the announcement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Funds:
    """Funds, prices (in 10⁻¹⁸ MUST) and periods of a pool."""

    free: int
    """Escrow that no open work reserves, minus an announced withdrawal of the owner."""
    price: int
    """Price per work unit."""
    penalty: int
    """Stake that is slashed per work unit of the lease if its work is forged; a provider's free stake must cover it."""
    fees: int = 0
    """Verdict fees that one work item reserves in addition to its reward."""
    active: bool
    """Whether the pool accepts work."""
    notice: timedelta
    """Notice period of the pool. A lease lasts no longer, because escrow and membership are guaranteed only so long."""
    judging: timedelta
    """Time limit of the first verdict after submission."""
    settling: timedelta
    """Maximum time from a submission until its work is final: judge, challenge and dispute periods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedNode:
    """A member of the pool: its provider, and the block of its joining."""

    provider: Address
    block: int
    """The block in which the node joined."""


@dataclass(frozen=True, slots=True)
class RunEvents:
    """Events since the last commit."""

    events: tuple[ObservedEvent, ...]
    commit: Callable[[], Awaitable[None]]
    """Records the events as processed. Until this is called, they are returned again."""
    more: bool
    """Whether more events can be read immediately."""


class RunLedger(Protocol):
    """One run of one pool on the ledger.

    Every method may raise `Unavailable` while the chain is down.
    """

    @property
    def domain(self) -> SigningDomain:
        """Signing domain of the contract that accepts work."""
        ...

    @property
    def relayer(self) -> Address:
        """Account that pays the gas of relayed transactions."""
        ...

    async def announced(self, version: int | None = None) -> AnnouncedCheckpoint | None:
        """Returns the newest announcement of `version`; None if there is none.

        Without `version`, it is the newest announcement of the run's newest version.
        """
        ...

    async def publisher_of(self, announced: AnnouncedCheckpoint) -> Address:
        """Returns the publisher's key that announced a version.

        While the key is being rotated, it may be the previous key.
        """
        ...

    async def funds(self) -> Funds:
        """Returns the pool's present funds."""
        ...

    async def free_stake(self, provider: Address) -> int:
        """Returns a provider's free stake, which is locked neither by memberships nor by open work."""
        ...

    async def membership(self, node: Address) -> JoinedNode | None:
        """Returns a node's membership; None if it is not a member."""
        ...

    async def held_until(self, node: Address) -> int:
        """Returns the latest expiry of leases under which a former member may still submit work.

        The expiry is in Unix seconds; 0 if there is no such lease.
        """
        ...

    async def block_hash(self, block: int) -> Digest | None:
        """Returns the hash of a block; None until the block has the pool's confirmations."""
        ...

    async def block_time(self, block: int) -> int | None:
        """Returns the time of a block in Unix seconds; None if the chain has no such block any more."""
        ...

    async def work(self, key: Digest) -> WorkRecord | None:
        """Returns the ledger's record of a work item; None if it was never submitted."""
        ...

    async def submit_work(self, claims: Sequence[SignedWorkClaim]) -> list[Refusal]:
        """Submits work of several nodes in one transaction; returns the refused items."""
        ...

    async def work_refusals(self, claims: Sequence[SignedWorkClaim]) -> list[Refusal]:
        """Returns the submissions that the ledger would refuse now, from dry runs that cost no gas."""
        ...

    async def redeem_invites(self, joins: Sequence[JoinRequest]) -> list[Refusal]:
        """Redeems invites of several nodes in one transaction; returns the refused joins."""
        ...

    async def join_refusals(self, joins: Sequence[JoinRequest]) -> list[Refusal]:
        """Returns the joins that the ledger would refuse now, from dry runs that cost no gas."""
        ...

    async def open_disputes(self, disputes: Sequence[SignedDispute]) -> list[Refusal]:
        """Opens disputes for nodes, each in its own transaction; returns the refused disputes.

        A refused dispute costs no gas, because it fails at the gas estimate.
        """
        ...

    async def joins(self, node: Address) -> int:
        """Returns how often a node has joined the pool, which is the nonce of its leave."""
        ...

    async def end_memberships(self, leaves: Sequence[SignedLeave]) -> list[Refusal]:
        """Ends memberships at the request of their nodes, each in its own transaction; returns the refused leaves.

        A refused leave costs no gas, because it fails at the gas estimate.
        """
        ...

    async def registration(self, node: Address) -> tuple[int, Address | None]:
        """Returns the nonce of a node's next consent, and the provider for which the node is registered, if any."""
        ...

    async def register_nodes(self, consents: Sequence[SignedConsents]) -> list[Refusal]:
        """Registers nodes with their and their providers' consents, each in its own transaction.

        It returns the refused consents, which cost no gas, because they fail at the gas estimate.
        """
        ...

    async def events(self) -> RunEvents:
        """Returns events since the last commit; before the first commit, all events."""
        ...

    def forget_position(self) -> None:
        """Makes the next read of events start at the committed position.

        Another orchestrator may have moved that position while it held the loop's leader lease.
        """
        ...

    async def aclose(self) -> None:
        """Closes connections."""
        ...


def error_name(reason: str) -> str:
    """Returns the name of the contract error in the text of a refusal; empty if there is none.

    The text begins with `Name(arguments)`, or ends with `(Name)`.
    """
    match = re.match(r"([A-Z]\w+)\(", reason) or re.search(r"\(([A-Z]\w+)\)$", reason)
    return match[1] if match else ""


def expiry_of(signed: SignedDispute | SignedLeave | SignedConsents) -> datetime:
    """Returns the latest time at which a signed dispute, leave or consent may be sent to the ledger."""
    return datetime.fromtimestamp(min(signed.deadline, 2**37), UTC)
