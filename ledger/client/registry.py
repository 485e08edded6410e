"""The node registry: which provider owns which node."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ledger.client.contract import BoundContract
from ledger.transactions.receipts import Receipt
from protocol.identifiers import ZERO_ADDRESS, Address, Digest, address


@dataclass(frozen=True, slots=True)
class RegisteredNode:
    """A registered node."""

    provider: Address
    """The owner, whose stake is slashed for the node's forged work."""
    capacity: int
    """Size of the hardware; a pool's stake requirement is per unit of capacity."""
    registered_at: datetime
    retired: bool
    specs_hash: Digest
    """Hash of the hardware description."""


class Registry:
    """Client of the `ComputeRegistry` contract. The keys of provider and node must both consent to a registration."""

    def __init__(self, contract: BoundContract) -> None:
        self._contract = contract
        self.at = contract.at
        self.domain = contract.domain
        """EIP-712 domain of signatures for this contract."""

    async def provider_of(self, node: Address) -> Address | None:
        """Returns the provider of a node; None if the node was never registered or is retired."""
        provider = address(await self._contract.read("providerOf", node))
        return None if provider == ZERO_ADDRESS else provider

    async def node(self, node: Address) -> RegisteredNode | None:
        """Returns a node's registration; None if it was never registered."""
        found = await self._contract.read_struct(RegisteredNode, "nodeOf", node)
        return None if found.provider == ZERO_ADDRESS else found

    async def consent_nonce(self, node: Address) -> int:
        """Returns the nonce that the node's next signed consent must contain."""
        return await self._contract.read_number("consentNonce", node)

    async def register(
        self, *, node: Address, specs_hash: Digest, capacity: int, deadline: datetime, node_signature: bytes
    ) -> Receipt:
        """Registers a node under the calling provider, with the node's signed consent."""
        return await self._contract.send(
            "registerNode", node, specs_hash, capacity, int(deadline.timestamp()), node_signature
        )

    async def register_for(
        self,
        *,
        provider: Address,
        node: Address,
        specs_hash: Digest,
        capacity: int,
        deadline: datetime,
        provider_signature: bytes,
        node_signature: bytes,
    ) -> Receipt:
        """Registers a node with the signed consents of both keys; the caller pays the gas."""
        return await self._contract.send(
            "registerNodeFor",
            provider,
            node,
            specs_hash,
            capacity,
            int(deadline.timestamp()),
            provider_signature,
            node_signature,
        )

    async def update(self, *, node: Address, specs_hash: Digest, capacity: int) -> Receipt:
        """Updates capacity and hardware of the calling provider's node.

        The new values apply from the node's next join on.
        """
        return await self._contract.send("updateNode", node, specs_hash, capacity)

    async def retire(self, node: Address) -> Receipt:
        """Takes the calling provider's node out of service in all pools."""
        return await self._contract.send("retireNode", node)

    async def revoke_consent(self) -> Receipt:
        """Invalidates every unused consent that the calling node has signed."""
        return await self._contract.send("revokeConsent")
