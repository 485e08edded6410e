"""Invites: a pool's orchestrator invites a node, which redeems the invite on the ledger (`ComputePools`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from protocol.identifiers import Address, Digest, digest
from protocol.identity.typed_data import TypedStruct

LONGEST_INVITE = timedelta(days=7)
"""Longest time until an invite expires; also the longest life of a mailbox in discovery."""

MOST_URL_BYTES = 512
"""Limit of the URL, which the contract enforces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invite(TypedStruct):
    """Single-use invite for one node, with the orchestrator's URL."""

    TYPE: ClassVar[str] = "Invite(uint256 poolId,uint256 domainId,address node,uint256 nonce,uint256 expiry,string url)"

    pool_id: int
    domain_id: int
    node: Address
    nonce: int
    expiry: int
    """Unix time in seconds until which the invite may be redeemed."""
    url: str
    """URL of the orchestrator."""

    def expired(self, now: datetime) -> bool:
        """Returns whether the invite has expired."""
        return now >= datetime.fromtimestamp(min(self.expiry, 2**37), UTC)

    @property
    def hash(self) -> Digest:
        """EIP-712 hash that the node's `Join` names."""
        return digest(self.struct_hash())


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(TypedStruct):
    """A node's signed acceptance of an invite, which any account may send to the ledger."""

    TYPE: ClassVar[str] = "Join(bytes32 inviteHash)"

    invite_hash: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(TypedStruct):
    """A node's signed exit from a pool, which any account may send to the ledger."""

    TYPE: ClassVar[str] = "Leave(uint256 poolId,address node,uint256 nonce,uint256 deadline)"

    pool_id: int
    node: Address
    nonce: int
    """Number of times that the node joined the pool."""
    deadline: int
    """Unix time in seconds until which the ledger accepts the exit."""
