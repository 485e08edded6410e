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
    """A node in the eyes of the ledger."""

    provider: Address | None
    """Provider that registered the node; None if it is unregistered or retired."""
    member: bool
    banned: bool
    """The node itself, or its provider."""
    capacity: int
    free_stake: int
    """Free stake of the provider, in 10⁻¹⁸ MUST."""
    needed_stake: int
    """Stake that joining would bind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStanding:
    """The pool in the eyes of the ledger."""

    domain_id: int
    active: bool
    owner: Address
    managers: frozenset[Address]
    """The manager, and the one before while its key still counts."""
    orchestrator: Address
    publishers: frozenset[Address]
    """The publisher, and the one before while its key still counts."""
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
    """The chain took something back: only the node's standing says what is true now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MembershipChange:
    """One event of the ledger, about a node, or about every node of a provider."""

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
        """The contract that takes invites."""
        ...

    async def pool(self) -> PoolStanding:
        """The pool as it stands."""
        ...

    async def standing(self, node: Address) -> NodeStanding:
        """A node as it stands; asked about any node that speaks to us, so it must not hold up the other methods."""
        ...

    async def remove(self, nodes: Sequence[Address], *, reason: str) -> None:
        """Takes nodes from the pool without blame; those that left already are no error."""
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
        """Reads on from where any orchestrator committed last, instead of from where this one stood."""
        ...

    async def aclose(self) -> None:
        """Closes connections."""
        ...
