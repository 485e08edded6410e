"""Signed invites, as a discovery service stores them until their nodes fetch them."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, Field, StringConstraints

from protocol.identifiers import Address, WireAddress
from protocol.identity.typed_data import SigningDomain
from protocol.invites import MOST_URL_BYTES, Invite
from protocol.wire.base import MAX_INT64, PoolId, SignedModel


def _uint256(text: str) -> str:
    if int(text) >= 1 << 256:
        raise ValueError("the number has more than 256 bits")
    return text


class SignedInvite(SignedModel):
    """An invite with its signature and the contract that accepts it.

    This is all data that a node needs to redeem it.
    """

    pool_id: PoolId
    domain_id: Annotated[int, Field(ge=1, le=MAX_INT64)]
    node: WireAddress
    nonce: Annotated[
        str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,77})$"), AfterValidator(_uint256), Field(examples=["42"])
    ]
    """A uint256 in decimal. It is a string, because JSON numbers of that size lose digits."""
    expiry: Annotated[int, Field(ge=0, le=MAX_INT64)]
    """Unix time in seconds until which the ledger accepts the invite."""
    url: Annotated[
        str,
        StringConstraints(min_length=8, max_length=MOST_URL_BYTES, pattern=r"^https?://[!-~]+$"),
        Field(examples=["https://pool.example"]),
    ]
    chain_id: Annotated[int, Field(ge=1, le=MAX_INT64)]
    contract: WireAddress
    signature: Annotated[
        str, StringConstraints(pattern=r"^0x[0-9a-f]{130}$"), Field(examples=["0x" + "11" * 64 + "1b"])
    ]

    @classmethod
    def of(cls, invite: Invite, *, domain: SigningDomain, signature: bytes) -> Self:
        """Converts a signed invite to its wire form."""
        return cls(
            pool_id=invite.pool_id,
            domain_id=invite.domain_id,
            node=invite.node,
            nonce=str(invite.nonce),
            expiry=invite.expiry,
            url=invite.url,
            chain_id=domain.chain_id,
            contract=domain.contract,
            signature="0x" + signature.hex(),
        )

    @property
    def invite(self) -> Invite:
        """Returns the struct that the orchestrator signed."""
        return Invite(
            pool_id=self.pool_id,
            domain_id=self.domain_id,
            node=self.node,
            nonce=int(self.nonce),
            expiry=self.expiry,
            url=self.url,
        )

    @property
    def domain(self) -> SigningDomain:
        """Returns the contract that the invite names.

        The caller must compare it with the expected contract.
        """
        return SigningDomain(self.chain_id, self.contract)

    @property
    def raw_signature(self) -> bytes:
        """Returns the signature as 65 bytes."""
        return bytes.fromhex(self.signature[2:])

    def signer(self) -> Address:
        """Returns the address that signed the invite.

        The caller must check that it is the pool's orchestrator on the ledger.

        Raises:
            InvalidInput: The signature is malformed.
        """
        return self.invite.signer(self.raw_signature, self.domain)
