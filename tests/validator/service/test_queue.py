"""The work queue with leases, dead holders and a person's decisions, on a real Redis with a manual clock."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from redis import Redis as SyncRedis
from redis.asyncio import Redis

from protocol.identifiers import ZERO_ADDRESS, ZERO_DIGEST
from protocol.redis.script_call import ScriptCall, script_of
from protocol.runtime.clock import ManualClock
from protocol.verdicts import Outcome, ReasonCode
from tests.kit.redis_aging import AGE, age
from tests.kit.submissions import POOL, new, sha, work
from validator.domain.items import Item, ItemKind, Resolution, Staged, item_id, read_item_id
from validator.loops.verdicts import NOT_OURS_STEP
from validator.queue.retry_policy import STILL_GIVEN_UP, GiveUpReason, RetryPolicy, Step
from validator.queue.store import PutOutcome, QueueLengths, WorkQueue
from validator.store.keys import keys_of
from validator.store.members import Condition, MemberId, Members, MemberState
from validator.store.scripts import DropItems, FailItem, PutItem, SettleItem, TakeItem, UnparkItem

R = TypeVar("R")

LEASE = timedelta(seconds=30)
ONE, OTHER = MemberId("111111111111"), MemberId("222222222222")
AGAIN = Step(pause=timedelta(seconds=5), for_all=False, counted=True, gives_up=GiveUpReason.NONE)
STAGED = Staged(validator=ZERO_ADDRESS, outcome=Outcome.ACCEPTED, reason=0, audit_hash=ZERO_DIGEST)


@pytest.fixture
def queue(redis: Redis) -> WorkQueue:
    return queue_of(redis, ONE)


def queue_of(redis: Redis, member: MemberId, *, tries: int = 4, clock: ManualClock | None = None) -> WorkQueue:
    """Returns the queue as seen by one member."""
    told: Any = {"clock": clock or ManualClock(), "lease": LEASE, "retry_policy": RetryPolicy(attempts=tries)}
    return WorkQueue(redis, keys=keys_of(POOL), member=member, **told)


async def passes(redis: Redis, by: timedelta) -> None:
    """Advances Redis' clock, as the scripts see it."""
    await age(redis, keys_of(POOL).prefix, by)


async def here(redis: Redis, *members: MemberId, state: MemberState = MemberState.WELL) -> None:
    """Marks these members as present."""
    for member in members:
        sign = Members(redis, keys=keys_of(POOL), validator=ZERO_ADDRESS, place=member)
        sign.me = member
        await sign.announce(Condition(state=state), since=timedelta())


async def taken(queue: WorkQueue) -> Item:
    item = await queue.take()
    assert item is not None
    return item


async def lengths(queue: WorkQueue) -> tuple[int, int, int, int]:
    found: QueueLengths = await queue.lengths()
    return found.waiting, found.ready, found.in_hand, found.parked


async def test_work_is_examined_in_the_order_of_its_deadlines(queue: WorkQueue) -> None:
    assert await queue.put([new(1, deadline_s=300), new(2, deadline_s=100), new(3, deadline_s=200)]) == 3
    assert [(await taken(queue)).work for _ in range(3)] == [work(2), work(3), work(1)]
    assert await queue.take() is None


async def test_work_announced_again_is_not_queued_twice_in_any_state(queue: WorkQueue) -> None:
    await queue.put([new(1)])
    assert await queue.put([new(1)]) == 0
    item = await taken(queue)
    assert await queue.put([new(1)]) == 0
    await queue.park(item, code="x", why="y", hint="z")
    assert await queue.put([new(1)]) == 0
    assert await lengths(queue) == (0, 0, 0, 1)
    assert await queue.put([new(1, kind=ItemKind.DISPUTE)]) == 1, "a dispute of the work is a separate item"


async def test_a_different_submission_under_the_same_key_replaces_the_queued_one(
    queue: WorkQueue,
) -> None:
    await queue.put([new(1)])
    before = await taken(queue)
    other = replace(new(1), work=replace(work(1), sha256=sha(99), block=work(1).block + 2))
    assert await queue.put([other]) == 1
    assert not await queue.stage(before, STAGED), "its verdict would be about the other file"
    assert (await taken(queue)).work == other.work
    assert await lengths(queue) == (0, 0, 1, 0)


async def test_an_item_is_left_to_other_validators_for_its_delay(queue: WorkQueue, redis: Redis) -> None:
    await queue.put([new(1, delay=timedelta(seconds=20))])
    assert await queue.take() is None
    await passes(redis, timedelta(seconds=20))
    assert (await taken(queue)).work == work(1)


