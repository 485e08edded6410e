"""Accounts in Redis: counts and money of ledger events, for the pool, each provider and each node.

`announce_ledger_event.lua` writes them together with the pool's events, each ledger event once; an event that a reorg
removed is subtracted again. They are for display: the ledger has the exact state. After a loss of Redis they are
counted again from the ledger's events.

The Redis keys, all with the prefix `run:` (OWNER is `pool`, `provider:ADDRESS` or `node:ADDRESS`):

account:OWNER       hash: number of events by kind; their money as `KIND:amount`; time of the first one as `since`
earned:pool         hash: earnings of all nodes by day; only the newest 92 days
earned:PROVIDER     hash: the same for one provider
ranking             sorted set: providers by earnings
nodes:PROVIDER      list: nodes of a provider that leased slots, newest membership first

Money is in 10⁻⁹ MUST, so that sums up to 9 billion MUST fit into Redis's integers; days are counted from 1970 in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ledger.amounts import plain_amount
from orchestrator.store.database import Database
from orchestrator.store.nodes import text_of
from protocol.identifiers import Address, address
from protocol.wire.public import DayEarnings, VerdictTotals

SMALLEST = 10**9
"""Smallest counted amount, in 10⁻¹⁸ MUST; smaller parts of an event's money are not counted."""

POOL_ACCOUNT = "pool"
"""Owner of the account that counts the events of the whole pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Counts and money of one owner; money in 10⁻¹⁸ MUST."""

    since_ms: int = 0
    """Time at which the first event was counted; 0 if there was none."""
    accepted: int = 0
    rejected: int = 0
    forged: int = 0
    """Verdicts by outcome, including those that decided disputes."""
    expired: int = 0
    """Work that no validator judged in time."""
    disputes: int = 0
    disputes_lost: int = 0
    earned: int = 0
    claimed: int = 0
    """Earnings that the provider has collected; 0 in accounts of nodes."""
    slashed: int = 0

    @property
    def verdicts(self) -> VerdictTotals:
        """The counts, as the API returns them."""
        return VerdictTotals(
            accepted=self.accepted,
            rejected=self.rejected,
            forged=self.forged,
            expired=self.expired,
            disputes=self.disputes,
            disputes_lost=self.disputes_lost,
        )


class AccountStore:
    """Reads the accounts.

    Args:
        database: Database of the pool.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def pool(self) -> Account:
        """Returns the account of the whole pool."""
        return (await self._accounts([POOL_ACCOUNT]))[0]

    async def providers(self, providers: Sequence[Address]) -> list[Account]:
        """Returns the accounts of providers, in their order."""
        return await self._accounts([f"provider:{each}" for each in providers])

    async def nodes(self, nodes: Sequence[Address]) -> list[Account]:
        """Returns the accounts of nodes, in their order."""
        return await self._accounts([f"node:{each}" for each in nodes])

    async def earned_by_day(self, provider: Address | None = None) -> dict[int, int]:
        """Returns the earnings of a provider, or of all nodes, by day in ascending order, in 10⁻¹⁸ MUST."""
        found = await self._database.ask("HGETALL", self._key("earned", provider or POOL_ACCOUNT))
        return dict(sorted((int(day), int(amount) * SMALLEST) for day, amount in found.items()))

    async def best(self, *, limit: int) -> list[Address]:
        """Returns the providers with the highest earnings, in descending order."""
        found = await self._database.ask("ZREVRANGE", self._key("ranking"), 0, limit - 1)
        return [address(each.decode()) for each in found]

    async def nodes_of(self, provider: Address) -> list[Address]:
        """Returns the nodes of a provider that have leased slots, those with the newest membership first."""
        return [
            address(each.decode()) for each in await self._database.ask("LRANGE", self._key("nodes", provider), 0, -1)
        ]

    async def _accounts(self, owners: Sequence[str]) -> list[Account]:
        rows = await self._database.ask_many([("HGETALL", self._key("account", owner)) for owner in owners])
        return [_account(text_of(row)) for row in rows]

    def _key(self, *parts: str) -> str:
        return self._database.key("run", *parts)


def day_earnings(days: Mapping[int, int]) -> tuple[DayEarnings, ...]:
    """Converts earnings by day into the model that the API returns."""
    return tuple(DayEarnings(day=day, earned=plain_amount(earned)) for day, earned in days.items())


def _account(fields: Mapping[str, str]) -> Account:
    def count(kind: str) -> int:
        return int(fields.get(kind) or 0)

    def money(kind: str) -> int:
        return int(fields.get(f"{kind}:amount") or 0) * SMALLEST

    return Account(
        since_ms=count("since"),
        accepted=count("verdict.accepted"),
        rejected=count("verdict.rejected"),
        forged=count("verdict.forged"),
        expired=count("verdict.expired"),
        disputes=count("dispute.opened"),
        disputes_lost=count("dispute.lost"),
        earned=money("payout.earned"),
        claimed=money("payout.claimed"),
        slashed=money("slash.forgery") + money("slash.dispute"),
    )
