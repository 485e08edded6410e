"""The registry of nodes: which provider answers for which machine."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ledger.client.contract import BoundContract
from ledger.transactions.receipts import Receipt
from protocol.identifiers import ZERO_ADDRESS, Address, Digest, address


@dataclass(frozen=True, slots=True)
class RegisteredNode:
    """A registered machine."""

    provider: Address
    """Who owns it and answers for it with stake."""
    capacity: int
    """What the hardware is worth, in the pool's stake units."""
    registered_at: datetime
    retired: bool
    specs_hash: Digest
    """Hash of the description of the hardware."""


class Registry:
    """Registers nodes under providers. A registration needs the consent of both keys."""

    def __init__(self, contract: BoundContract) -> None:
        self._contract = contract
        self.at = contract.at
        self.domain = contract.domain
        """What signatures for this contract are bound to."""

    async def provider_of(self, node: Address) -> Address | None:
        """The provider of a node in service; None if it was never registered or is retired."""
        provider = address(await self._contract.read("providerOf", node))
        return None if provider == ZERO_ADDRESS else provider

    async def node(self, node: Address) -> RegisteredNode | None:
        """What is known of a node; None if it was never registered."""
        found = await self._contract.read_struct(RegisteredNode, "nodeOf", node)
        return None if found.provider == ZERO_ADDRESS else found

    async def consent_nonce(self, node: Address) -> int:
        """The nonce that the node's next consent must carry."""
        return await self._contract.read_number("consentNonce", node)

    async def register(
        self, *, node: Address, specs_hash: Digest, capacity: int, deadline: datetime, node_signature: bytes
    ) -> Receipt:
        """Registers a node under the caller, with the node's signed consent."""
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
        """Carries the consents of both keys, so that neither needs gas."""
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
        """Describes the caller's node anew; counts from its next joining on."""
        return await self._contract.send("updateNode", node, specs_hash, capacity)

    async def retire(self, node: Address) -> Receipt:
        """Takes the caller's node out of service everywhere."""
        return await self._contract.send("retireNode", node)

    async def revoke_consent(self) -> Receipt:
        """Makes every consent that the caller, a node, has signed and nobody has used worthless."""
        return await self._contract.send("revokeConsent")
