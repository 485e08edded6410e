"""Domains: the fields of work that pools belong to."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.client.contract import BoundContract
from ledger.events.types import DomainSet
from ledger.transactions.receipts import Receipt
from protocol.identifiers import ZERO_ADDRESS, ZERO_DIGEST, Address, Digest


@dataclass(frozen=True, slots=True)
class Domain:
    """A field of work with its rules of validation."""

    reserve: Address
    """Where penalties go; the zero address burns them."""
    active: bool
    validation_hash: Digest
    name: str
    uri: str


class Domains:
    """Reads domains; the governor makes them."""

    def __init__(self, contract: BoundContract) -> None:
        self._contract = contract
        self.at = contract.at

    async def count(self) -> int:
        """How many there are; ids run from 1."""
        return await self._contract.read_number("domainCount")

    async def get(self, domain_id: int) -> Domain:
        """One domain."""
        return await self._contract.read_struct(Domain, "domainOf", domain_id)

    async def create(
        self, *, name: str, uri: str = "", validation_hash: Digest = ZERO_DIGEST, reserve: Address = ZERO_ADDRESS
    ) -> int:
        """Makes a domain and returns its id; the governor only."""
        receipt = await self._contract.send("createDomain", name, uri, validation_hash, reserve)
        return self._contract.events(DomainSet, receipt)[0].domain_id

    async def update(
        self, domain_id: int, *, name: str, uri: str, validation_hash: Digest, reserve: Address
    ) -> Receipt:
        """Describes a domain anew; the governor only."""
        return await self._contract.send("updateDomain", domain_id, name, uri, validation_hash, reserve)

    async def set_active(self, domain_id: int, *, active: bool) -> Receipt:
        """Opens or closes a domain for new pools and members; the governor only."""
        return await self._contract.send("setDomainActive", domain_id, active)
