"""Signed leases and work claims, as orchestrator, node and relayer exchange them."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from protocol.identifiers import WireAddress, WireDigest
from protocol.identity.typed_data import VERSION, SigningDomain
from protocol.leases import Lease, WorkClaim
from protocol.wire.base import MAX_INT64, PoolId, SignedModel

Count = Annotated[int, Field(ge=0, le=MAX_INT64)]
MOST_UNITS = (1 << 40) - 1
"""Maximum number of work units of a lease. The ledger stores them in 40 bits."""
Signature = Annotated[str, StringConstraints(pattern=r"^0x[0-9a-f]{130}$"), Field(examples=["0x" + "11" * 64 + "1b"])]


class SignedLease(SignedModel):
    """A lease with the orchestrator's signature and the contract that accepts work under it."""

    pool_id: PoolId
    run: WireDigest
    step: Count
    index: Annotated[int, Field(ge=0, lt=1 << 32)]
    node: WireAddress
    version: Count
    digest: WireDigest
    beacon_block: Count
    """Number of the block whose hash is part of the slot's seed."""
    salt: WireDigest
    """Part of the slot's seed that only the orchestrator knows until it signs the lease."""
    groups: Annotated[int, Field(ge=1, lt=1 << 32)]
    max_units: Annotated[int, Field(ge=1, le=MOST_UNITS)]
    expiry: Count
    """Unix time in seconds until which the ledger accepts work under the lease."""
    chain_id: Annotated[int, Field(ge=1, le=MAX_INT64)]
    contract: WireAddress
    signature: Signature

    @model_validator(mode="before")
    @classmethod
    def _of_this_version(cls, values: object) -> object:
        """Refuses leases of contract version 1, which have no salt."""
        if isinstance(values, dict) and "signature" in values and "salt" not in values:
            raise ValueError(
                f"this lease is for contracts of version 1; this release needs version {VERSION}: lease the slot again"
            )
        return values

    @classmethod
    def of(cls, lease: Lease, *, domain: SigningDomain, signature: bytes) -> Self:
        """Converts a signed lease to its wire form."""
        signed = "0x" + signature.hex()
        return cls(**asdict(lease), chain_id=domain.chain_id, contract=domain.contract, signature=signed)

    @property
    def lease(self) -> Lease:
        """Returns the struct that the orchestrator signed."""
        return Lease(**{field.name: getattr(self, field.name) for field in fields(Lease)})

    @property
    def domain(self) -> SigningDomain:
        """Returns the contract that the lease names.

        The caller must compare it with the expected contract.
        """
        return SigningDomain(self.chain_id, self.contract)

    @property
    def raw_signature(self) -> bytes:
        """Returns the signature as 65 bytes."""
        return bytes.fromhex(self.signature[2:])


class SignedWorkClaim(SignedModel):
    """A node's signed work claim together with its lease.

    This is all data that the relayer needs.
    """

    lease: SignedLease
    sha256: WireDigest
    units: Annotated[int, Field(ge=1, le=MOST_UNITS)]
    signature: Signature

    @property
    def work(self) -> WorkClaim:
        """Returns the struct that the node signed."""
        return WorkClaim(lease_hash=self.lease.lease.hash, sha256=self.sha256, units=self.units)

    @property
    def raw_signature(self) -> bytes:
        """Returns the node's signature as 65 bytes."""
        return bytes.fromhex(self.signature[2:])