async def test_the_queues_age_counts_what_is_due_and_what_is_parked_but_not_delayed_work(
    queue: WorkQueue, redis: Redis
) -> None:
    assert await ages(queue) == (0, 0)
    await queue.put([new(1, deadline_s=100), new(2, deadline_s=200), new(3, delay=timedelta(hours=1))])
    await passes(redis, timedelta(seconds=20))
    assert await ages(queue) == (20, 0), "nobody has taken an item, so all are in the list of those that wait"
    await queue.park(await taken(queue), code="x", why="y", hint="z")
    await passes(redis, timedelta(seconds=10))
    assert await ages(queue) == (30, 30)
    await queue.done(await taken(queue))
    assert await ages(queue) == (0, 30)


async def ages(queue: WorkQueue) -> tuple[int, int]:
    """Returns the ages of ready and parked work, in whole seconds."""
    found = await queue.ages()
    return int(found["ready"].total_seconds()), int(found["parked"].total_seconds())


async def test_work_of_a_dead_holder_is_taken_again_and_its_late_writes_are_refused(
    queue: WorkQueue, redis: Redis
) -> None:
    await queue.put([new(1)])
    dead = await taken(queue)
    await passes(redis, LEASE + timedelta(seconds=1))
    heir = await taken(queue)
    assert (heir.work, heir.attempts) == (dead.work, 1)
    assert await queue.keep({dead.id: dead.token}) == [dead.id]
    assert not await queue.stage(dead, STAGED)
    assert not await queue.done(dead)
    assert not await queue.park(dead, code="x", why="y", hint="")
    assert await queue.keep({heir.id: heir.token}) == []
    assert await queue.stage(heir, STAGED)


async def test_a_holder_that_renews_its_lease_keeps_its_work(queue: WorkQueue, redis: Redis) -> None:
    await queue.put([new(1)])
    item = await taken(queue)
    for _ in range(5):
        await passes(redis, LEASE / 2)
        assert await queue.keep({item.id: item.token}) == []
    assert await queue.take() is None
    assert await queue.done(item)
    assert await lengths(queue) == (0, 0, 0, 0)


async def test_a_staged_verdict_is_available_to_the_next_holder_after_a_crash(queue: WorkQueue, redis: Redis) -> None:
    await queue.put([new(1)])
    await queue.stage(await taken(queue), STAGED)
    await passes(redis, LEASE + timedelta(seconds=1))
    assert (await taken(queue)).staged == STAGED


async def test_a_failed_attempt_is_counted_and_delayed_and_a_returned_item_is_not(
    queue: WorkQueue, redis: Redis
) -> None:
    await queue.put([new(1)])
    assert await queue.give_back(await taken(queue))
    item = await taken(queue)
    assert item.attempts == 0
    assert await queue.failed(item, AGAIN, code="slow-store", why="it was slow") is PutOutcome.AGAIN
    assert await queue.take() is None
    await passes(redis, timedelta(seconds=5))
    assert (await taken(queue)).attempts == 1


async def test_failed_work_goes_to_another_validator_at_once_and_to_the_same_after_a_pause(
    queue: WorkQueue, redis: Redis
) -> None:
    other = queue_of(redis, OTHER)
    await here(redis, ONE, OTHER)
    await queue.put([new(1)])
    assert await queue.failed(await taken(queue), AGAIN, code="x", why="y") is PutOutcome.AGAIN
    assert await queue.take() is None
    item = await taken(other)
    assert (item.attempts, item.tries, item.spent) == (1, 0, False)
    await other.give_back(item)
    await passes(redis, AGAIN.pause)
    assert (await taken(queue)).tries == 1


@pytest.mark.parametrize(
    ("others", "steps", "parked_by"),
    [
        pytest.param([], [AGAIN] * 4, 4, id="alone-after-all-attempts"),
        pytest.param([], [replace(AGAIN, gives_up=GiveUpReason.REQUIREMENT)], 1, id="alone-without-a-resource"),
        pytest.param([OTHER], [AGAIN] * 9, None, id="another-healthy-one-has-not-tried"),
        pytest.param(
            [OTHER], [replace(AGAIN, gives_up=GiveUpReason.ATTEMPTS_USED)] * 9, None, id="another-has-attempts-left"
        ),
    ],
)
async def test_work_is_parked_only_when_no_validator_here_is_left_to_try(
    queue: WorkQueue, redis: Redis, others: list[MemberId], steps: list[Step], parked_by: int | None
) -> None:
    await queue.put([new(1)])
    for number, step in enumerate(steps, 1):
        await here(redis, ONE, *others)
        put = await queue.failed(await taken(queue), step, code="x", why="y")
        assert put is (PutOutcome.PARKED if number == parked_by else PutOutcome.AGAIN)
        await passes(redis, AGAIN.pause)
    assert (await lengths(queue))[3] == (parked_by is not None)


