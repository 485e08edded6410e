"""Stake of providers: deposits, locks and the unbonding queue."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from ledger.abi_types import struct_from_abi
from ledger.client.contract import BoundContract
from ledger.client.token import Token
from ledger.events.types import Withdrawn
from ledger.transactions.receipts import Receipt
from protocol.identifiers import Address


@dataclass(frozen=True, slots=True)
class Stake:
    """A provider's stake, in the token's smallest unit."""

    active: int
    """Stake that can be locked, slashed and unbonded."""
    unbonding: int
    """Stake in the unbonding queue; slashable until it is withdrawn."""
    membership_lock: int
    """Part of `active` that memberships lock."""
    work_lock: int
    """Part of `active` that open work locks."""

    @property
    def free(self) -> int:
        """The active stake that neither a membership nor open work locks."""
        return max(0, self.active - self.membership_lock - self.work_lock)


@dataclass(frozen=True, slots=True)
class Unbond:
    """One entry of the unbonding queue."""

    id: int
    amount: int
    """Remaining amount after slashes."""
    matures_at: datetime


@dataclass(frozen=True, slots=True)
class _Entry:
    amount: int
    matures_at: datetime


class StakeAccounts:
    """Client of the `StakeManager` contract."""

    def __init__(self, contract: BoundContract, token: Token) -> None:
        self._contract = contract
        self._token = token
        self.at = contract.at

    async def of(self, provider: Address) -> Stake:
        """Returns the stake of a provider."""
        return await self._contract.read_struct(Stake, "stakeOf", provider)

    async def unbonds_of(self, provider: Address) -> list[Unbond]:
        """Returns the unbonds that the provider has not withdrawn or cancelled, oldest first."""
        first, entries = await self._contract.read("unbondsOf", provider)
        found = [struct_from_abi(_Entry, entry) for entry in entries]
        return [Unbond(first + i, entry.amount, entry.matures_at) for i, entry in enumerate(found) if entry.amount]

    async def unbonding_period(self) -> timedelta:
        """Returns the time for which stake stays slashable after its owner began to unbond it."""
        seconds = await self._contract.read_number("unbondingPeriod")
        return timedelta(
            seconds=min(seconds, int(timedelta.max.total_seconds()))
        )  # a stranger's contract may have more

    async def add(self, amount: int) -> Receipt:
        """Adds to the caller's stake; approves the token transfer first if necessary."""
        await self._token.ensure_allowance(self.at, amount)
        return await self._contract.send("stake", amount)

    async def add_for(self, provider: Address, amount: int) -> Receipt:
        """Adds to another provider's stake, paid by the caller."""
        await self._token.ensure_allowance(self.at, amount)
        return await self._contract.send("stakeFor", provider, amount)

    async def unbond(self, amount: int) -> Receipt:
        """Begins to unbond free stake; it can be withdrawn after the unbonding period."""
        return await self._contract.send("beginUnbond", amount)

    async def cancel_unbond(self, unbond_id: int) -> Receipt:
        """Cancels an open unbond; its amount becomes active stake again."""
        return await self._contract.send("cancelUnbond", unbond_id)

    async def withdraw(self, to: Address | None = None) -> int:
        """Withdraws all matured unbonds and returns the amount."""
        receipt = await (
            self._contract.send("withdraw()") if to is None else self._contract.send("withdraw(address)", to)
        )
        return sum(event.amount for event in self._contract.events(Withdrawn, receipt))
