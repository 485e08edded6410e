"""Domains: categories of work with validation rules. Each pool belongs to one domain."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.client.contract import BoundContract
from ledger.events.types import DomainSet
from ledger.transactions.receipts import Receipt
from protocol.identifiers import ZERO_ADDRESS, ZERO_DIGEST, Address, Digest, address


@dataclass(frozen=True, slots=True)
class Domain:
    """A category of work and its validation rules."""

    reserve: Address
    """The recipient of penalties; the zero address burns them."""
    active: bool
    validation_hash: Digest
    name: str
    uri: str


class Domains:
    """Client of the `DomainRegistry` contract. Only the governor may write."""

    def __init__(self, contract: BoundContract) -> None:
        self._contract = contract
        self.at = contract.at

    async def governor(self) -> Address:
        """Returns the address that may create and change domains."""
        return address(await self._contract.read("owner"))

    async def count(self) -> int:
        """Returns the number of domains; ids start at 1."""
        return await self._contract.read_number("domainCount")

    async def get(self, domain_id: int) -> Domain:
        """Returns one domain."""
        return await self._contract.read_struct(Domain, "domainOf", domain_id)

    async def create(
        self, *, name: str, uri: str = "", validation_hash: Digest = ZERO_DIGEST, reserve: Address = ZERO_ADDRESS
    ) -> int:
        """Creates a domain and returns its id."""
        receipt = await self._contract.send("createDomain", name, uri, validation_hash, reserve)
        return self._contract.events(DomainSet, receipt)[0].domain_id

    async def update(
        self, domain_id: int, *, name: str, uri: str, validation_hash: Digest, reserve: Address
    ) -> Receipt:
        """Replaces a domain's description and reserve."""
        return await self._contract.send("updateDomain", domain_id, name, uri, validation_hash, reserve)

    async def set_active(self, domain_id: int, *, active: bool) -> Receipt:
        """Opens or closes a domain for new pools and members."""
        return await self._contract.send("setDomainActive", domain_id, active)
