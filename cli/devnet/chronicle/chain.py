"""The chain as it was seen: every event of the contracts, and when its block appeared.

Blocks carry whole seconds, and the devnet makes two of them in each: what takes less is measured by when this process
saw the block, some 40 ms late at the most.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

from ledger.client import Ledger
from ledger.events.cursor import EventCursor
from ledger.events.cursor_stores import MemoryCursorStore
from ledger.events.decoder import EventDecoder
from ledger.events.source import Web3Events
from ledger.events.types import EVENTS, LedgerEvent
from protocol.errors import MusterError
from protocol.runtime.clock import Clock

_LOOK = timedelta(milliseconds=40)


class ChainWatch:
    """Watches one chain; what it saw grows for as long as `run` does.

    Args:
        ledger: The contracts on it; opened read-only.
        clock: Whose time counts.
    """

    def __init__(self, ledger: Ledger, *, clock: Clock) -> None:
        self._ledger = ledger
        self._clock = clock
        self._decoder = EventDecoder(ledger.deployment)
        source = Web3Events(ledger.web3, addresses=[ledger.deployment[contract] for contract in EVENTS])
        self._cursor = EventCursor(
            source, name="chronicle", store=MemoryCursorStore(), start_block=ledger.deployment.block, clock=clock
        )
        self.blocks: dict[int, float] = {}
        """Time at which each block was first seen, Unix s."""
        self.events: list[LedgerEvent] = []
        """In the order of the chain."""

    async def run(self) -> None:
        """Looks until it is cancelled; a chain that is down is looked at again."""
        while True:
            with suppress(MusterError):
                await self.look()
            await self._clock.sleep(_LOOK)

    async def look(self) -> None:
        """Takes what is new.

        Raises:
            MusterError: The chain can't be asked now.
        """
        height = await self._ledger.block()
        newest = max(self.blocks, default=height - 1)
        if height <= newest:
            return
        now = self._clock.now().timestamp()
        self.blocks |= dict.fromkeys(range(newest + 1, height + 1), now)
        while True:
            batch = await self._cursor.poll()
            decoded = (self._decoder.decode(event.log) for event in batch.events)
            self.events += [event for event in decoded if event is not None]
            await self._cursor.commit(batch)
            if batch.position.next_block > batch.head:
                return
