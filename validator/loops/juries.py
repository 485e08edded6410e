"""Records the order of validators for a dispute on the ledger, while the hash that draws it is readable.

The order follows from the hash of the block after the dispute, which contracts can read for 256 blocks. A verdict
records it, too. This loop is for verdicts that take longer, and for chains that mine only on demand: there the
transaction itself creates the block that the order needs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from cachetools import FIFOCache

from ledger.client import Ledger
from ledger.client.work import WorkRecord, WorkStatus
from protocol.identifiers import Address, Digest
from protocol.runtime.clock import Clock
from validator.assignment.turns import rank_of
from validator.audit.second_looks import may_decide
from validator.chain.connection import PoolChain

READABLE = 256
"""Blocks for which a hash can be read."""

EARLY = 128
"""Blocks after which the first validator in the local order records the hash of a dispute that is still open."""

STEP = 16
"""Further blocks that each next validator waits, in case the ones before it are dead or corrupt. The ledger does not
tell whether an order is recorded; recording it again costs little gas and changes nothing."""

LATEST = 240
"""Blocks after which all remaining validators record it: few blocks remain in which the hash can be read."""

UNDRAWN_PAUSE = timedelta(seconds=3)
"""Delay of each validator in the local order after the dispute's next block, before it sends a transaction."""

MOST_SENT = 8
"""Maximum number of transactions for one dispute without an order; more would not help."""

MOST_WATCHED = 4096
AT_ONCE = 64

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Watched:
    block: int | None
    """Block of the dispute; None if unknown (after a restart)."""
    undrawn_since: float | None = None
    """Time since when the order is needed, on the monotonic clock; None if it is not needed."""
    due_after: int = EARLY
    """Blocks after the dispute's."""
    sent: int = 0


class Juries:
    """Open disputes whose order may have to be recorded.

    Args:
        me: This validator.
        chain: The ledger.
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
            key: The disputed work.
            block: The block of the dispute.
        """
        self._entry(key).block = block

    def missed(self, key: Digest) -> None:
        """Notes that a dispute has no order on the ledger."""
        entry = self._entry(key)
        if entry.undrawn_since is None:
            entry.undrawn_since = self._clock.monotonic()

    async def round(self) -> int:
        """Records the order of due disputes; returns their number.

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
        """Returns whether this validator may still decide the dispute."""
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
            # Recorded by a verdict, or too late; if it is missing, the judging loop reports it.
            self._watched.pop(key)
            return False
        entry.due_after = min(EARLY + rank * STEP, LATEST)
        return head - entry.block >= entry.due_after

    def _sent(self, key: Digest) -> None:
        entry = self._watched[key]
        entry.sent += 1
        if entry.undrawn_since is None or entry.sent >= MOST_SENT:
            self._watched.pop(key)
        else:  # the block after this transaction's block may be needed, too
            entry.undrawn_since = self._clock.monotonic()
