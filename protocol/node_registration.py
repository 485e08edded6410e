"""Signed consents by which a node and its provider register together (`ComputeRegistry`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from protocol.identifiers import Address, Digest
from protocol.identity.typed_data import TypedStruct


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConsent(TypedStruct):
    """A node's signed consent to work for a provider."""

    TYPE: ClassVar[str] = "NodeConsent(address provider,address node,uint256 nonce,uint256 deadline)"

    provider: Address
    node: Address
    nonce: int
    """Nonce that the registry expects next in a consent of this node; it prevents replays."""
    deadline: int
    """Unix time in seconds until which the ledger accepts the consent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderConsent(TypedStruct):
    """A provider's signed consent to add a node.

    Any account may send it to the ledger and pay the gas.
    """

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
