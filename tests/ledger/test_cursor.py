"""Event cursors: every event at least once, over restarts, reorgs, crashes and refusing nodes."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from ledger.devchain import free_port
from ledger.errors import AnswerTooBig, ChainUnavailable, CursorTooOld
from ledger.events.cursor import ChainEvent, EventBatch, EventCursor
from ledger.events.cursor_position import BlockRef, Position, advance, dump, load, next_range, rewind
from ledger.events.cursor_stores import CursorStore, MemoryCursorStore, RedisCursorStore
from ledger.events.source import Header, Web3Events
from ledger.rpc.connection import connect
from ledger.transactions.receipts import EventLog
from protocol.identifiers import ZERO_ADDRESS, Address, Digest, digest
from tests.kit import gadget
from tests.kit.chain import LiveChain
from tests.kit.json_rpc import Wire
from tests.ledger.proxy import bad_line

# A chain held in a list


def _id(number: int) -> Digest:
    return digest(number.to_bytes(32, "big"))


class ModelChain:
    """Blocks with the requested number of events; every block ever made has a unique hash."""

    def __init__(self) -> None:
        self._made = 0
        self.blocks: list[tuple[Digest, int]] = []
        self.most_blocks = 10_000
        self.asked: list[tuple[int, int]] = []
        self.questions = 0
        self.identity = "model"
        self.between: list[tuple[int, int, list[int]]] = []
        """Reorgs that happen while the cursor is reading: (queries before it, depth, events per new block)."""
        self.grow([0])

    def grow(self, events: Sequence[int]) -> None:
        for count in events:
            self._made += 1
            self.blocks.append((_id(self._made), count))

    def reorg(self, depth: int, events: Sequence[int]) -> None:
        keep = max(1, len(self.blocks) - depth)
        del self.blocks[keep:]
        self.grow(events)

    def happen(self, step: str, detail: Any) -> None:
        if step == "grow":
            self.grow(detail)
        elif step == "reorg":
            self.reorg(*detail)
        else:
            self.between.append(detail)

    def canonical(self, upto: int | None = None) -> list[tuple[Digest, int]]:
        last = len(self.blocks) if upto is None else upto + 1
        return [(block, index) for block, count in self.blocks[:last] for index in range(count)]

    def interrupt(self) -> None:
        """Runs the changes that a test scheduled between two queries."""
        self.questions += 1
        if self.between:
            wait, depth, events = self.between.pop()
            if wait:
                self.between.append((wait - 1, depth, events))
            else:
                self.reorg(depth, events)

    async def tip(self) -> Header:
        self.interrupt()
        return self._header(len(self.blocks) - 1)

    async def header(self, number: int) -> Header | None:
        self.interrupt()
        return self._header(number) if number < len(self.blocks) else None

    async def logs(self, first: int, last: int) -> Sequence[EventLog]:
        self.interrupt()
        self.asked.append((first, last))
        if last - first + 1 > self.most_blocks:
            raise AnswerTooBig(f"at most {self.most_blocks} blocks")
        return [
            log for number in range(first, min(last + 1, len(self.blocks))) for log in self._logs(number, self.blocks)
        ]

    async def logs_of(self, block: Digest) -> Sequence[EventLog] | None:
        self.interrupt()
        found = [number for number, (known, _) in enumerate(self.blocks) if known == block]
        if not found:
            return None
        self.asked.append((found[0], found[0]))
        return self._logs(found[0], self.blocks)

    def _header(self, number: int) -> Header:
        block, count = self.blocks[number]
        parent = self.blocks[number - 1][0] if number else _id(0)
        return Header(ref=BlockRef(number=number, hash=block), parent=parent, time=1000 + number, empty=not count)

    @staticmethod
    def _logs(number: int, blocks: Sequence[tuple[Digest, int]]) -> list[EventLog]:
        block, count = blocks[number]
        return [
            EventLog(
                address=ZERO_ADDRESS,
                topics=(),
                data=b"",
                block_number=number,
                block_hash=block,
                transaction=block,
                index=index,
            )
            for index in range(count)
        ]


class Consumer:
    """Applies events strictly: it never removes an unknown event, and never applies one after a later one."""

    def __init__(self) -> None:
        self.applied: list[tuple[Digest, int]] = []

    def handle(self, events: Sequence[ChainEvent]) -> None:
        for event in events:
            key = (event.log.block_hash, event.log.index)
            if event.reverted:
                assert self.applied.pop() == key
            else:
                self.applied.append(key)


async def drain(cursor: EventCursor, consumer: Consumer, *, lag: int = 0) -> None:
    while True:
        batch = await cursor.poll()
        consumer.handle(batch.events)
        await cursor.commit(batch)
        if batch.position.next_block > batch.head - lag and not batch.events:
            return


MIDDLE = st.tuples(st.integers(0, 4), st.integers(1, 4), st.lists(st.integers(0, 2), max_size=6))
STEPS = st.one_of(
    st.tuples(st.just("grow"), st.lists(st.integers(0, 3), min_size=1, max_size=6)),
    st.tuples(st.just("reorg"), st.tuples(st.integers(1, 7), st.lists(st.integers(0, 3), max_size=8))),
    st.tuples(
        st.just("reorg while reading"),
        st.tuples(st.integers(0, 4), st.integers(1, 4), st.lists(st.integers(0, 2), max_size=6)),
    ),
    st.tuples(st.just("read"), st.none()),
    st.tuples(st.just("read without commit"), st.none()),
    st.tuples(st.just("restart"), st.none()),
)


@given(steps=st.lists(STEPS, max_size=30), span=st.integers(1, 20), most=st.integers(1, 20), lag=st.integers(0, 3))
def test_a_consumer_ends_with_the_canonical_events_after_any_history(
    steps: list[tuple[str, Any]], span: int, most: int, lag: int
) -> None:
    chain = ModelChain()
    chain.most_blocks = most
    asyncio.run(live_through(chain, steps, span=span, lag=lag))


async def live_through(chain: ModelChain, steps: list[tuple[str, Any]], *, span: int, lag: int) -> None:
    consumer, store = Consumer(), MemoryCursorStore()

    def started() -> EventCursor:
        return EventCursor(chain, name="c", store=store, confirmations=lag, max_range=span, memory=500)

    async def read() -> EventBatch:
        batch = await cursor.poll()
        consumer.handle(batch.events)
        await cursor.commit(batch)
        return batch

    cursor = started()
    for step, detail in steps:
        if step in {"grow", "reorg", "reorg while reading"}:
            chain.happen(step, detail)
        elif step == "read":
            await read()
        elif step == "read without commit":
            await cursor.poll()
        else:
            cursor = started()
    chain.between.clear()
    chain.grow([0] * lag)
    while True:
        batch = await read()
        if not batch.events and batch.position.next_block > batch.head - lag:
            break
    assert consumer.applied == chain.canonical(upto=len(chain.blocks) - 1 - lag)


@pytest.mark.parametrize("questions_before", range(7))
@pytest.mark.parametrize("depth", range(1, 6))
async def test_a_reorg_between_any_two_queries_is_noticed(questions_before: int, depth: int) -> None:
    for new_blocks in range(1, 8):
        chain, consumer = ModelChain(), Consumer()
        chain.grow([1, 1, 1])
        cursor = EventCursor(chain, name="c", store=MemoryCursorStore())
        await drain(cursor, consumer)
        chain.grow([1, 1])
        chain.between = [(questions_before, depth, [1] * new_blocks)]
        await drain(cursor, consumer)
        chain.between.clear()
        await drain(cursor, consumer)
        assert consumer.applied == chain.canonical()


@pytest.mark.parametrize("lag", [0, 2])
async def test_a_new_block_needs_no_more_queries_than_its_events(lag: int) -> None:
    chain, consumer = ModelChain(), Consumer()
    chain.grow([1, 1, 1, 1])
    cursor = EventCursor(chain, name="c", store=MemoryCursorStore(), confirmations=lag)
    await drain(cursor, consumer, lag=lag)
    asked: list[int] = []
    for new in ([], [3], [0]):
        chain.grow(new)
        chain.questions = 0
        batch = await cursor.poll()
        consumer.handle(batch.events)
        await cursor.commit(batch)
        asked.append(chain.questions)
    assert consumer.applied == chain.canonical(upto=len(chain.blocks) - 1 - lag)
    # The newest block, and the events of a block that has any; a block below the newest needs its own query.
    assert asked == ([1, 2, 1] if lag == 0 else [2, 3, 3])


@pytest.mark.parametrize(
    ("new", "lag", "questions", "since"),
    [
        ([0, 2], 0, 3, 1005),  # the newest block, the one below it, and the events of the one that has any
        ([0, 2, 1, 0], 0, 6, 1005),
        ([2, 0, 1], 1, 6, 1003),  # the newest block is not confirmed yet, but three below it are
        ([0, 0], 0, 2, None),
        ([1] * 5, 0, 6, None),  # a range: the newest block, the blocks at both ends, and the events
    ],
)
async def test_a_few_new_blocks_are_read_by_hash_and_with_their_time(
    new: list[int], lag: int, questions: int, since: int | None
) -> None:
    chain, consumer = ModelChain(), Consumer()
    chain.grow([1, 1, 1])
    cursor = EventCursor(chain, name="c", store=MemoryCursorStore(), confirmations=lag)
    await drain(cursor, consumer, lag=lag)
    chain.grow(new)
    chain.questions = 0
    batch = await cursor.poll()
    assert (chain.questions, batch.since, batch.head_time) == (questions, since, 1000 + len(chain.blocks) - 1)
    consumer.handle(batch.events)
    assert consumer.applied == chain.canonical(upto=len(chain.blocks) - 1 - lag)


async def test_a_poll_without_news_writes_nothing() -> None:
    class Counting(MemoryCursorStore):
        saves = 0

        async def save(self, name: str, value: bytes) -> None:
            self.saves += 1
            await super().save(name, value)

    chain, store = ModelChain(), Counting()
    chain.grow([1])
    for lag in (0, 1):
        cursor = EventCursor(chain, name=f"c{lag}", store=store, confirmations=lag)
        for _ in range(5):
            await cursor.commit(await cursor.poll())
    assert store.saves == 1 + 1


async def test_uncommitted_events_are_delivered_again() -> None:
    chain, store = ModelChain(), MemoryCursorStore()
    chain.grow([2])
    cursor = EventCursor(chain, name="c", store=store)
    first = await cursor.poll()
    assert (await cursor.poll()).events == first.events
    assert (await EventCursor(chain, name="c", store=store).poll()).events == first.events
    await cursor.commit(first)
    assert (await EventCursor(chain, name="c", store=store).poll()).events == ()


async def test_a_refused_range_is_halved_until_accepted_and_grows_again() -> None:
    chain = ModelChain()
    chain.grow([1] * 100)
    chain.most_blocks = 10
    cursor, consumer = EventCursor(chain, name="c", store=MemoryCursorStore(), max_range=64), Consumer()
    await drain(cursor, consumer)
    assert consumer.applied == chain.canonical()
    chain.most_blocks = 1_000
    chain.grow([1] * 200)
    chain.asked.clear()
    await drain(cursor, consumer)
    assert max(last - first + 1 for first, last in chain.asked) == 64


async def test_a_single_block_over_the_limit_is_an_error() -> None:
    chain = ModelChain()
    chain.most_blocks = 0
    with pytest.raises(AnswerTooBig):
        await EventCursor(chain, name="c", store=MemoryCursorStore()).poll()


async def test_a_reorg_deeper_than_the_memory_raises_cursor_too_old() -> None:
    chain = ModelChain()
    chain.grow([1] * 50)
    cursor = EventCursor(chain, name="c", store=MemoryCursorStore(), memory=5, max_range=1)
    await drain(cursor, Consumer())
    chain.reorg(40, [1] * 45)
    with pytest.raises(CursorTooOld):
        await cursor.poll()


async def test_a_chain_that_keeps_changing_is_given_up_after_bounded_attempts() -> None:
    chain = ModelChain()
    chain.grow([1] * 3)
    chain.between = [(0, 2, [1, 1])] * 100
    with pytest.raises(ChainUnavailable, match="changed"):
        await EventCursor(chain, name="c", store=MemoryCursorStore()).poll()


async def test_confirmations_delay_events() -> None:
    chain = ModelChain()
    chain.grow([1])
    cursor = EventCursor(chain, name="c", store=MemoryCursorStore(), confirmations=2)
    assert (await cursor.poll()).events == ()
    chain.grow([0, 0])
    assert len((await cursor.poll()).events) == 1


async def test_a_cursor_with_another_filter_starts_again() -> None:
    chain, store = ModelChain(), MemoryCursorStore()
    chain.grow([1])
    await drain(EventCursor(chain, name="c", store=store), Consumer())
    chain.identity = "another"
    assert len((await EventCursor(chain, name="c", store=store).poll()).events) == 1


async def test_an_unreadable_position_starts_again() -> None:
    chain, store = ModelChain(), MemoryCursorStore()
    chain.grow([1])
    await store.save("c", b'{"next_block": "x"')
    assert len((await EventCursor(chain, name="c", store=store).poll()).events) == 1


# Pure functions


def _ref(number: int) -> BlockRef:
    return BlockRef(number=number, hash=_id(number))


def _log(number: int) -> EventLog:
    return EventLog(
        address=ZERO_ADDRESS,
        topics=(_id(7),),
        data=b"\x00\xff",
        block_number=number,
        block_hash=_id(number),
        transaction=_id(number),
        index=0,
    )


def test_rewinding_removes_the_newest_events_first() -> None:
    position = Position(next_block=4, read=(_ref(1), _ref(2), _ref(3)), delivered=(_log(1), _log(2), _log(3)))
    rewound = rewind(position, ancestor=_ref(1), start=0)
    assert rewound is not None
    assert [log.block_number for log in rewound.removed] == [3, 2]
    assert rewound.position == Position(next_block=2, read=(_ref(1),), delivered=(_log(1),))


def test_without_a_common_block_the_rewind_needs_the_complete_memory() -> None:
    position = Position(next_block=3, read=(_ref(2),), delivered=(_log(2),))
    everything = rewind(position, ancestor=None, start=1)
    assert everything is not None
    assert everything.position.next_block == 1
    forgetful = Position(next_block=3, read=(_ref(2),), delivered=(_log(2),), complete=False)
    assert rewind(forgetful, ancestor=None, start=1) is None


@given(steps=st.lists(st.integers(1, 9), min_size=1, max_size=60), memory=st.integers(0, 20))
def test_position_memory_is_bounded_and_covers_the_promised_blocks(steps: list[int], memory: int) -> None:
    position, newest = Position(next_block=0), -1
    for step in steps:
        logs = tuple(_log(number) for number in range(newest + 1, newest + step + 1))
        newest += step
        position = advance(position, upto=_ref(newest), logs=logs, memory=memory)
    assert len(position.read) <= memory + 2
    assert position.complete or position.read[0].number <= newest - memory
    kept = [log.block_number for log in position.delivered]
    after = 0 if position.complete else position.read[0].number + 1
    assert kept == list(range(after, newest + 1))


@given(st.integers(0, 100), st.integers(-5, 100), st.integers(1, 50))
def test_ranges_end_at_the_target_block(start: int, target: int, span: int) -> None:
    wanted = next_range(Position(next_block=start), target=target, span=span)
    if start > target:
        assert wanted is None
    else:
        assert wanted is not None
        assert wanted[0] == start
        assert wanted[1] == min(target, start + span - 1)


def test_a_position_is_read_back_as_it_was_written() -> None:
    position = Position(next_block=3, read=(_ref(2),), delivered=(_log(2),), complete=False, filter="f")
    assert load(dump(position)) == position


# Stores


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("there is no redis-server on PATH")
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        process = subprocess.Popen(
            [binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory],
            stdout=subprocess.DEVNULL,
        )
        yield f"redis://127.0.0.1:{port}"
        process.terminate()
        process.wait()


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.needs_redis)])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[CursorStore]:
    if request.param == "memory":
        yield MemoryCursorStore()
    else:
        redis = Redis.from_url(request.getfixturevalue("redis_url"))
        for _ in range(100):
            try:
                await redis.ping()
                break
            except RedisConnectionError:
                await asyncio.sleep(0.05)
        yield RedisCursorStore(redis)
        await redis.aclose()


async def test_a_cursor_store_returns_the_last_value_saved_under_each_name(store: CursorStore) -> None:
    assert await store.load("a") is None
    await store.save("a", b"one")
    await store.save("b", b"\x00\xff")
    await store.save("a", b"two")
    assert await store.load("a") == b"two"
    assert await store.load("b") == b"\x00\xff"


# Real chains


async def collect(cursor: EventCursor) -> list[tuple[int, bool]]:
    """Reads to the end and commits; returns (topic, reverted) of each event."""
    seen: list[tuple[int, bool]] = []
    while True:
        batch: EventBatch = await cursor.poll()
        seen += [(int(event.log.topics[0], 16), event.reverted) for event in batch.events]
        await cursor.commit(batch)
        if batch.position.next_block > batch.head:
            return seen


async def deploy(chain: LiveChain) -> Address:
    async with Wire(chain.url) as wire:
        return await wire.deploy_gadget(chain.accounts[0])


async def test_a_restarted_cursor_resumes_at_its_position(chain: LiveChain, store: CursorStore) -> None:
    contract = await deploy(chain)
    web3 = await connect(chain.url, expected_chain_id=chain.chain_id)
    async with Wire(chain.url) as wire:
        for round_of_three in range(3):
            for number in range(3):
                data = gadget.emit(10 * round_of_three + number)
                await wire.transact(chain.accounts[0], to=contract, data=data)
            events = Web3Events(web3, addresses=[contract])
            cursor = EventCursor(events, name=f"restarted {chain.kind}", store=store, max_range=4)
            assert await collect(cursor) == [(10 * round_of_three + number, False) for number in range(3)]
    await web3.provider.disconnect()


async def test_a_reorg_removes_events_and_delivers_the_new_ones(chain: LiveChain, store: CursorStore) -> None:
    contract = await deploy(chain)
    web3 = await connect(chain.url, expected_chain_id=chain.chain_id)
    cursor = EventCursor(Web3Events(web3, addresses=[contract]), name=f"reorg {chain.kind}", store=store)
    async with Wire(chain.url) as wire:
        await wire.transact(chain.accounts[0], to=contract, data=gadget.emit(1))
        assert await collect(cursor) == [(1, False)]
        fork = await chain.controls.snapshot()
        for number in (2, 3):
            await wire.transact(chain.accounts[0], to=contract, data=gadget.emit(number))
        assert await collect(cursor) == [(2, False), (3, False)]
        await chain.controls.revert(fork)
        for number in (4, 5, 6):
            await wire.transact(chain.accounts[1], to=contract, data=gadget.emit(number))
        restarted = EventCursor(Web3Events(web3, addresses=[contract]), name=f"reorg {chain.kind}", store=store)
        expected = [(3, True), (2, True), (4, False), (5, False), (6, False)]
        assert await collect(restarted) == expected
    await web3.provider.disconnect()


async def test_only_events_that_match_the_filter_are_delivered(chain: LiveChain) -> None:
    contract, other = await deploy(chain), await deploy(chain)
    web3 = await connect(chain.url, expected_chain_id=chain.chain_id)
    async with Wire(chain.url) as wire:
        for to, number in ((contract, 1), (contract, 2), (other, 1)):
            await wire.transact(chain.accounts[0], to=to, data=gadget.emit(number))
    source = Web3Events(web3, addresses=[contract], topics=[_id(1)])
    assert await collect(EventCursor(source, name="c", store=MemoryCursorStore())) == [(1, False)]
    await web3.provider.disconnect()


async def test_followers_wait_while_the_chain_is_unreachable(development_chain: LiveChain) -> None:
    contract = await deploy(development_chain)
    async with bad_line(development_chain.url) as line, Wire(development_chain.url) as wire:
        web3 = await connect(line.url, expected_chain_id=31337, attempts=1)
        source = Web3Events(web3, addresses=[contract])
        quick = timedelta(milliseconds=20)
        cursor = EventCursor(source, name="c", store=MemoryCursorStore(), poll=quick)
        line.down = True
        following = cursor.follow()
        first = asyncio.ensure_future(anext(following))
        await wire.transact(development_chain.accounts[0], to=contract, data=gadget.emit(1))
        await asyncio.sleep(0.1)
        assert not first.done()
        line.down = False
        batch = await asyncio.wait_for(first, 60)
        assert [int(event.log.topics[0], 16) for event in batch.events] == [1]
        await cursor.commit(batch)
        second = asyncio.ensure_future(anext(following))
        await wire.transact(development_chain.accounts[0], to=contract, data=gadget.emit(2))
        assert len((await asyncio.wait_for(second, 60)).events) == 1
        await web3.provider.disconnect()
