"""Computes from the ledger what a pool's nodes have earned lately, to help contributors choose a pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import median_low

from ledger.amounts import format_amount
from ledger.client import Ledger
from ledger.events.types import WorkFinal
from protocol.identifiers import Address
from worker.chain.pool_record import BLOCKS_BACK

PERIOD = timedelta(days=7)
"""Time before the newest block from which rewards are counted."""
MOST_BLOCKS = BLOCKS_BACK[-1]
"""Maximum number of newest blocks that are read."""
CHUNK = 2_000
"""Number of blocks per query of events, newest first."""
MOST_WORK = 20_000
"""Number of final work records after which no earlier blocks are read. It bounds the memory of the reader."""
LEAST_SPAN = timedelta(hours=1)
"""Shortest time to which the rewards of a pool are related; work that ended at once would give absurd rates."""

_DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEarnings:
    """Rewards of a pool's work that became final between two times.

    Args:
        paid: Reward of each node that was paid, in the token's smallest unit.
        works: Number of final work records, whatever their outcome.
        since: Time of the first block that was read, or of the first final work in it if that is later.
        until: Time of the newest block.
    """

    paid: Mapping[Address, int]
    works: int
    since: datetime
    until: datetime

    @property
    def total(self) -> int:
        """Sum of all rewards, in the token's smallest unit."""
        return sum(self.paid.values())

    @property
    def span(self) -> timedelta:
        """The time to which the rewards are related, at least `LEAST_SPAN`."""
        return max(self.until - self.since, LEAST_SPAN)

    def daily(self, amount: int) -> int:
        """Returns an amount of the whole span as an amount per day."""
        return amount * _DAY_S // int(self.span.total_seconds())

    @property
    def per_node_day(self) -> int | None:
        """Average reward of a paid node per day; None if no node was paid."""
        return self.daily(self.total) // len(self.paid) if self.paid else None

    @property
    def summary(self) -> str:
        """Returns the earnings and their source as text."""
        if self.per_node_day is None:
            days = f"the last {PERIOD.days} days"
            return f"no history: the ledger has no paid work of this pool in {days}, so nothing is known about earnings"
        least, middle, most = (format_short(self.daily(pick(self.paid.values()))) for pick in (min, median_low, max))
        hours = self.span / timedelta(hours=1)
        length = f"{hours / 24:.1f} days" if hours >= 24 else f"{hours:.1f} hours, extrapolated to a day"
        return (
            f"on average {format_short(self.per_node_day)} MUST per node and day (least {least}, median {middle}, "
            f"most {most}): {format_short(self.total)} MUST for {self.works} final works, divided by {len(self.paid)} "
            f"paid nodes and {length}. Source: events WorkFinal on the ledger from "
            f"{self.since:%Y-%m-%d %H:%M} to {self.until:%Y-%m-%d %H:%M} UTC. The ledger doesn't know the nodes' "
            "hardware, and the figure is before gas, power and penalties; it promises nothing"
        )


def format_short(amount: int) -> str:
    """Formats an amount of MUST with at most 4 decimals; smaller amounts as `<0.0001`."""
    step = 10**14
    if 0 < amount < step:
        return "<0.0001"
    return format_amount(amount // step * step)


async def read_earnings(ledger: Ledger, pool_id: int) -> PoolEarnings:
    """Reads the rewards of a pool's work that became final within `PERIOD`.

    It reads at most `MOST_BLOCKS` blocks, and stops after `MOST_WORK` work records.

    Raises:
        ChainUnavailable: The chain does not answer.
    """
    newest = await ledger.newest()
    until = datetime.fromtimestamp(newest.time, UTC)
    last = newest.ref.number
    first = await _first_block_since(ledger, newest.time - int(PERIOD.total_seconds()), newest=last)
    paid: Counter[Address] = Counter()
    works, earliest, upper = 0, last, last
    while upper >= first and works < MOST_WORK:
        lower = max(first, upper - CHUNK + 1)
        for event in await ledger.history(WorkFinal, pool_id=pool_id, since=lower, until=upper):
            works += 1
            earliest = min(earliest, event.log.block_number)
            if event.paid:
                paid[event.node] += event.paid
        upper = lower - 1
    since = datetime.fromtimestamp(await ledger.block_time(earliest), UTC)
    return PoolEarnings(paid=paid, works=works, since=since, until=until)


async def _first_block_since(ledger: Ledger, time: int, *, newest: int) -> int:
    """Returns the first block at or after a Unix time, among the newest `MOST_BLOCKS` blocks of the deployment."""
    low, high = max(ledger.deployment.block, newest - MOST_BLOCKS + 1), newest
    while low < high:
        middle = (low + high) // 2
        if await ledger.block_time(middle) < time:
            low = middle + 1
        else:
            high = middle
    return low
