"""Sends transactions that finalise due work: the ledger then pays for it, slashes the stake, or lets it expire.

Judged work is due when its challenge or dispute period has ended; work without a verdict expires at the end of the
judge period. Any account may finalise work, and the first transaction takes effect. Redis stores the earliest time at
which each submission may be due. At that time the loop reads the work record and checks whether the work is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

from ledger.client import Ledger
from ledger.client.work import WorkRecord, WorkStatus
from protocol.errors import MusterError
from protocol.identifiers import Digest
from protocol.redis.connection import StoreUnavailable
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.logs import get_logger
from validator.chain.connection import PoolChain
from validator.store.deadlines import Deadlines

_log = get_logger(__name__)


class Finalising:
    """Loop that finalises due work in batches.

    Args:
        chain: Chain client of the validator's pool.
        deadlines: Store of the times from which work may be due.
        lease: Leader lease of this loop among the processes on one Redis.
        batch: Maximum number of work records per transaction.
        lag: Delay after the due time. If validators have different delays, usually only the one with the shortest delay
            pays gas.
    """

    def __init__(
        self, chain: PoolChain, *, deadlines: Deadlines, lease: LeaderLease, batch: int, lag: timedelta = timedelta()
    ) -> None:
        self._chain = chain
        self._deadlines = deadlines
        self._lease = lease
        self._batch = batch
        self._lag = lag

    async def round(self) -> int:
        """Finalises all due work if this process has the leader lease; returns the number of finalised work records.

        Raises:
            StoreUnavailable: Redis is down.
            MusterError: The chain is down, or the validator can't pay gas. The work stays due for the next round.
        """
        try:
            return await self._finalise_due()
        except StoreUnavailable:
            raise
        except MusterError:
            await self._lease.give_up()  # another process may reach the chain, or have gas
            raise

    async def aclose(self) -> None:
        """Releases the leader lease, so that another process takes over immediately.

        Raises:
            StoreUnavailable: Redis is down, so the lease is not released; it expires by itself.
        """
        await self._lease.give_up()

    async def _finalise_due(self) -> int:
        done = 0
        while await self._lease.hold():
            ledger = await self._chain.ledger()
            now = await ledger.now()
            keys = await self._deadlines.due(now=now - self._lag, limit=self._batch)
            if not keys:
                break
            done += await self._finalise_batch(ledger, keys, now=now)
        return done

    async def _finalise_batch(self, ledger: Ledger, keys: Sequence[Digest], *, now: datetime) -> int:
        works = await asyncio.gather(*(ledger.work.get(key) for key in keys))
        found = dict(zip(keys, works, strict=True))
        late = {key: work for key, work in found.items() if work is not None and is_due(work, now=now - self._lag)}
        expire = [key for key, work in late.items() if work.status is WorkStatus.SUBMITTED]
        finalize = [key for key, work in late.items() if work.status is not WorkStatus.SUBMITTED]
        if expire:
            await ledger.work.expire(expire)
            _log.info("expired", count=len(expire))
        if finalize:
            await ledger.work.finalize(finalize)
            _log.info("finalised", count=len(finalize))
        await self._deadlines.forget(
            [key for key, work in found.items() if key in late or work is None or work.deadline is None]
        )
        await self._deadlines.put(
            {
                key: int(work.deadline.timestamp()) + 1
                for key, work in found.items()
                if key not in late and work is not None and work.deadline is not None
            }
        )
        return len(late)


def is_due(work: WorkRecord, *, now: datetime) -> bool:
    """Returns True if any account may finalise the work now, because its deadline has passed."""
    return work.deadline is not None and now > work.deadline