async def test_two_validators_with_half_of_the_attempts_each_are_enough_to_park(queue: WorkQueue, redis: Redis) -> None:
    third = MemberId("333333333333")
    await here(redis, ONE, OTHER, third)
    await queue.put([new(1)])
    found = []
    for member in (ONE, OTHER, ONE, OTHER):
        mine = queue_of(redis, member)
        found.append(await mine.failed(await taken(mine), AGAIN, code="x", why="y"))
        await passes(redis, AGAIN.pause)
    assert found == [PutOutcome.AGAIN] * 3 + [PutOutcome.PARKED]


async def test_a_validator_that_lacks_a_resource_does_not_count_against_the_work(
    queue: WorkQueue, redis: Redis
) -> None:
    lacks = replace(AGAIN, gives_up=GiveUpReason.REQUIREMENT)
    third = MemberId("333333333333")
    await here(redis, ONE, OTHER, third)
    await queue.put([new(1)])
    for member in (ONE, OTHER):
        mine = queue_of(redis, member)
        assert await mine.failed(await taken(mine), lacks, code="no-calibration", why="y") is PutOutcome.AGAIN
    assert (await taken(queue_of(redis, third))).spent is False


@pytest.mark.parametrize("barred_first", [True, False])
async def test_a_validator_that_may_not_judge_the_work_does_not_delay_its_parking(
    queue: WorkQueue, redis: Redis, barred_first: bool
) -> None:
    """Example: a dispute of a verdict that the other validator on this Redis gave, so that only one may judge it."""
    other, lacks = queue_of(redis, OTHER), replace(AGAIN, gives_up=GiveUpReason.REQUIREMENT)
    await here(redis, ONE, OTHER)
    await queue.put([new(1)])
    if not barred_first:
        assert await queue.failed(await taken(queue), lacks, code="no-calibration", why="y") is PutOutcome.AGAIN
    put = await other.failed(
        await taken(other), NOT_OURS_STEP, code="not-ours", why="this validator gave the first verdict"
    )
    if barred_first:
        assert put is PutOutcome.AGAIN
        put = await queue.failed(await taken(queue), lacks, code="no-calibration", why="y")
    assert put is PutOutcome.PARKED
    assert [each.code for each in await queue.parked()] == ["no-calibration"]


async def test_work_that_only_this_validator_may_not_judge_is_not_parked_before_another_tried(
    queue: WorkQueue, redis: Redis
) -> None:
    await here(redis, ONE)
    await queue.put([new(1)])
    for _ in range(20):
        item = await taken(queue)
        assert item.spent is False
        assert (
            await queue.failed(item, NOT_OURS_STEP, code="not-ours", why="this validator's own node did the work")
            is PutOutcome.AGAIN
        )
        await passes(redis, NOT_OURS_STEP.pause)


@pytest.mark.parametrize("state", [MemberState.UNWELL, MemberState.STARTING])
async def test_parking_waits_for_a_starting_validator_but_not_for_a_paused_one(
    queue: WorkQueue, redis: Redis, state: MemberState
) -> None:
    await here(redis, ONE)
    await here(redis, OTHER, state=state)
    await queue.put([new(1)])
    step = replace(AGAIN, gives_up=GiveUpReason.REQUIREMENT)
    put = await queue.failed(await taken(queue), step, code="x", why="y")
    assert put is (PutOutcome.PARKED if state is MemberState.UNWELL else PutOutcome.AGAIN)
    if state is MemberState.STARTING:  # and dies: then the work left to it is parked after all
        await passes(redis, timedelta(minutes=2))
        await here(redis, ONE)
        again = await taken(queue)
        assert (again.spent, again.last_error[0]) == (True, "x")
        assert await queue.failed(again, STILL_GIVEN_UP, code="x", why="y") is PutOutcome.PARKED


