"""Reads a chain's events in order, at least once, across restarts and reorgs.

    cursor = EventCursor(Web3Events(web3, addresses=[contract]), name="verdicts", store=store, start_block=deployed_at)
    async for batch in cursor.follow():
        for event in batch.events:
            undo(event.log) if event.reverted else apply(event.log)
        await cursor.commit(batch)

A batch that was not committed is delivered again. After a reorg the cursor first delivers the removed events with
`reverted` set, newest first, and then the events of the new branch. (After a long catch-up the cursor remembers only
the last block of each range; it may then revert and redeliver events that the reorg did not touch.)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

from ledger.errors import AnswerTooBig, ChainUnavailable, CursorTooOld
from ledger.events.cursor_position import BlockRef, Position, advance, dump, load, next_range, rewind
from ledger.events.cursor_stores import CursorStore
from ledger.events.source import EventSource, Header
from ledger.transactions.receipts import EventLog
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.logs import get_logger

_log = get_logger(__name__)

_MEMORY = 128
"""Depth of reorg that a cursor can undo, in blocks. Ethereum finalises after 64 blocks; tests on development chains
undo more blocks."""

_MAX_UNSTABLE_READS = 8
"""Number of reads that reorgs may interrupt before `poll` raises an error."""

_MAX_SINGLE_BLOCKS = 4
"""Maximum number of new blocks that are read one by one, by hash. For so few blocks this takes fewer requests than a
range, and most of the requests run in parallel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainEvent:
    """An event on the chain; `reverted` is True if a reorg removed the event."""

    log: EventLog
    reverted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBatch:
    """Events to handle, and the cursor's position after them.

    Args:
        events: Events in the order in which to handle them; may be empty.
        position: The position that `commit` saves.
        head: Height of the chain when the batch was read.
        head_time: Timestamp of that newest block, Unix time in seconds.
        since: Timestamp of the first block with an event, Unix time in seconds; None if the cursor did not read that
            block's header.
    """

    events: tuple[ChainEvent, ...]
    position: Position
    head: int
    head_time: int
    since: int | None = None


