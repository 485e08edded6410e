"""Following some kinds of events from a stored position: what every service that reads the ledger does."""

from __future__ import annotations

from collections.abc import Sequence

from redis.asyncio import Redis

from ledger.client import Ledger
from ledger.deployment import Deployment
from ledger.errors import CursorTooOld
from ledger.events.cursor import EventBatch, EventCursor
from ledger.events.cursor_stores import RedisCursorStore
from ledger.events.decoder import EventDecoder, topic_of
from ledger.events.source import Web3Events
from ledger.events.types import LedgerEvent
from ledger.transactions.receipts import EventLog
from protocol.identifiers import Address
from protocol.runtime.clock import Clock
from protocol.runtime.redis import RedisKeys, store_errors


class EventFollower:
    """Reads batches of events, each from where the last one was committed, over restarts and reorgs.

    Args:
        name: Of the position.
        deployment: Where the contracts are.
        kinds: Which events.
        contracts: Which of the contracts emit them.
        redis: Keeps the position, for all instances of the service.
        keys: The service's.
        confirmations: Blocks on top of one before its events count.
        clock: Whose time counts.
    """

    def __init__(
        self,
        name: str,
        deployment: Deployment,
        *,
        kinds: Sequence[type[LedgerEvent]],
        contracts: Sequence[Address],
        redis: Redis,
        keys: RedisKeys,
        confirmations: int,
        clock: Clock,
    ) -> None:
        self._name = name
        self._deployment = deployment
        self._topics = [topic_of(kind) for kind in kinds]
        self._contracts = list(contracts)
        self._positions = RedisCursorStore(redis, prefix=keys.prefix + "cursor:")
        self._confirmations = confirmations
        self._clock = clock
        self._decoder = EventDecoder(deployment)
        self._cursor: EventCursor | None = None

    async def poll(self, ledger: Ledger) -> EventBatch:
        """The next events; the same again until they are committed.

        Raises:
            CursorTooOld: The chain began anew, or a reorg is deeper than anybody remembers. The position is forgotten,
                so that the next round reads from the start: what is true now is asked of the ledger, never taken from
                events, so nothing has to be taken back.
            ChainUnavailable: The chain can't be asked.
            StoreUnavailable: The position can't be read.
        """
        cursor = self._cursor = self._cursor or self._new_cursor(ledger)
        try:
            with store_errors():
                return await cursor.poll()
        except CursorTooOld:
            self._cursor = None
            with store_errors():
                await self._positions.save(self._name, b"")
            raise

    async def commit(self, batch: EventBatch) -> None:
        """Says that a batch was handled.

        Raises:
            StoreUnavailable: The position can't be written; the batch will come again.
        """
        if self._cursor is not None:
            with store_errors():
                await self._cursor.commit(batch)

    def decode(self, log: EventLog) -> LedgerEvent | None:
        """The event, if it is one of the contracts' own."""
        return self._decoder.decode(log)

    def at_head(self, batch: EventBatch) -> bool:
        """Whether nothing that counts comes after the batch yet."""
        return batch.position.next_block > batch.head - self._confirmations

    def forget_position(self) -> None:
        """Reads the position from the store again: another instance may have read on."""
        self._cursor = None

    def _new_cursor(self, ledger: Ledger) -> EventCursor:
        return EventCursor(
            Web3Events(ledger.web3, addresses=self._contracts, topics=self._topics),
            name=self._name,
            store=self._positions,
            start_block=self._deployment.block,
            confirmations=self._confirmations,
            clock=self._clock,
        )
