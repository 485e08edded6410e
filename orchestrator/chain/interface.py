"""Interface to the orchestrator's pool on the ledger, which `chain/pool.py` implements."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from ledger.client.pools import Terms
from ledger.deployment import Deployment
from protocol.identifiers import Address
from protocol.identity.typed_data import SigningDomain


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLedgerStatus:
    """State of a node on the ledger: registration, membership, bans and stake."""

    provider: Address | None
    """Provider that registered the node; None if it is unregistered or retired."""
    member: bool
    banned: bool
    """Whether the node or its provider is banned."""
    capacity: int
    """Capacity with which the provider registered the node; the stake that a join locks is proportional to it."""
    free_stake: int
    """Free stake of the provider, in 10⁻¹⁸ MUST."""
    needed_stake: int
    """Stake that joining would lock, in 10⁻¹⁸ MUST."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsentStatus:
    """What the ledger says about a node and the provider that wants to register it."""

    nonce: int
    """Nonce that the node's next consent must have."""
    provider: Address | None
    """Provider for which the node is registered; None if it is unregistered or retired."""
    banned: bool
    """Whether the pool has banned the node or the provider."""
    stake_per_capacity: int
    """Stake that joining the pool locks per unit of capacity, in 10⁻¹⁸ MUST."""
    min_capacity: int
    """Minimum capacity of a node that joins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLedgerStatus:
    """State of the pool on the ledger, with its role keys."""

    domain_id: int
    active: bool
    """Whether the pool is active, so that nodes may join and submit work."""
    owner: Address
    managers: frozenset[Address]
    """The manager's key, and the previous one during a rotation."""
    orchestrator: Address
    publishers: frozenset[Address]
    """The publisher's key, and the previous one during a rotation."""
    validators: frozenset[Address]
    """The keys that may give verdicts."""
    min_capacity: int
    """Minimum capacity of a node that joins."""
    max_nodes: int
    """Maximum number of members."""
    members: int
    """Current number of members."""
    terms: Terms
    """The pool's present terms of work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderStatus:
    """A provider's stake, and its rewards in the pool; amounts in 10⁻¹⁸ MUST."""

    active: int
    """Stake that can be locked, slashed and unbonded."""
    membership_lock: int
    work_lock: int
    unbonding: int
    unbonds: tuple[tuple[int, datetime], ...]
    """Amounts in the unbonding queue with the times at which they mature, oldest first."""
    unbonding_period: timedelta
    accrued: int
    """Rewards in this pool that the provider can collect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMoney:
    """Money of the pool, in 10⁻¹⁸ MUST, and the coin of accounts that pay gas."""

    escrow: int
    reserved: int
    """Part of the escrow that open work reserves."""
    withdrawal: int
    """Part of the escrow whose withdrawal the owner has announced."""
    withdrawal_ready: datetime | None
    accrued: int
    """Rewards and fees of all final work so far."""
    paid: int
    """Part of them that was collected."""
    coins: tuple[int, ...]
    """Balances of the accounts, in the coin's smallest unit."""
    head_time: datetime
    """Time of the chain's newest block."""


class MemberEvent(StrEnum):
    """Kind of a membership event on the ledger."""

    JOINED = "joined"
    LEFT = "left"
    REMOVED = "removed"
    EVICTED = "evicted"
    BANNED = "banned"
    UNBANNED = "unbanned"
    REVERTED = "reverted"
    """A reorg removed an earlier event, so the node's current state has to be read from the ledger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipChange:
    """A membership event about one node, or about all nodes of a provider."""

    event: MemberEvent
    node: Address | None = None
    provider: Address | None = None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """Membership events since the last commit."""

    changes: tuple[MembershipChange, ...]
    commit: Callable[[], Awaitable[None]]
    """Records the events as processed. Until this is called, they are returned again."""
    more: bool = False
    """Whether more events can be read immediately."""


class PoolLedger(Protocol):
    """One pool on the ledger. Every method may raise `Unavailable` when the chain is down."""

    @property
    def deployment(self) -> Deployment:
        """Addresses of the ledger's contracts."""
        ...

    @property
    def domain(self) -> SigningDomain:
        """Signing domain of the contract that redeems invites."""
        ...

    @property
    def registry_domain(self) -> SigningDomain:
        """Signing domain of the contract that registers nodes."""
        ...

    async def free_stake(self, provider: Address) -> int:
        """Reads a provider's free stake, in 10⁻¹⁸ MUST.

        Any client can cause such reads, so an implementation must not let them delay the other methods.
        """
        ...

    async def consent_status(self, node: Address, provider: Address) -> ConsentStatus:
        """Reads what decides on the registration of a node.

        Any client can cause such reads, so an implementation must not let them delay the other methods.
        """
        ...

    async def pool(self) -> PoolLedgerStatus:
        """Reads the pool with its terms and role keys."""
        ...

    async def node_status(self, node: Address) -> NodeLedgerStatus:
        """Reads the state of a node.

        Any client can cause such reads, so an implementation must not let them delay the other methods.
        """
        ...

    async def provider_status(self, provider: Address) -> ProviderStatus:
        """Reads a provider's stake and rewards, without delaying the other methods."""
        ...

    async def money(self, accounts: Sequence[Address]) -> PoolMoney:
        """Reads the pool's escrow and payments, and the coin of `accounts`, without delaying the other methods."""
        ...

    async def remove(self, nodes: Sequence[Address], *, reason: str) -> None:
        """Removes nodes without a penalty; skips those that are not members any more."""
        ...

    async def ban(self, node: Address, *, reason: str) -> None:
        """Bans a node.

        Raises:
            Forbidden: This orchestrator does not have the manager's key.
        """
        ...

    async def unban(self, node: Address) -> None:
        """Lifts a ban.

        Raises:
            Forbidden: This orchestrator does not have the manager's key.
        """
        ...

    async def changes(self) -> Changes:
        """Returns membership events since the last commit; before the first commit, all events."""
        ...

    def forget_position(self) -> None:
        """Makes the next read of events start at the committed position.

        Another orchestrator may have moved that position while it held the loop's leader lease.
        """
        ...

    async def aclose(self) -> None:
        """Closes connections."""
        ...
