"""Records on the ledger in which order validators may decide a dispute, while the contract can compute the order.

The contract computes the order from the hash of the block after the dispute, which it can read for 256 blocks. The
first verdict in the dispute also records the order. This loop records the order in two other cases: if the first
verdict in the dispute comes late, and on chains that mine only on demand, where the loop's transaction itself creates
the block that the order needs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from cachetools import FIFOCache

from ledger.client import Ledger
from ledger.client.work import WorkRecord, WorkStatus
from protocol.identifiers import Address, Digest
from protocol.runtime.clock import Clock
from protocol.runtime.logs import get_logger
from validator.assignment.turns import rank_of
from validator.audit.second_looks import may_decide
from validator.chain.connection import PoolChain

READABLE = 256
"""Number of past blocks of which contracts can read the hash (EVM opcode `BLOCKHASH`)."""

EARLY = 128
"""Number of blocks after the dispute at which the first validator, by rendezvous order, records the order."""

STEP = 16
"""Number of further blocks that each next validator waits before it records the order, if nobody before it did.

The contract has no call that tells whether an order is recorded; recording an order again costs little gas and changes
nothing.
"""

LATEST = 240
"""Number of blocks after the dispute at which all remaining validators record the order, before it is too late."""

UNDRAWN_PAUSE = timedelta(seconds=3)
"""Delay before a validator records an order that it found missing: once for the first validator by rendezvous order,
twice for the second, and so on."""

MOST_SENT = 8
"""Maximum number of transactions by which this process tries to record the order of one dispute.

Usually one transaction is enough, or two where the order needs one more block. This bounds the gas that is wasted
if the transactions have no effect.
"""

MOST_WATCHED = 4096
"""Maximum number of watched disputes; the oldest are dropped first."""
AT_ONCE = 64
"""Maximum number of disputes that one round reads from the ledger."""

_log = get_logger(__name__)


@dataclass(slots=True)
class _Watched:
    block: int | None
    """Number of the block with the dispute; None if this process has not read the dispute's event since its start."""
    undrawn_since: float | None = None
    """Time when this process found that the order is missing, in seconds of the monotonic clock; None if it has not.

    Each transaction of this process resets the time to the present, because the order may need one more block.
    """
    due_after: int = EARLY
    """Number of blocks after the dispute at which this validator records the order."""
    sent: int = 0
    """Number of transactions that this process has sent for the dispute."""


class Juries:
    """Loop over open disputes, which records the order of validators for a dispute if no other validator has done so.

    Args:
        me: Address of this validator.
        chain: Chain client of the validator's pool.
        clock: Clock of delays.
    """

    def __init__(self, me: Address, *, chain: PoolChain, clock: Clock) -> None:
        self._me = me
        self._chain = chain
        self._clock = clock
        self._watched: FIFOCache[Digest, _Watched] = FIFOCache(MOST_WATCHED)

    def watch(self, key: Digest, *, block: int) -> None:
        """Watches a dispute that this validator may have to decide, until its order is recorded.

        Args:
            key: Key of the disputed work.
            block: Number of the block in which the dispute was opened.
        """
        self._entry(key).block = block

    def missed(self, key: Digest) -> None:
        """Notes that this validator wants to decide a dispute for which the ledger has no order of validators yet."""
        entry = self._entry(key)
        if entry.undrawn_since is None:
            entry.undrawn_since = self._clock.monotonic()

    async def round(self) -> int:
        """Records the order of all due disputes in one transaction; returns the number of these disputes.

        Raises:
            MusterError: The chain does not answer, or the validator can't pay gas.
        """
        if not self._watched:
            return 0
        ledger = await self._chain.ledger()
        head = await ledger.block()
        looked_at = [key for key, entry in self._watched.items() if self._may_be_due(entry, head)][:AT_ONCE]
        if not looked_at:
            return 0
        works = await asyncio.gather(*(ledger.work.get(key) for key in looked_at))
        now, validators = await ledger.now(), await self._chain.validators()
        due = []
        for key, work in zip(looked_at, works, strict=True):
            if work is None or not self._is_ours(work, validators=validators, now=now):
                self._watched.pop(key, None)
            elif await self._is_due(ledger, key, work, head=head, validators=validators):
                due.append(key)
        if due:
            await ledger.work.draw_juries(due)
            _log.info("juries-drawn", count=len(due))
        for key in due:
            self._sent(key)
        return len(due)

    def _entry(self, key: Digest) -> _Watched:
        return self._watched.setdefault(key, _Watched(block=None))

    def _may_be_due(self, entry: _Watched, head: int) -> bool:
        if entry.undrawn_since is not None:
            return True
        return entry.block is not None and head - entry.block >= entry.due_after

    def _is_ours(self, work: WorkRecord, *, validators: list[Address], now: datetime) -> bool:
        """Returns True if this validator may still decide the dispute."""
        if work.status is not WorkStatus.DISPUTED or work.deadline is None or now > work.deadline:
            return False
        return self._me in validators and may_decide(self._me, work)

    async def _is_due(
        self, ledger: Ledger, key: Digest, work: WorkRecord, *, head: int, validators: list[Address]
    ) -> bool:
        entry = self._watched[key]
        rank = rank_of(key, self._me, [each for each in validators if may_decide(each, work)])
        if entry.undrawn_since is not None:
            if await ledger.work.turn_of(key, self._me) is not None:
                entry.undrawn_since = None
                return False
            missed_for = self._clock.monotonic() - entry.undrawn_since
            return missed_for >= (rank + 1) * UNDRAWN_PAUSE.total_seconds()
        if work.juror is not None or entry.block is None or head - entry.block >= READABLE:
            # A verdict has recorded the order, or it is too late. The judging loop calls `missed` if it finds no order.
            self._watched.pop(key)
            return False
        entry.due_after = min(EARLY + rank * STEP, LATEST)
        return head - entry.block >= entry.due_after

    def _sent(self, key: Digest) -> None:
        entry = self._watched[key]
        entry.sent += 1
        if entry.undrawn_since is None or entry.sent >= MOST_SENT:
            self._watched.pop(key)
        else:  # the order may need one more block, so another transaction may be necessary
            entry.undrawn_since = self._clock.monotonic()
