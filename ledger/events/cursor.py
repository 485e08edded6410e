"""Reads a chain's events in order, at least once, over restarts and reorgs.

    cursor = EventCursor(Web3Events(web3, addresses=[contract]), name="verdicts", store=store, start_block=deployed_at)
    async for batch in cursor.follow():
        for event in batch.events:
            undo(event.log) if event.reverted else apply(event.log)
        await cursor.commit(batch)

What was delivered and not committed is delivered again. When the chain is reorganised, events that are gone come first
with `reverted` set, newest first, then those of the new branch. (After a long catch-up only the ends of the ranges read
are remembered: an event that the reorg left in place may then be taken back and delivered again.)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

import structlog

from ledger.errors import AnswerTooBig, ChainUnavailable, CursorTooOld
from ledger.events.cursor_position import BlockRef, Position, advance, dump, load, next_range, rewind
from ledger.events.cursor_stores import CursorStore
from ledger.events.source import EventSource, Header
from ledger.transactions.receipts import EventLog
from protocol.runtime.clock import Clock, SystemClock

_log = structlog.get_logger(__name__)

_MEMORY = 128
"""Blocks a reorg may be deep; Ethereum's finality needs 64, a development chain goes back as far as a test asks."""

_UNSTEADY_TRIES = 8

_FEW = 4
"""Up to so many blocks are read one by one, by their hashes: fewer questions than a range takes, and fewer in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainEvent:
    """Something that happened on the chain, or, with `reverted`, that turned out not to have happened."""

    log: EventLog
    reverted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBatch:
    """Events to handle, and where the cursor stands when they are.

    Args:
        events: In the order to handle them; may be empty.
        position: What `commit` saves.
        head: The newest height when it was read.
        head_time: When that block was made, Unix time in seconds.
        since: When the first block with an event was made, if the reading showed it; else None.
    """

    events: tuple[ChainEvent, ...]
    position: Position
    head: int
    head_time: int
    since: int | None = None


class EventCursor:
    """One reader of one source. Not for several tasks at once.

    Args:
        source: What is read.
        name: Its name in the store.
        store: Where its position is kept.
        start_block: The first block that matters, for instance the contract's own.
        confirmations: Blocks on top of one before it is read. Deeper reorgs than this are still handled.
        max_range: The most blocks that are asked for at once; less when the node refuses.
        memory: Blocks that a reorg may be deep.
        poll: Time between looks in `follow`.
        clock: Time for that.
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
        """What happened since the last commit, as far as one question to the chain reaches.

        Raises:
            ChainUnavailable: The chain could not be asked, or kept changing while it was.
            CursorTooOld: The chain was reorganised deeper than the cursor remembers.
        """
        unsteady = 0
        while unsteady < _UNSTEADY_TRIES:
            span = self._span
            batch = await self._attempt()
            if batch is not None:
                return batch
            unsteady += self._span >= span  # a smaller range is progress: it ends at one block
        raise ChainUnavailable(f"the chain changed {_UNSTEADY_TRIES} times while {self._name} was reading it")

    async def commit(self, batch: EventBatch) -> None:
        """Saves that a batch was handled; the next `poll` goes on after it."""
        if batch.position is self._position:
            return
        await self._store.save(self._name, dump(batch.position))
        self._position = batch.position

    async def follow(self) -> AsyncIterator[EventBatch]:
        """Yields batches with events for ever; waits when there are none. The consumer commits each one.

        While the chain can't be asked it waits and tries again.

        Raises:
            CursorTooOld: The chain was reorganised deeper than the cursor remembers.
        """
        while True:
            try:
                batch = await self.poll()
            except ChainUnavailable as error:
                if not error.retryable:
                    raise
                _log.warning("events can't be read", cursor=self._name, detail=error.detail)
                await self._clock.sleep(self._poll)
                continue
            if batch.events:
                yield batch
            elif batch.position != self._position:
                await self.commit(batch)
            uncommitted = batch.position != self._position  # it comes again, but not in a hot loop
            if uncommitted or batch.position.next_block > batch.head - self._confirmations:
                await self._clock.sleep(self._poll)

    async def _attempt(self) -> EventBatch | None:
        """One try; None if the chain changed in the middle of it."""
        position = await self._current()
        tip = await self._source.tip()
        if position.read and position.read[-1] == tip.ref:
            return EventBatch(events=(), position=position, head=tip.ref.number, head_time=tip.time)
        return await self._next_blocks(position, tip) or await self._next_range(position, tip)

    async def _next_blocks(self, position: Position, tip: Header) -> EventBatch | None:
        """The few blocks on top of the newest that was read, if each of them stands on the one before.

        Their parents' hashes say so, and events are asked for by a block's own: no reorg comes between the questions.
        """
        target = tip.ref.number - self._confirmations
        if not position.read or position.next_block != position.read[-1].number + 1:
            return None
        if not position.next_block <= target < position.next_block + min(_FEW, self._max_range):
            return None
        blocks = await self._linked(position.read[-1], [*range(position.next_block, target + 1)], tip)
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

    async def _linked(self, below: BlockRef, numbers: list[int], tip: Header) -> list[Header] | None:
        """The blocks at these heights; None if they are no chain on top of `below`."""
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
        """A block's events; None if the node does not have it any more."""
        found = () if block.empty else await self._source.logs_of(block.ref.hash)
        return None if found is None else tuple(found)

    async def _next_range(self, position: Position, tip: Header) -> EventBatch | None:
        """As many blocks as may be asked for at once, after what a reorg took back."""
        head = tip.ref.number
        ancestor = await self._ancestor(position)
        rewound = rewind(position, ancestor=ancestor, start=self._start)
        if rewound is None:
            raise CursorTooOld(f"cursor {self._name} knows none of its last {len(position.read)} blocks any more")
        events = tuple(ChainEvent(log=log, reverted=True) for log in rewound.vanished)
        if rewound.position != position:
            position = rewound.position
        wanted = next_range(position, target=head - self._confirmations, span=self._span)
        if wanted is None:
            return EventBatch(events=events, position=position, head=head, head_time=tip.time)
        upto = await self._ref(wanted[1])
        logs = await self._logs(*wanted)
        if logs is None:
            return None
        # Read between two looks that agree, the range is of one branch, and that branch is what we stand on.
        if upto is None or await self._ref(upto.number) != upto or not await self._stands(ancestor):
            return None
        position = advance(position, upto=upto, logs=logs, memory=self._memory)
        events = (*events, *(ChainEvent(log=log) for log in logs))
        return EventBatch(events=events, position=position, head=head, head_time=tip.time)

    async def _logs(self, first: int, last: int) -> tuple[EventLog, ...] | None:
        """The range's events; None, and a smaller range next time, if the node refuses so many blocks."""
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
            _log.error("a stored position can't be read; starting over", cursor=self._name)
            return None
        if position.filter != self._source.identity:
            _log.warning("the cursor reads other events than before; starting over", cursor=self._name)
            return None
        return position

    async def _ancestor(self, position: Position) -> BlockRef | None:
        """The newest remembered block that is still on the chain."""
        for ref in reversed(position.read):
            if await self._stands(ref):
                return ref
        return None

    async def _stands(self, ref: BlockRef | None) -> bool:
        return ref is None or await self._ref(ref.number) == ref

    async def _ref(self, number: int) -> BlockRef | None:
        found = await self._source.header(number)
        return None if found is None else found.ref