class EventCursor:
    """Reads one event source. Not safe for concurrent tasks.

    Args:
        source: The events to read.
        name: Name of the cursor in the store.
        store: Keeps the position.
        start_block: The first block to read, for instance that of the contract's deployment.
        confirmations: Number of blocks on top of a block before it is read. The cursor handles deeper reorgs, too.
        max_range: Maximum blocks per request; the cursor asks for fewer blocks if the node refuses a request.
        memory: Depth of reorg that the cursor can undo, in blocks.
        poll: Polling interval of `follow`.
        clock: Clock for the polling interval.
    """

    def __init__(
        self,
        source: EventSource,
        *,
        name: str,
        store: CursorStore,
        start_block: int = 0,
        confirmations: int = 0,
        max_range: int = 2_000,
        memory: int = _MEMORY,
        poll: timedelta = timedelta(milliseconds=250),
        clock: Clock | None = None,
    ) -> None:
        self._source = source
        self._name = name
        self._store = store
        self._start = start_block
        self._confirmations = confirmations
        self._max_range = max_range
        self._span = max_range
        self._memory = memory
        self._poll = poll
        self._clock = clock or SystemClock()
        self._position: Position | None = None

    async def poll(self) -> EventBatch:
        """Returns the next events after the last commit: one range of blocks, or up to four single blocks.

        Raises:
            ChainUnavailable: The node did not answer, or the chain was reorganised during every attempt.
            CursorTooOld: The reorg is deeper than the blocks that the cursor remembers.
        """
        unstable = 0
        while unstable < _MAX_UNSTABLE_READS:
            span = self._span
            batch = await self._attempt()
            if batch is not None:
                return batch
            # An attempt that halved the range does not count as unstable, because the chain did not change: the node
            # only refused the size of the range. Halving ends at one block, so this loop ends.
            unstable += self._span >= span
        raise ChainUnavailable(
            f"the chain changed {_MAX_UNSTABLE_READS} times while cursor {self._name} was reading it"
        )

    async def commit(self, batch: EventBatch) -> None:
        """Saves the batch's position; the next `poll` continues after it."""
        if batch.position is self._position:
            return
        await self._store.save(self._name, dump(batch.position))
        self._position = batch.position

    async def follow(self) -> AsyncIterator[EventBatch]:
        """Yields batches that contain events, without end. The consumer commits each batch.

        While the node does not answer, the cursor logs a warning and tries again after the polling interval.

        Raises:
            CursorTooOld: The reorg is deeper than the blocks that the cursor remembers.
        """
        while True:
            try:
                batch = await self.poll()
            except ChainUnavailable as error:
                if not error.retryable:
                    raise
                _log.warning("can't read events", cursor=self._name, detail=error.detail)
                await self._clock.sleep(self._poll)
                continue
            if batch.events:
                yield batch
            elif batch.position != self._position:
                await self.commit(batch)
            # An uncommitted batch is delivered again, so the loop sleeps first; otherwise it would be a busy loop.
            uncommitted = batch.position != self._position
            if uncommitted or batch.position.next_block > batch.head - self._confirmations:
                await self._clock.sleep(self._poll)

    async def _attempt(self) -> EventBatch | None:
        """Reads the next blocks once.

        Returns None if the chain changed meanwhile or the node refused the size of the range.
        """
        position = await self._current()
        tip = await self._source.tip()
        if position.read and position.read[-1] == tip.ref:
            return EventBatch(events=(), position=position, head=tip.ref.number, head_time=tip.time)
        return await self._next_blocks(position, tip) or await self._next_range(position, tip)

    async def _next_blocks(self, position: Position, tip: Header) -> EventBatch | None:
        """Reads the new blocks one by one, if there are at most `_MAX_SINGLE_BLOCKS`.

        Returns None if there are more new blocks, or if they don't extend the last block read. The method compares
        parent hashes and requests events by block hash, so a reorg between requests can't mix branches.
        """
        target = tip.ref.number - self._confirmations
        if not position.read or position.next_block != position.read[-1].number + 1:
            return None
        if not position.next_block <= target < position.next_block + min(_MAX_SINGLE_BLOCKS, self._max_range):
            return None
        blocks = await self._chain_of(position.read[-1], [*range(position.next_block, target + 1)], tip)
        found = None if blocks is None else await asyncio.gather(*map(self._events_of, blocks))
        if blocks is None or found is None or None in found:
            return None
        logs: list[EventLog] = []
        since = None
        for block, own in zip(blocks, found, strict=True):
            position = advance(position, upto=block.ref, logs=own or (), memory=self._memory)
            since = block.time if own and since is None else since
            logs += own or ()
        events = tuple(ChainEvent(log=log) for log in logs)
        return EventBatch(events=events, position=position, head=tip.ref.number, head_time=tip.time, since=since)

    async def _chain_of(self, below: BlockRef, numbers: list[int], tip: Header) -> list[Header] | None:
        """Returns the blocks at these heights; None if their parent hashes don't lead back to `below`."""
        asked = [number for number in numbers if number != tip.ref.number]
        found = await asyncio.gather(*map(self._source.header, asked))
        blocks: list[Header] = []
        for block in [*found, *([tip] if len(asked) < len(numbers) else [])]:
            if block is None or block.parent != below.hash:
                return None
            blocks.append(block)
            below = block.ref
        return blocks

    async def _events_of(self, block: Header) -> tuple[EventLog, ...] | None:
        """Returns a block's events; None if the node no longer has the block."""
        found = () if block.empty else await self._source.logs_of(block.ref.hash)
        return None if found is None else tuple(found)

    async def _next_range(self, position: Position, tip: Header) -> EventBatch | None:
        """Returns the events that a reorg removed, followed by the events of one range of blocks.

        Returns None if the chain changed meanwhile, or if the node refused the size of the range.
        """
        head = tip.ref.number
        ancestor = await self._ancestor(position)
        rewound = rewind(position, ancestor=ancestor, start=self._start)
        if rewound is None:
            raise CursorTooOld(f"none of the last {len(position.read)} blocks of cursor {self._name} is on the chain")
        events = tuple(ChainEvent(log=log, reverted=True) for log in rewound.removed)
        if rewound.position != position:
            position = rewound.position
        wanted = next_range(position, target=head - self._confirmations, span=self._span)
        if wanted is None:
            return EventBatch(events=events, position=position, head=head, head_time=tip.time)
        upto = await self._ref(wanted[1])
        logs = await self._logs(*wanted)
        if logs is None:
            return None
        # If the range's last block and the ancestor are the same before and after the request for logs, all logs come
        # from one branch, and this branch contains the ancestor.
        if upto is None or await self._ref(upto.number) != upto or not await self._on_chain(ancestor):
            return None
        position = advance(position, upto=upto, logs=logs, memory=self._memory)
        events = (*events, *(ChainEvent(log=log) for log in logs))
        return EventBatch(events=events, position=position, head=head, head_time=tip.time)

    async def _logs(self, first: int, last: int) -> tuple[EventLog, ...] | None:
        """Returns the range's events; if the node refuses the range's size, halves the next range and returns None."""
        try:
            logs = tuple(await self._source.logs(first, last))
        except AnswerTooBig:
            if first == last:
                raise
            self._span = max(1, (last - first + 1) // 2)
            return None
        self._span = min(self._max_range, self._span * 2)
        return logs

    async def _current(self) -> Position:
        if self._position is None:
            self._position = await self._restored() or Position(next_block=self._start, filter=self._source.identity)
        return self._position

    async def _restored(self) -> Position | None:
        stored = await self._store.load(self._name)
        if stored is None:
            return None
        try:
            position = load(stored)
        except ValueError:
            _log.error("stored cursor position is unreadable; reading from the start block", cursor=self._name)
            return None
        if position.filter != self._source.identity:
            _log.warning("event filter of the cursor has changed; reading from the start block", cursor=self._name)
            return None
        return position

    async def _ancestor(self, position: Position) -> BlockRef | None:
        """Returns the newest remembered block that is still on the chain."""
        for ref in reversed(position.read):
            if await self._on_chain(ref):
                return ref
        return None

    async def _on_chain(self, ref: BlockRef | None) -> bool:
        return ref is None or await self._ref(ref.number) == ref

    async def _ref(self, number: int) -> BlockRef | None:
        found = await self._source.header(number)
        return None if found is None else found.ref
