"""Invites to a pool, and the signed messages by which a node joins or leaves it.

A pool's orchestrator signs an invite for a node. The node redeems it on the ledger (`ComputePools`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from protocol.identifiers import Address, Digest, digest
from protocol.identity.typed_data import TypedStruct

LONGEST_INVITE = timedelta(days=7)
"""Maximum time until an invite expires. The discovery service keeps a node's mailbox for as long."""

MOST_URL_BYTES = 512
"""Maximum length of the orchestrator's URL in an invite, in bytes; the contract enforces it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invite(TypedStruct):
    """An invite for one node, which can be redeemed once."""

    TYPE: ClassVar[str] = "Invite(uint256 poolId,uint256 domainId,address node,uint256 nonce,uint256 expiry,string url)"

    pool_id: int
    domain_id: int
    node: Address
    nonce: int
    expiry: int
    """Unix time in seconds until which the ledger accepts the invite."""
    url: str
    """URL of the orchestrator."""

    def expired(self, now: datetime) -> bool:
        """Returns whether the invite has expired at time `now`."""
        return now >= datetime.fromtimestamp(min(self.expiry, 2**37), UTC)

    @property
    def hash(self) -> Digest:
        """EIP-712 hash of the invite, which the node's `Join` contains."""
        return digest(self.struct_hash())


@dataclass(frozen=True, slots=True, kw_only=True)
class Join(TypedStruct):
    """A node's signed acceptance of an invite.

    Any account may send it to the ledger and pay the gas.
    """

    TYPE: ClassVar[str] = "Join(bytes32 inviteHash)"

    invite_hash: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(TypedStruct):
    """A node's signed exit from a pool.

    Any account may send it to the ledger and pay the gas.
    """

    TYPE: ClassVar[str] = "Leave(uint256 poolId,address node,uint256 nonce,uint256 deadline)"

    pool_id: int
    node: Address
    nonce: int
    """Number of times that the node has joined the pool, so that an exit can't be replayed after a new join."""
    deadline: int
    """Unix time in seconds until which the ledger accepts the exit."""
