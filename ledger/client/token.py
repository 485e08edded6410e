"""MUST, the token of stake and rewards. Amounts are in its smallest unit, 10⁻¹⁸ MUST."""

from __future__ import annotations

from ledger.client.contract import BoundContract
from ledger.transactions.receipts import Receipt
from protocol.identifiers import Address, address


class Token:
    """Client of the `MusterToken` contract: balances, transfers, minting."""

    def __init__(self, contract: BoundContract) -> None:
        self._contract = contract
        self.at = contract.at

    async def balance_of(self, holder: Address) -> int:
        """Returns the balance of `holder`."""
        return await self._contract.read_number("balanceOf", holder)

    async def total_supply(self) -> int:
        """Returns the total supply."""
        return await self._contract.read_number("totalSupply")

    async def allowance(self, holder: Address, spender: Address) -> int:
        """Returns the amount that `spender` may transfer from `holder`."""
        return await self._contract.read_number("allowance", holder, spender)

    async def governor(self) -> Address:
        """Returns the address that may mint."""
        return address(await self._contract.read("owner"))

    async def transfer(self, to: Address, amount: int) -> Receipt:
        """Transfers tokens of the caller."""
        return await self._contract.send("transfer", to, amount)

    async def approve(self, spender: Address, amount: int) -> Receipt:
        """Lets `spender` transfer up to `amount` from the caller."""
        return await self._contract.send("approve", spender, amount)

    async def mint(self, to: Address, amount: int) -> Receipt:
        """Mints new MUST. Only the governor may call this."""
        return await self._contract.send("mint", to, amount)

    async def ensure_allowance(self, spender: Address, amount: int) -> None:
        """Approves `amount` unless the allowance of `spender` is that high already."""
        if await self.allowance(self._contract.caller, spender) < amount:
            await self.approve(spender, amount)
