"""Follows selected ledger events from a position stored in Redis; used by every service that reads the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redis.asyncio import Redis

from ledger.client import Ledger
from ledger.deployment import Deployment
from ledger.errors import CursorTooOld
from ledger.events.cursor import EventBatch, EventCursor
from ledger.events.cursor_stores import RedisCursorStore
from ledger.events.decoder import EventDecoder, topic_of
from ledger.events.source import Web3Events
from ledger.events.types import LedgerEvent
from protocol.identifiers import Address
from protocol.redis.connection import RedisKeys, store_errors
from protocol.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class ObservedEvent:
    """A decoded event; `reverted` is True if a reorg removed the event."""

    event: LedgerEvent
    reverted: bool = False


class EventFollower:
    """Reads events in batches and resumes after the last committed batch, across restarts and reorgs.

    Args:
        name: Name of the stored position.
        deployment: Addresses of the contracts.
        kinds: The event types to read.
        contracts: The contracts that emit these events.
        redis: Holds the position, shared by all instances of the service.
        keys: The service's Redis key names.
        confirmations: Blocks that must stand on top of a block before its events are read.
        clock: Clock for back-off.
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
        """Returns the next batch of events; the same batch again until it is committed.

        Raises:
            CursorTooOld: The chain was restarted, or a reorg is deeper than the remembered blocks. The stored position
                is deleted, and the next call reads from the deployment's block. Callers need not undo events, because
                services read the current state from the ledger and use events only as a signal.
            ChainUnavailable: The node did not answer.
            StoreUnavailable: Redis did not answer.
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
        """Stores the position after a handled batch.

        Raises:
            StoreUnavailable: Redis did not answer; the batch will be delivered again.
        """
        if self._cursor is not None:
            with store_errors():
                await self._cursor.commit(batch)

    def decode(self, batch: EventBatch) -> list[ObservedEvent]:
        """Decodes the events of a batch, in order; skips events that the ABI does not describe."""
        decoded = ((self._decoder.decode(each.log), each.reverted) for each in batch.events)
        return [ObservedEvent(event, reverted) for event, reverted in decoded if event is not None]

    def at_head(self, batch: EventBatch) -> bool:
        """Returns whether the batch reaches the newest block that has enough confirmations."""
        return batch.position.next_block > batch.head - self._confirmations

    def forget_position(self) -> None:
        """Makes the next `poll` read the position from Redis again.

        Another instance of the service may have changed the position.
        """
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
