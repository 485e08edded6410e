"""Leases, and what is signed about work under them: claims, disputes (`WorkLedger`), and lists of served requests."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import ClassVar

from protocol.identifiers import Address, Digest, digest
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain, TypedStruct, abi_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkKey:
    """Identity of a piece of work.

    It is unique among all submissions.

    The ledger accepts at most one submission for each.
    """

    pool_id: int
    run: Digest
    node: Address
    step: int
    index: int

    @property
    def hash(self) -> Digest:
        """Returns the hash under which the ledger stores the work record."""
        return abi_hash(self.pool_id, self.run, self.node, self.step, self.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease(TypedStruct):
    """The orchestrator's signed permission for one node to do one slot.

    The work must use the version of the policy that the lease names.
    """

    TYPE: ClassVar[str] = (
        "Lease(uint256 poolId,bytes32 run,uint64 step,uint32 index,address node,uint64 version,bytes32 digest,"
        "uint64 beaconBlock,bytes32 salt,uint32 groups,uint64 maxUnits,uint64 expiry)"
    )

    pool_id: int
    run: Digest
    step: int
    index: int
    node: Address
    version: int
    digest: Digest
    """Digest of the policy version."""
    beacon_block: int
    """Number of the block whose hash is part of the slot's seed."""
    salt: Digest
    """Part of the slot's seed that stays secret until the orchestrator issues the signed lease."""
    groups: int
    """Number of groups in the slot."""
    max_units: int
    """Maximum number of work units that the node may claim. The ledger locks the penalty for all of them."""
    expiry: int
    """Unix time in seconds until which the ledger accepts work under this lease."""

    @property
    def key(self) -> WorkKey:
        """Returns the identity of the work under this lease."""
        return WorkKey(pool_id=self.pool_id, run=self.run, node=self.node, step=self.step, index=self.index)

    @property
    def hash(self) -> Digest:
        """EIP-712 hash of the lease, which the node's `WorkClaim` contains."""
        return digest(self.struct_hash())

    def expired(self, now: datetime) -> bool:
        """Returns whether the lease has expired at time `now`."""
        return now > datetime.fromtimestamp(min(self.expiry, 2**37), UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSalt(TypedStruct):
    """Message that an orchestrator signs to derive a slot's salt.

    The signature is deterministic (RFC 6979), so every replica of the orchestrator derives the same salt for a slot,
    also when a node repeats its request. Without the orchestrator's key, the salt can't be predicted.
    """

    TYPE: ClassVar[str] = (
        "SlotSalt(uint256 poolId,bytes32 run,uint64 step,uint32 index,address node,uint64 version,bytes32 digest)"
    )

    pool_id: int
    run: Digest
    step: int
    index: int
    node: Address
    version: int
    digest: Digest

    def derive(self, key: Key, domain: SigningDomain) -> Digest:
        """Returns the salt: the SHA-256 of the signature's first 64 bytes (r and s)."""
        return digest(hashlib.sha256(self.sign(key, domain)[:64]).digest())


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkClaim(TypedStruct):
    """A node's signed claim that a file is its work under a lease."""

    TYPE: ClassVar[str] = "Work(bytes32 leaseHash,bytes32 sha256Hash,uint64 units)"

    lease_hash: Digest
    """EIP-712 hash of the lease."""
    sha256: Digest
    """SHA-256 of the submitted file."""
    units: int
    """Number of work units that the node claims."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSlot(TypedStruct):
    """A gateway's signed statement of the requests that a slot answered."""

    TYPE: ClassVar[str] = "ServedSlot(bytes32 key,bytes32 listHash)"

    key: Digest
    """Key of the slot's work; see `WorkKey.hash`. The ledger accepts one submission for each key."""
    list_hash: Digest
    """SHA-256 of the list's bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispute(TypedStruct):
    """A node's signed dispute of a verdict on its work.

    Any account may send it to the ledger and pay the gas.
    """

    TYPE: ClassVar[str] = "Dispute(bytes32 key,bytes32 evidenceHash,uint256 deadline)"

    key: Digest
    """Key of the disputed work; see `WorkKey.hash`."""
    evidence_hash: Digest
    deadline: int
    """Unix time in seconds until which the ledger accepts the dispute."""