async def test_an_error_common_to_all_validators_delays_the_item_for_all_and_is_not_counted(
    queue: WorkQueue, redis: Redis
) -> None:
    absent = replace(AGAIN, for_all=True, counted=False)
    other = queue_of(redis, OTHER)
    await here(redis, ONE, OTHER)
    await queue.put([new(1)])
    for _ in range(20):
        assert await queue.failed(await taken(queue), absent, code="file-absent", why="y") is PutOutcome.AGAIN
        assert await other.take() is None
        await passes(redis, absent.pause)
    assert (await taken(other)).attempts == 0


async def test_a_persons_retry_resets_the_attempts_of_every_validator(queue: WorkQueue, redis: Redis) -> None:
    await queue.put([new(1)])
    await queue.failed(await taken(queue), replace(AGAIN, gives_up=GiveUpReason.ATTEMPTS_USED), code="x", why="y")
    assert await queue.unpark(new(1).work.key + ".first")  # type: ignore[arg-type]
    item = await taken(queue)
    assert (item.attempts, item.tries, item.spent) == (0, 0, False)
    assert await queue.failed(item, AGAIN, code="x", why="y") is PutOutcome.AGAIN


async def test_work_of_a_dead_holder_goes_to_others_first_and_is_parked_after_two_deaths(
    queue: WorkQueue, redis: Redis
) -> None:
    other = queue_of(redis, OTHER)
    await queue.put([new(1)])
    for number in range(4):
        await here(redis, ONE, OTHER)
        dying = (queue, other)[number % 2]
        item = await taken(dying)
        assert (item.lost, item.spent) == (number, False)
        await passes(redis, LEASE + timedelta(seconds=1))
        assert await dying.take(suspects=False) is None, "an item held at a death is suspect"
        assert await dying.take() is None, "another validator tries first"
    item = await taken(queue)
    assert (item.spent, item.attempts) == (True, 4)


async def test_deaths_caused_by_an_item_are_bounded_with_any_number_of_validators(redis: Redis) -> None:
    """Five validators on one Redis, or one validator that has another id after each of its deaths."""
    members = [MemberId(str(number) * 12) for number in range(1, 6)]
    await queue_of(redis, ONE).put([new(1)])
    for number, member in enumerate(members[:4]):
        await here(redis, *members)
        item = await taken(queue_of(redis, member))
        assert (item.lost, item.spent) == (number, False)
        await passes(redis, LEASE + timedelta(seconds=1))
    await here(redis, *members)
    last = queue_of(redis, members[4])
    item = await taken(last)
    assert (item.lost, item.spent) == (4, True)
    assert await last.failed(item, STILL_GIVEN_UP, code="lost-again-and-again", why="y") is PutOutcome.PARKED
    assert await last.unpark(item.id)
    assert (await taken(last)).spent is False, "a person requested another attempt"


async def test_many_items_that_one_validator_may_not_try_do_not_hide_later_ones(queue: WorkQueue, redis: Redis) -> None:
    await here(redis, ONE, OTHER)
    await queue.put([new(number, deadline_s=number) for number in range(1, 202)])
    for _ in range(200):
        await queue.failed(await taken(queue), replace(AGAIN, pause=timedelta(minutes=9)), code="x", why="y")
    assert (await taken(queue)).work == work(201)
    assert await queue.take() is None


async def test_an_item_that_may_be_tried_is_found_behind_any_number_of_others(queue: WorkQueue, redis: Redis) -> None:
    await here(redis, ONE, OTHER)
    await queue.put([new(number, deadline_s=number) for number in range(1, 301)])
    wait, other = replace(AGAIN, pause=timedelta(minutes=9)), queue_of(redis, OTHER)
    for each, count in ((queue, 250), (other, 300)):
        for _ in range(count):
            await each.failed(await taken(each), wait, code="x", why="y")
    looks = [await queue.take() for _ in range(60)]
    assert [item.work.index for item in looks if item is not None] == list(range(251, 301))
    assert looks.index(next(filter(None, looks))) <= 300 // 32


async def test_parking_does_not_wait_for_a_validator_that_restarts_repeatedly_without_becoming_healthy(
    queue: WorkQueue, redis: Redis
) -> None:
    other = Members(redis, keys=keys_of(POOL), validator=ZERO_ADDRESS, place="one that looks")
    for minutes, waited_for in ((0, True), (1, True), (1, False), (1, False)):
        await passes(redis, timedelta(minutes=minutes))
        await here(redis, OTHER, state=MemberState.STARTING)
        assert await other.others_may_judge() is waited_for
    await queue.put([new(1)])
    await here(redis, ONE)
    put = await queue.failed(await taken(queue), replace(AGAIN, gives_up=GiveUpReason.REQUIREMENT), code="x", why="y")
    assert put is PutOutcome.PARKED, "no validator is left to try"
    await here(redis, OTHER)
    await here(redis, OTHER, state=MemberState.STARTING)
    assert await other.others_may_judge(), "a recently healthy validator may recover"


