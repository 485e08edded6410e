"""Consents by which a node and its provider agree to belong together (`ComputeRegistry`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from protocol.identifiers import Address, Digest
from protocol.identity.typed_data import TypedStruct


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConsent(TypedStruct):
    """A node's consent to work for a provider."""

    TYPE: ClassVar[str] = "NodeConsent(address provider,address node,uint256 nonce,uint256 deadline)"

    provider: Address
    node: Address
    nonce: int
    """The registry's consent nonce of the node."""
    deadline: int
    """Unix time in seconds until which the ledger accepts the consent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderConsent(TypedStruct):
    """A provider's signed consent to a node, which any account may send to the ledger."""

    TYPE: ClassVar[str] = (
        "ProviderConsent(address provider,address node,bytes32 specsHash,uint32 capacity,"
        "uint256 nonce,uint256 deadline)"
    )

    provider: Address
    node: Address
    specs_hash: Digest
    capacity: int
    nonce: int
    deadline: int
    """Unix time in seconds until which the ledger accepts the consent."""
