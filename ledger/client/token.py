"""MUST, the token that stake and rewards are in. Amounts are in its smallest unit, 10⁻¹⁸ MUST."""

from __future__ import annotations

from ledger.client.contract import BoundContract
from ledger.transactions.receipts import Receipt
from protocol.identifiers import Address, address


class Token:
    """Balances, transfers, minting."""

    def __init__(self, contract: BoundContract) -> None:
        self._contract = contract
        self.at = contract.at

    async def balance_of(self, holder: Address) -> int:
        """What `holder` can spend."""
        return await self._contract.read_number("balanceOf", holder)

    async def total_supply(self) -> int:
        """How much there is in all."""
        return await self._contract.read_number("totalSupply")

    async def allowance(self, holder: Address, spender: Address) -> int:
        """What `spender` may take from `holder`."""
        return await self._contract.read_number("allowance", holder, spender)

    async def governor(self) -> Address:
        """Who may mint."""
        return address(await self._contract.read("owner"))

    async def transfer(self, to: Address, amount: int) -> Receipt:
        """Gives away the caller's own."""
        return await self._contract.send("transfer", to, amount)

    async def approve(self, spender: Address, amount: int) -> Receipt:
        """Lets `spender` take up to `amount` from the caller."""
        return await self._contract.send("approve", spender, amount)

    async def mint(self, to: Address, amount: int) -> Receipt:
        """Makes new MUST; the governor only."""
        return await self._contract.send("mint", to, amount)

    async def ensure_allowance(self, spender: Address, amount: int) -> None:
        """Approves `amount` unless `spender` may take that much already."""
        if await self.allowance(self._contract.caller, spender) < amount:
            await self.approve(spender, amount)
