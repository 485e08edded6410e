"""Counts how a pool's newest work ended, to help contributors choose a pool."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from ledger.amounts import format_amount
from ledger.client import Ledger
from ledger.events.types import WorkExpired, WorkFinal
from protocol.verdicts import Outcome

NEWEST = 200
"""Maximum number of newest pieces of work that are counted."""
BLOCKS_BACK = (2_000, 16_000, 128_000)
"""Sizes of the ranges of newest blocks that are searched one after another, until `NEWEST` pieces of work are found.

The largest range covers 18 days at 12 s a block.
"""

LEAST_TO_JUDGE = 10
"""Minimum number of finished pieces of work on which a pool is judged."""
MOST_EXPIRED = 0.05
"""Share of expired work above which a pool's record is bad."""
MOST_REFUSED = 0.5
"""Share of refused work above which a pool's record is bad."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRecord:
    """How many of a pool's newest pieces of work had each outcome, and the pool's escrow."""

    accepted: int = 0
    refused: int = 0
    """Number of pieces of work that validators rejected or judged forged."""
    expired: int = 0
    """Number of pieces of work that no validator judged in time, so that they were not paid."""

    leaving: int = 0
    """Announced withdrawal from the free escrow, in the token's smallest unit."""
    free: int = 0
    """Free escrow, in the token's smallest unit."""

    @property
    def total(self) -> int:
        """Number of finished pieces of work."""
        return self.accepted + self.refused + self.expired

    @property
    def is_bad(self) -> bool:
        """Whether the record is a reason to avoid the pool.

        The record is bad if too much work expired or was refused, or if more than half of the free escrow will be
        withdrawn.
        """
        if self.leaving and 2 * self.leaving > self.free:
            return True
        if self.total < LEAST_TO_JUDGE:
            return False
        return self.expired > MOST_EXPIRED * self.total or self.refused > MOST_REFUSED * self.total

    @property
    def summary(self) -> str:
        """Returns the record as one line of text."""
        leaving = ""
        if self.leaving:
            leaving = (
                f"; the owner withdraws {format_amount(self.leaving)} of {format_amount(self.free)} MUST free escrow"
            )
        if not self.total:
            return f"no work has finished lately{leaving}"
        accepted, refused, expired = (
            f"{part / self.total:.0%}" for part in (self.accepted, self.refused, self.expired)
        )
        ended = f"of the newest {self.total} pieces of work, {accepted} were accepted, {refused} refused by validators"
        return f"{ended}, {expired} expired without a verdict{leaving}"


async def read_pool_record(ledger: Ledger, pool_id: int) -> PoolRecord:
    """Reads the outcomes of a pool's newest pieces of work from events.

    Raises:
        ChainUnavailable: The chain does not answer.
    """
    newest = await ledger.block()
    ends: list[tuple[int, int, str]] = []
    for back in BLOCKS_BACK:
        since = max(0, newest - back)
        final, expired = await asyncio.gather(
            ledger.history(WorkFinal, pool_id=pool_id, since=since),
            ledger.history(WorkExpired, pool_id=pool_id, since=since),
        )
        ends = [
            (one.log.block_number, one.log.index, "accepted" if one.outcome is Outcome.ACCEPTED else "refused")
            for one in final
        ]
        ends += [(one.log.block_number, one.log.index, "expired") for one in expired]
        if len(ends) >= NEWEST or since <= ledger.deployment.block:
            break
    counts = Counter(how for _, _, how in sorted(ends)[-NEWEST:])
    escrow, announced = await ledger.pools.escrow(pool_id), await ledger.pools.withdrawal(pool_id)
    return PoolRecord(
        accepted=counts["accepted"],
        refused=counts["refused"],
        expired=counts["expired"],
        leaving=min(announced.takes(await ledger.now()), escrow.free),
        free=escrow.free,
    )