@pytest.mark.parametrize("off", [timedelta(hours=-1), timedelta(hours=1)], ids=["behind", "ahead"])
async def test_a_host_with_a_wrong_clock_neither_steals_nor_loses_a_lease(redis: Redis, off: timedelta) -> None:
    clock = ManualClock()
    wrong, right = queue_of(redis, ONE, clock=clock), queue_of(redis, OTHER)
    clock.jump(off)
    await right.put([new(1), new(2, delay=timedelta(seconds=20))])
    held = await taken(right)
    assert await wrong.take() is None, "one is held, and the other has not had its turn"
    await passes(redis, LEASE - timedelta(seconds=5))
    assert await right.keep({held.id: held.token}) == []
    late = await taken(wrong)
    assert late.waited >= LEASE - timedelta(seconds=5)
    await passes(redis, timedelta(seconds=10))
    assert await right.take() is None
    assert await wrong.keep({late.id: late.token}) == []
    await passes(redis, LEASE - timedelta(seconds=5))
    assert await wrong.stage(late, STAGED)
    assert (await taken(right)).lost == 1, "a lease that is not renewed ends by Redis' time"


async def test_parked_work_states_the_reason_and_a_person_retries_or_decides_it(queue: WorkQueue) -> None:
    await queue.put([new(1), new(2)])
    first, second = await taken(queue), await taken(queue)
    await queue.park(first, code="no-calibration", why="no limits for it", hint="calibrate")
    await queue.park(second, code="other-bytes", why="the store is broken", hint="look")
    shown = [(each.item.work.key, each.code, each.why, each.hint) for each in await queue.parked()]
    assert (first.work.key, "no-calibration", "no limits for it", "calibrate") in shown
    assert await queue.take() is None

    assert await queue.unpark(first.id)
    assert not await queue.unpark(first.id), "the item is no longer parked"
    again = await taken(queue)
    assert (again.id, again.attempts, again.resolution) == (first.id, 0, None)
    decided = Resolution(outcome=Outcome.REJECTED, words="looked at by hand", by="boss")
    assert await queue.unpark(second.id, resolution=decided)
    assert (await taken(queue)).resolution == decided


async def test_work_judged_elsewhere_is_removed_from_every_holder(queue: WorkQueue) -> None:
    await queue.put([new(1), new(2), new(3)])
    held, parked = await taken(queue), await taken(queue)
    await queue.park(parked, code="x", why="y", hint="")
    names = [item_id(sha(number), ItemKind.FIRST) for number in (1, 2, 3, 4)]
    assert await queue.drop(names) == 3
    assert await lengths(queue) == (0, 0, 0, 0)
    assert not await queue.done(held)


async def test_a_holder_from_before_a_loss_of_redis_cannot_write(queue: WorkQueue, redis: Redis) -> None:
    await queue.put([new(1)])
    before = await taken(queue)
    await redis.flushall()
    await queue.put([new(1)])
    after = await taken(queue)
    assert not await queue.stage(before, STAGED)
    assert await queue.done(after)


async def test_ten_thousand_waiting_items_need_a_few_megabytes(queue: WorkQueue, redis: Redis) -> None:
    before = int((await redis.info("memory"))["used_memory"])
    assert await queue.put([new(number, deadline_s=number) for number in range(1, 10_001)]) == 10_000
    assert (await taken(queue)).work == work(1)
    grown = int((await redis.info("memory"))["used_memory"]) - before
    assert grown < 24 << 20


@pytest.mark.parametrize("text", ["", "0x12", "first", sha(1) + ".", sha(1) + ".third", sha(1) + ".first.x"])
def test_an_invalid_item_id_is_refused(text: str) -> None:
    if text == sha(1) + ".":
        assert read_item_id(text) == item_id(sha(1), ItemKind.FIRST)
        return
    with pytest.raises(Exception, match=r"is not the id of an item|is not a 32-byte digest"):
        read_item_id(text)


def test_a_verdict_and_a_decision_are_read_back_from_redis_unchanged() -> None:
    forged = Staged(
        validator=ZERO_ADDRESS, outcome=Outcome.FORGED, reason=ReasonCode.SAMPLING_REPLAY, audit_hash=sha(5)
    )
    assert Staged.load(forged.dump()) == forged
    decided = Resolution(outcome=Outcome.ACCEPTED, words="“fine”\n", by="boss")
    assert Resolution.load(decided.dump()) == decided


