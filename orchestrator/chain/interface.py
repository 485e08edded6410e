"""Interface of the orchestrator to the ledger; `chain/pool.py` implements it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from protocol.identifiers import Address
from protocol.identity.typed_data import SigningDomain


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStanding:
    """State of a node on the ledger."""

    provider: Address | None
    """Provider that registered the node; None if it is unregistered or retired."""
    member: bool
    banned: bool
    """Whether the node or its provider is banned."""
    capacity: int
    free_stake: int
    """Free stake of the provider, in 10⁻¹⁸ MUST."""
    needed_stake: int
    """Stake that joining would lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStanding:
    """State of the pool on the ledger."""

    domain_id: int
    active: bool
    owner: Address
    managers: frozenset[Address]
    """The manager, and the former one while its key is still valid."""
    orchestrator: Address
    publishers: frozenset[Address]
    """The publisher, and the former one while its key is still valid."""
    validators: frozenset[Address]
    """The keys that may give verdicts."""
    min_capacity: int
    max_nodes: int
    members: int


class MemberEvent(StrEnum):
    """Kind of a membership event on the ledger."""

    JOINED = "joined"
    LEFT = "left"
    REMOVED = "removed"
    EVICTED = "evicted"
    BANNED = "banned"
    UNBANNED = "unbanned"
    LOOK = "look"
    """A reorg removed an event; the current state of the node must be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipChange:
    """A membership event of one node, or of all nodes of a provider."""

    event: MemberEvent
    node: Address | None = None
    provider: Address | None = None
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Changes:
    """Membership events since the last commit."""

    changes: tuple[MembershipChange, ...]
    commit: Callable[[], Awaitable[None]]
    """Commits the events as processed; until then they are returned again."""
    more: bool = False
    """Whether more events can be read immediately."""


class PoolLedger(Protocol):
    """One pool on the ledger. Every method may raise `Unavailable` when the chain is down."""

    @property
    def domain(self) -> SigningDomain:
        """EIP-712 domain of the contract that accepts invites."""
        ...

    async def pool(self) -> PoolStanding:
        """Returns the current state of the pool."""
        ...

    async def standing(self, node: Address) -> NodeStanding:
        """Returns the current state of a node.

        Requests of any stranger cause a call, so it must not delay the other methods.
        """
        ...

    async def remove(self, nodes: Sequence[Address], *, reason: str) -> None:
        """Removes nodes from the pool without a penalty; skips those that left already."""
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
        """Returns membership events since the last commit, at first from the beginning."""
        ...

    def forget_position(self) -> None:
        """Continues from the position that any orchestrator committed last, instead of this one's position."""
        ...

    async def aclose(self) -> None:
        """Closes connections."""
        ...
