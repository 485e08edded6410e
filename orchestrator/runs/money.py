"""Money of the pool for its owner: escrow, burn rate, days left, and the coin that pays gas."""

from __future__ import annotations

from datetime import timedelta

from ledger.amounts import plain_amount
from orchestrator.chain.interface import PoolLedger, PoolMoney
from orchestrator.store.accounts import Account, AccountStore, day_earnings
from orchestrator.store.nodes import NodeStore
from protocol.http.lookups import Lookups
from protocol.identifiers import Address
from protocol.identity.signing import unix_ms
from protocol.runtime.clock import Clock
from protocol.wire.money import GasAccount, GasRole, NodeAccountPage, NodeAccountView, PoolMoneyView

FRESH = timedelta(seconds=10)
STALE = timedelta(minutes=10)
BURN_DAYS = 7
"""Number of days, including the present one, whose mean is the burn rate."""
_DAY_S = 86_400


class MoneyReader:
    """Reads the money of the pool and of its nodes.

    Args:
        ledger: The pool on the ledger.
        nodes: Store of nodes.
        accounts: Accounts in Redis.
        gas: Accounts that pay gas, by their use.
        clock: Clock of the burn rate and the cache.
    """

    def __init__(
        self, ledger: PoolLedger, *, nodes: NodeStore, accounts: AccountStore, gas: dict[GasRole, Address], clock: Clock
    ) -> None:
        self._nodes = nodes
        self._accounts = accounts
        self._gas = gas
        self._clock = clock
        self._on_ledger: Lookups[None, PoolMoney] = Lookups(
            lambda _: ledger.money(list(gas.values())),
            what=lambda _: "reading the pool's money from the ledger",
            fresh=lambda _: FRESH,
            stale=STALE,
            clock=clock,
        )

    async def pool(self) -> PoolMoneyView:
        """Returns the money of the pool.

        Raises:
            Unavailable: The chain is down, and the last read is older than `STALE`.
        """
        found = await self._on_ledger.get(None)
        account, days = await self._accounts.pool(), await self._accounts.earned_by_day()
        now = self._clock.now()
        free = max(0, found.escrow - found.reserved - found.withdrawal)
        burn = burn_per_day(days, now_s=int(now.timestamp()))
        return PoolMoneyView(
            escrow=plain_amount(found.escrow),
            reserved=plain_amount(found.reserved),
            free=plain_amount(free),
            withdrawal=plain_amount(found.withdrawal),
            withdrawal_ready_at_ms=None if found.withdrawal_ready is None else unix_ms(found.withdrawal_ready),
            accrued=plain_amount(found.accrued),
            claimed=plain_amount(found.paid),
            burn_per_day=plain_amount(burn),
            days_left=free / burn if burn else None,
            days=day_earnings(days),
            earned=plain_amount(account.earned),
            slashed=plain_amount(account.slashed),
            counted_since_ms=account.since_ms,
            gas=tuple(
                GasAccount(role=role, address=address, coin=plain_amount(coin))
                for (role, address), coin in zip(self._gas.items(), found.coins, strict=True)
            ),
            chain_lag_s=max(0, int((now - found.head_time).total_seconds())),
        )

    async def node(self, node: Address) -> NodeAccountView:
        """Returns earnings, slashes and verdicts of a node."""
        return _account_view(node, (await self._accounts.nodes([node]))[0])

    async def nodes(self, *, after: Address | None, limit: int) -> NodeAccountPage:
        """Returns a page of the accounts of all known nodes, by address."""
        found = await self._nodes.page(after=after, limit=limit)
        accounts = await self._accounts.nodes(found)
        views = tuple(_account_view(node, account) for node, account in zip(found, accounts, strict=True))
        return NodeAccountPage(accounts=views, next_cursor=found[-1] if len(found) == limit else None)


def _account_view(node: Address, account: Account) -> NodeAccountView:
    return NodeAccountView(
        node=node,
        earned=plain_amount(account.earned),
        slashed=plain_amount(account.slashed),
        verdicts=account.verdicts,
        counted_since_ms=account.since_ms,
    )


def burn_per_day(days: dict[int, int], *, now_s: int) -> int:
    """Returns the mean of the rewards per day over the last `BURN_DAYS` days, in 10⁻¹⁸ MUST.

    If the first payment was later, the mean is over the time since the beginning of its day, but at least one day, so
    that the first hours don't give an absurd rate.

    Args:
        days: Rewards by day since 1970 in UTC.
        now_s: Present time, in Unix seconds.
    """
    today = now_s // _DAY_S
    window = today - BURN_DAYS + 1
    begun = max(window, min(days, default=today)) * _DAY_S
    spent = sum(amount for day, amount in days.items() if window <= day <= today)
    return max(0, spent) * _DAY_S // max(_DAY_S, now_s - begun)
