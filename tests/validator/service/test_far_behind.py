"""Two validators on one real Redis that are 10,000 submissions behind. The chain is simulated by a list of events."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from redis.asyncio import Redis

from ledger.client.event_follower import ObservedEvent
from ledger.events.cursor import ChainEvent, EventBatch
from ledger.events.cursor_position import Position
from ledger.events.types import LedgerEvent
from protocol.identifiers import ZERO_ADDRESS, Address
from protocol.redis.leader_lease import LeaderLease
from protocol.redis.script_call import ScriptRunner
from protocol.runtime.clock import ManualClock
from tests.kit.redis_aging import age
from tests.kit.submissions import POOL, sha
from tests.validator.service.test_decisions import LOG, judged, submitted
from validator.domain.items import Item
from validator.domain.progress import LoopProgress
from validator.loops.intake import LedgerIntake
from validator.loops.work_order import WorkOrder
from validator.queue.retry_policy import RetryPolicy
from validator.queue.store import NewItem, WorkQueue
from validator.store.deadlines import Deadlines
from validator.store.keys import keys_of
from validator.store.members import Members
from validator.store.validators import KnownValidators

WORKS, TOGETHER = 10_000, 2_000
UNJUDGED = range(1, WORKS + 1, 33)
LEASE = timedelta(seconds=30)


class Killed(BaseException):
    """Simulates `kill -9`: no later code runs."""


@dataclass
class Chapters:
    """Returns the ledger's events in batches of some thousands; all readers share one position."""

    events: list[LedgerEvent]
    place: int = 0

    async def poll(self, _ledger: object) -> EventBatch:
        until = min(len(self.events), self.place + TOGETHER)
        found = tuple(ChainEvent(log=replace(LOG, index=index)) for index in range(self.place, until))
        position = Position(next_block=until)
        return EventBatch(events=found, position=position, head=len(self.events) - 1, head_time=1000, since=1000)

    async def commit(self, batch: EventBatch) -> None:
        self.place = batch.position.next_block

    def decode(self, batch: EventBatch) -> list[ObservedEvent]:
        return [ObservedEvent(self.events[found.log.index], reverted=False) for found in batch.events]

    def at_head(self, batch: EventBatch) -> bool:
        return batch.position.next_block > batch.head

    def forget_position(self) -> None:
        """Does nothing: the position is shared."""


class Far:
    """One of the two validators."""

    def __init__(self, redis: Redis, chapters: Any, name: str) -> None:
        keys, clock = keys_of(POOL), ManualClock()
        self.members = Members(redis, keys=keys, validator=Address(ZERO_ADDRESS), place=name)
        patience = RetryPolicy(attempts=8)
        self.queue = WorkQueue(
            redis, keys=keys, clock=clock, lease=LEASE, member=self.members.me, retry_policy=patience
        )
        minute = timedelta(minutes=1)
        terms = SimpleNamespace(judge_period=minute, challenge_period=minute, dispute_period=minute)

        async def told() -> Any:
            return terms

        async def no_ledger() -> None:
            """Fails any ledger query, because one query per work would be ten thousand."""

        chain: Any = SimpleNamespace(pool_id=POOL, terms=told, ledger=no_ledger)
        order = WorkOrder(
            chain,
            known=KnownValidators(redis, keys=keys),
            members=self.members,
            takeover=timedelta(),
            awake_within=minute,
        )
        self.intake = LedgerIntake(
            chain,
            following=chapters,
            queue=self.queue,
            deadlines=Deadlines(redis, keys=keys),
            order=order,
            lease=LeaderLease(ScriptRunner(redis, keys=keys), "intake", lifetime=LEASE),
            notify=lambda: None,
            progress=LoopProgress(),
        )

    async def dies_in_the_middle(self, chapter: int) -> None:
        """Kills a validator when half of a batch of events is in the queue."""
        put, seen = self.queue.put, 0

        async def half(new: list[NewItem]) -> int:
            nonlocal seen
            seen += 1
            if seen < chapter:
                return await put(new)
            await put(new[: len(new) // 2])
            raise Killed

        self.queue.put = half  # type: ignore[assignment,method-assign]
        with suppress(Killed):
            await self.intake.round()
        self.queue.put = put  # type: ignore[method-assign]


async def test_validators_ten_thousand_submissions_behind_judge_each_exactly_once(
    redis: Redis,
) -> None:
    verdicts = [judged(number) for number in range(1, WORKS + 1) if number not in UNJUDGED]
    chapters = Chapters([*(submitted(number) for number in range(1, WORKS + 1)), *verdicts])
    dying, heir = Far(redis, chapters, "dying"), Far(redis, chapters, "heir")
    await dying.dies_in_the_middle(3)
    assert chapters.place == 2 * TOGETHER
    assert await heir.intake.round() == 0, "the dead one holds its items until its lease ends"
    await age(redis, keys_of(POOL).prefix, LEASE)
    assert await heir.intake.round() == len(chapters.events) - 2 * TOGETHER
    lengths = await heir.queue.lengths()
    assert (lengths.waiting, lengths.parked) == (len(UNJUDGED), 0), "judged works are removed without a query"

    lost = [await dying.queue.take() for _ in range(7)]
    assert all(lost), "and dies while holding them"
    done: list[Item] = []
    for _ in range(2):
        while (item := await heir.queue.take()) is not None:
            assert await heir.queue.done(item)
            done.append(item)
        await age(redis, keys_of(POOL).prefix, LEASE)
    assert Counter(item.work.key for item in done) == Counter(sha(number) for number in UNJUDGED)
    assert int((await redis.info("memory"))["used_memory"]) < 32 << 20
