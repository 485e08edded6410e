"""The queue: who has what, what a dead holder leaves, what a person does; on a real Redis, with a turned clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from protocol.clock import TurnedClock
from protocol.identifiers import ZERO_ADDRESS, ZERO_DIGEST
from protocol.verdicts import Outcome, ReasonCode
from tests.validator.service.made import POOL, new, sha, work
from validator.items import Item, Kind, Resolution, Staged, item_id, read_item_id
from validator.scripts import script
from validator.store.keys import keys_of
from validator.store.queue import QueueLengths, WorkQueue

LEASE = timedelta(seconds=30)
STAGED = Staged(validator=ZERO_ADDRESS, outcome=Outcome.ACCEPTED, reason=0, audit_hash=ZERO_DIGEST)


@pytest.fixture
def queue(redis: Redis, clock: TurnedClock) -> WorkQueue:
    return WorkQueue(redis, keys=keys_of(POOL), clock=clock, lease=LEASE)


async def taken(queue: WorkQueue) -> Item:
    item = await queue.take()
    assert item is not None
    return item


async def lengths(queue: WorkQueue) -> tuple[int, int, int, int]:
    found: QueueLengths = await queue.lengths()
    return found.waiting, found.ready, found.in_hand, found.parked


async def test_what_is_due_first_is_examined_first_whatever_came_first(queue: WorkQueue) -> None:
    assert await queue.put([new(1, deadline_s=300), new(2, deadline_s=100), new(3, deadline_s=200)]) == 3
    assert [(await taken(queue)).work for _ in range(3)] == [work(2), work(3), work(1)]
    assert await queue.take() is None


async def test_work_that_is_told_of_again_is_not_there_twice_whatever_its_state(queue: WorkQueue) -> None:
    await queue.put([new(1)])
    assert await queue.put([new(1)]) == 0
    item = await taken(queue)
    assert await queue.put([new(1)]) == 0
    await queue.park(item, code="x", why="y", hint="z")
    assert await queue.put([new(1)]) == 0
    assert await lengths(queue) == (0, 0, 0, 1)
    assert await queue.put([new(1, kind=Kind.DISPUTE)]) == 1, "a dispute of it is another matter"


async def test_what_was_submitted_otherwise_under_the_same_key_takes_the_place_of_what_was_there(
    queue: WorkQueue,
) -> None:
    await queue.put([new(1)])
    before = await taken(queue)
    other = replace(new(1), work=replace(work(1), sha256=sha(99), block=work(1).block + 2))
    assert await queue.put([other]) == 1
    assert not await queue.stage(before, STAGED), "its verdict would be of the other file"
    assert (await taken(queue)).work == other.work
    assert await lengths(queue) == (0, 0, 1, 0)


async def test_others_have_their_turn_before_ours(queue: WorkQueue, clock: TurnedClock) -> None:
    await queue.put([new(1, delay=timedelta(seconds=20))])
    assert await queue.take() is None
    await clock.turn(timedelta(seconds=20))
    assert (await taken(queue)).work == work(1)


async def test_the_work_of_a_dead_holder_comes_back_and_what_it_still_writes_is_refused(
    queue: WorkQueue, clock: TurnedClock
) -> None:
    await queue.put([new(1)])
    dead = await taken(queue)
    await clock.turn(LEASE + timedelta(seconds=1))
    heir = await taken(queue)
    assert (heir.work, heir.attempts) == (dead.work, 1)
    assert await queue.keep({dead.id: dead.token}) == [dead.id]
    assert not await queue.stage(dead, STAGED)
    assert not await queue.done(dead)
    assert not await queue.park(dead, code="x", why="y", hint="")
    assert await queue.keep({heir.id: heir.token}) == []
    assert await queue.stage(heir, STAGED)


async def test_a_holder_that_lives_keeps_its_work(queue: WorkQueue, clock: TurnedClock) -> None:
    await queue.put([new(1)])
    item = await taken(queue)
    for _ in range(5):
        await clock.turn(LEASE / 2)
        assert await queue.keep({item.id: item.token}) == []
    assert await queue.take() is None
    assert await queue.done(item)
    assert await lengths(queue) == (0, 0, 0, 0)


async def test_a_verdict_that_was_staged_is_there_for_who_comes_after_a_crash(
    queue: WorkQueue, clock: TurnedClock
) -> None:
    await queue.put([new(1)])
    await queue.stage(await taken(queue), STAGED)
    await clock.turn(LEASE + timedelta(seconds=1))
    assert (await taken(queue)).staged == STAGED


async def test_a_failed_attempt_is_counted_and_comes_later_and_what_was_not_tried_is_not(
    queue: WorkQueue, clock: TurnedClock
) -> None:
    await queue.put([new(1)])
    assert await queue.give_back(await taken(queue))
    item = await taken(queue)
    assert item.attempts == 0
    assert await queue.retry(item, after=timedelta(seconds=5), code="slow-store", why="it was slow")
    assert await queue.take() is None
    await clock.turn(timedelta(seconds=5))
    assert (await taken(queue)).attempts == 1


async def test_parked_work_says_why_and_a_person_has_it_tried_again_or_decides(queue: WorkQueue) -> None:
    await queue.put([new(1), new(2)])
    first, second = await taken(queue), await taken(queue)
    await queue.park(first, code="no-calibration", why="no limits for it", hint="calibrate")
    await queue.park(second, code="other-bytes", why="the store is broken", hint="look")
    shown = [(each.item.work.key, each.code, each.why, each.hint) for each in await queue.parked()]
    assert (first.work.key, "no-calibration", "no limits for it", "calibrate") in shown
    assert await queue.take() is None

    assert await queue.unpark(first.id)
    assert not await queue.unpark(first.id), "it is not parked any more"
    again = await taken(queue)
    assert (again.id, again.attempts, again.resolution) == (first.id, 0, None)
    decided = Resolution(outcome=Outcome.REJECTED, words="looked at by hand", by="boss")
    assert await queue.unpark(second.id, resolution=decided)
    assert (await taken(queue)).resolution == decided


async def test_work_that_was_judged_elsewhere_leaves_whoever_holds_it(queue: WorkQueue) -> None:
    await queue.put([new(1), new(2), new(3)])
    held, parked = await taken(queue), await taken(queue)
    await queue.park(parked, code="x", why="y", hint="")
    names = [item_id(sha(number), Kind.FIRST) for number in (1, 2, 3, 4)]
    assert await queue.drop(names) == 3
    assert await lengths(queue) == (0, 0, 0, 0)
    assert not await queue.done(held)


async def test_a_holder_from_before_redis_was_lost_writes_nothing(queue: WorkQueue, redis: Redis) -> None:
    await queue.put([new(1)])
    before = await taken(queue)
    await redis.flushall()
    await queue.put([new(1)])
    after = await taken(queue)
    assert not await queue.stage(before, STAGED)
    assert await queue.done(after)


async def test_ten_thousand_pieces_of_work_wait_in_a_few_megabytes(queue: WorkQueue, redis: Redis) -> None:
    before = int((await redis.info("memory"))["used_memory"])
    assert await queue.put([new(number, deadline_s=number) for number in range(1, 10_001)]) == 10_000
    assert (await taken(queue)).work == work(1)
    grown = int((await redis.info("memory"))["used_memory"]) - before
    assert grown < 24 << 20


@pytest.mark.parametrize("text", ["", "0x12", "first", sha(1) + ".", sha(1) + ".third", sha(1) + ".first.x"])
def test_what_names_no_item_is_refused(text: str) -> None:
    if text == sha(1) + ".":
        assert read_item_id(text) == item_id(sha(1), Kind.FIRST)
        return
    with pytest.raises(Exception, match=r"names no item|is not a 32-byte digest"):
        read_item_id(text)


def test_a_verdict_and_a_decision_survive_redis_as_they_were() -> None:
    forged = Staged(
        validator=ZERO_ADDRESS, outcome=Outcome.FORGED, reason=ReasonCode.SAMPLING_REPLAY, audit_hash=sha(5)
    )
    assert Staged.load(forged.dump()) == forged
    decided = Resolution(outcome=Outcome.ACCEPTED, words="“fine”\n", by="boss")
    assert Resolution.load(decided.dump()) == decided


class QueueMachine(RuleBasedStateMachine):
    """Whatever happens in whatever order, each piece of work is in one place, and one holder at most can write."""

    server = ""

    def __init__(self) -> None:
        super().__init__()
        self.redis: Any = SyncRedis.from_url(self.server)
        self.redis.flushall()
        self.prefix = keys_of(POOL).prefix
        self.now = 0
        self.model: dict[str, str] = {}
        self.holders: list[tuple[str, str]] = []
        self.tokens = 0

    def call(self, name: str, *arguments: Any) -> Any:
        return self.redis.eval(script(name), 1, self.prefix, *arguments)

    @rule(number=st.integers(1, 4))
    def put(self, number: int) -> None:
        name = f"w{number}"
        put = self.call("put", name, "{}", "first", number, self.now, self.now)
        assert put == (name not in self.model)
        self.model.setdefault(name, "queued")

    @rule()
    def take(self) -> None:
        self.tokens += 1
        found = self.call("take", self.now, self.now + 10, f"t{self.tokens}")
        if found:
            name = found[0].decode()
            assert self.model[name] in {"queued", "leased"}
            self.model[name] = "leased"
            self.holders.append((name, f"t{self.tokens}"))

    @rule(by=st.integers(1, 15))
    def time_passes(self, by: int) -> None:
        self.now += by

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), what=st.sampled_from(["done", "retry", "park"]))
    def settle(self, data: st.DataObject, what: str) -> None:
        name, token = data.draw(st.sampled_from(self.holders))
        newest = [held for held in self.holders if held[0] == name][-1][1]
        taken_back = self.redis.zscore(f"{self.prefix}queue:ready", name) is not None
        settled = self.call("settle", name, token, what, self.now, 1, "", "", "")
        assert settled == (self.model.get(name) == "leased" and token == newest and not taken_back)
        if settled and what == "done":
            del self.model[name]
        elif settled:
            self.model[name] = "queued" if what == "retry" else "parked"

    @rule(number=st.integers(1, 4))
    def unpark(self, number: int) -> None:
        name = f"w{number}"
        assert self.call("unpark", name, self.now, "") == (self.model.get(name) == "parked")
        if self.model.get(name) == "parked":
            self.model[name] = "queued"

    @rule(number=st.integers(1, 4))
    def drop(self, number: int) -> None:
        assert self.call("drop", f"w{number}") == (f"w{number}" in self.model)
        self.model.pop(f"w{number}", None)

    @invariant()
    def each_is_in_one_place(self) -> None:
        places = {
            queue: {name.decode() for name in self.redis.zrange(f"{self.prefix}queue:{queue}", 0, -1)}
            for queue in ("waiting", "ready", "leased", "parked")
        }
        assert sum(map(len, places.values())) == len(self.model)
        for name, state in self.model.items():
            assert {
                "queued": name in places["waiting"] | places["ready"],
                "leased": name in places["leased"] | places["ready"],  # a lease that ended is back among the ready
                "parked": name in places["parked"],
            }[state], (name, state, places)

    def teardown(self) -> None:
        self.redis.close()


def test_every_order_of_events_leaves_each_piece_of_work_in_one_place(redis_url: str) -> None:
    QueueMachine.server = redis_url
    case = QueueMachine.TestCase
    case.settings = settings(max_examples=40, stateful_step_count=25, suppress_health_check=list(HealthCheck))
    case().runTest()