class QueueMachine(RuleBasedStateMachine):
    """Random sequences of events, after each of which every item is in one state and at most one holder can write."""

    server = ""

    def __init__(self) -> None:
        super().__init__()
        self.redis: Any = SyncRedis.from_url(self.server)
        self.redis.flushall()
        self.prefix = keys_of(POOL).prefix
        self.model: dict[str, str] = {}
        self.holders: list[tuple[str, str]] = []
        self.tokens = 0

    def call(self, call: ScriptCall[R]) -> R:
        script = script_of(type(call))
        reply: R = script.decode(self.redis.eval(script.text, 1, self.prefix, *script.arguments(call)))
        return reply

    @rule(number=st.integers(1, 4))
    def put(self, number: int) -> None:
        name = f"w{number}"
        put = self.call(PutItem(id=name, work="{}", kind="first", deadline_s=number, delay_ms=0))
        assert put == (name not in self.model)
        self.model.setdefault(name, "queued")

    @rule(member=st.sampled_from([ONE, OTHER]))
    def take(self, member: str) -> None:
        self.tokens += 1
        taken = self.call(
            TakeItem(
                lease_ms=10_000,
                token=f"t{self.tokens}",
                member=member,
                suspects=True,
                tries=1000,
                silence_ms=60_000,
                first_pause_ms=1,
                longest_pause_ms=1,
            )
        )
        if taken.id:
            name = taken.id
            assert self.model[name] in {"queued", "leased"}
            self.model[name] = "leased"
            self.holders.append((name, f"t{self.tokens}"))

    @rule(by=st.integers(1, 15))
    def time_passes(self, by: int) -> None:
        self.redis.eval(AGE, 1, self.prefix, by * 1000)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), what=st.sampled_from(["done", "back", "fail", "park"]))
    def settle(self, data: st.DataObject, what: str) -> None:
        name, token = data.draw(st.sampled_from(self.holders))
        newest = [held for held in self.holders if held[0] == name][-1][1]
        taken_back = any(
            self.redis.zscore(f"{self.prefix}queue:{queue}", name) is not None for queue in ("ready", "again")
        )
        if what == "fail":
            failed = FailItem(
                id=name,
                token=token,
                member=ONE,
                pause_ms=5000,
                for_all=False,
                counted=True,
                gives_up="",
                tries=1000,
                silence_ms=60_000,
                code="",
                why="",
                hint="",
            )
            settled = self.call(failed) != "lost"
        else:
            settled = self.call(SettleItem(id=name, token=token, outcome=what, code="", why="", hint=""))
        assert settled == (self.model.get(name) == "leased" and token == newest and not taken_back)
        if settled and what == "done":
            del self.model[name]
        elif settled:
            self.model[name] = "parked" if what == "park" else "queued"

    @rule(number=st.integers(1, 4))
    def unpark(self, number: int) -> None:
        name = f"w{number}"
        assert self.call(UnparkItem(id=name, resolution=None)) == (self.model.get(name) == "parked")
        if self.model.get(name) == "parked":
            self.model[name] = "queued"

    @rule(number=st.integers(1, 4))
    def drop(self, number: int) -> None:
        assert self.call(DropItems(ids=(f"w{number}",))) == (f"w{number}" in self.model)
        self.model.pop(f"w{number}", None)

    @invariant()
    def each_is_in_one_place(self) -> None:
        places = {
            queue: {name.decode() for name in self.redis.zrange(f"{self.prefix}queue:{queue}", 0, -1)}
            for queue in ("waiting", "ready", "again", "leased", "parked")
        }
        assert sum(map(len, places.values())) == len(self.model)
        for name, state in self.model.items():
            assert {
                "queued": name in places["waiting"] | places["ready"] | places["again"],
                "leased": name
                # an expired lease is among the ready items again
                in places["leased"] | places["ready"] | places["again"],
                "parked": name in places["parked"],
            }[state], (name, state, places)

    def teardown(self) -> None:
        self.redis.close()


def test_every_order_of_events_keeps_each_item_in_exactly_one_state(redis_url: str) -> None:
    QueueMachine.server = redis_url
    case = QueueMachine.TestCase
    case.settings = settings(max_examples=20, stateful_step_count=25, suppress_health_check=list(HealthCheck))
    case().runTest()
