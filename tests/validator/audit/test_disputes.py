"""Second looks and disputes between three validators on a real chain, in both directions, down to the money."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from redis.asyncio import Redis

from ledger.amounts import UNIT
from ledger.artifacts import Contract
from ledger.client import Ledger
from ledger.client.work import WorkStatus
from ledger.following import Following
from protocol.clock import SystemClock
from protocol.identifiers import ZERO_DIGEST, Digest
from protocol.verdicts import Outcome, ReasonCode
from tests.ledger.client.conftest import POOL, TERMS, World
from tests.ledger.client.verdicts import verdict_on
from tests.validator.audit.works import announced, submitted
from validator.audit.epochs import Epochs
from validator.audit.second_looks import LookPolicy
from validator.items import Item, Kind, item_id
from validator.loops.disputes import Followed, follow_up
from validator.loops.second_looks import FOLLOWED, SecondLooks
from validator.patience import Patience
from validator.store.keys import keys_of
from validator.store.members import MemberId
from validator.store.queue import WorkQueue
from validator.store.records import NodeRecords

REWARD = 100 * TERMS.price_per_unit
PENALTY = 100 * TERMS.penalty_per_unit
SECOND = timedelta(seconds=1)
EVIDENCE = Digest("0x" + "ed" * 32)
ALL = LookPolicy(accepted=1, refused=1)


@dataclass
class Looking:
    """One validator's second looks, with a queue of its own."""

    ledger: Ledger
    loop: SecondLooks
    queue: WorkQueue
    records: NodeRecords

    async def taken(self) -> list[Item]:
        """What its queue holds after it has read on."""
        await self.loop.round()
        found = []
        while (item := await self.queue.take()) is not None:
            found.append(item)
        return found


async def looking(world: World, redis: Redis, name: str, policy: LookPolicy = ALL) -> Looking:
    """The validator `name`; validators share nothing but the chain here."""
    ledger, key = await world.as_(name), world.keys[name]
    keys, clock = keys_of(list(world.keys).index(name) + 1), SystemClock()
    records = NodeRecords(redis, keys=keys, validator=key.address)
    queue = WorkQueue(
        redis,
        keys=keys,
        clock=clock,
        lease=timedelta(minutes=1),
        member=MemberId("000000000000"),
        patience=Patience(),
    )
    following = Following(
        "verdicts",
        world.deployment,
        kinds=FOLLOWED,
        contracts=[world.deployment[Contract.WORK_LEDGER]],
        redis=redis,
        keys=keys,
        confirmations=0,
        clock=clock,
    )
    loop = SecondLooks(
        ledger,
        following,
        queue=queue,
        records=records,
        epochs=Epochs(ledger, key, pool_id=POOL),
        pool_id=POOL,
        policy=policy,
        takeover=timedelta(),
    )
    return Looking(ledger, loop, queue, records)


async def gave(world: World, name: str, key: Digest, outcome: Outcome, *, decisive: bool = False) -> None:
    """Has a validator give a verdict."""
    reason = ReasonCode.PASSED if outcome is Outcome.ACCEPTED else ReasonCode.COMPUTATION_OTHER_MODEL
    ledger = await world.as_(name)
    verdict = await verdict_on(ledger, key, outcome, reason=reason, audit_hash=EVIDENCE, decisive=decisive)
    assert await ledger.work.judge([verdict]) == []


async def ready(world: World) -> None:
    """A member that works on an announced version."""
    await world.member()
    await announced(world)


async def test_a_wrong_verdict_is_found_disputed_and_overturned_by_a_third(world: World, redis: Redis) -> None:
    """The other direction is tried with whole services."""
    first, truth, paid, slashed = Outcome.ACCEPTED, Outcome.FORGED, 0, PENALTY
    await ready(world)
    work = await submitted(world)
    judge, second, third = [await looking(world, redis, name) for name in ("validator", "second", "third")]
    await gave(world, "validator", work.key, first)
    assert await judge.taken() == []  # its own
    (look,) = await second.taken()
    assert (look.kind, look.work) == (Kind.SECOND_LOOK, work)
    assert await follow_up(second.ledger, work.key, truth, EVIDENCE) is Followed.DISPUTED
    assert await follow_up(second.ledger, work.key, truth, EVIDENCE) is Followed.DISPUTED  # after a crash
    assert await judge.taken() == []
    assert await second.taken() == []  # a party
    (dispute,) = await third.taken()
    assert (dispute.kind, dispute.work) == (Kind.DISPUTE, work)
    await gave(world, "third", work.key, truth, decisive=True)
    provider = world.keys["provider"].address
    standing = await third.ledger.work.get(work.key)
    assert standing is not None
    assert (standing.status, standing.outcome) == (WorkStatus.FINAL, truth)
    assert await third.ledger.work.accrued(POOL, provider) == paid
    assert (await third.ledger.stake.of(provider)).active == 100 * UNIT - slashed
    member = await third.ledger.pools.membership(POOL, world.keys["node"].address)
    assert (member is None) is bool(slashed)
    for each in (judge, second, third):
        await each.loop.round()
        record = await each.records.of(work.node)
        assert (record.failed_at is not None) is bool(slashed)


async def test_a_dispute_by_the_node_is_judged_by_whoever_did_not_judge_it(world: World, redis: Redis) -> None:
    await ready(world)
    work = await submitted(world)
    await gave(world, "validator", work.key, Outcome.FORGED)
    await (await world.as_("node")).work.dispute(work.key, EVIDENCE)
    none = LookPolicy(accepted=0, refused=0)
    assert await (await looking(world, redis, "validator", none)).taken() == []
    for name in ("second", "third"):  # both know of it; the one whose turn is later finds it decided
        each = await looking(world, redis, name, none)
        assert [item.kind for item in await each.taken()] == [Kind.DISPUTE]
    await gave(world, "third", work.key, Outcome.ACCEPTED, decisive=True)
    assert await (await world.as_("third")).work.accrued(POOL, world.keys["provider"].address) == REWARD


async def test_when_work_of_a_node_is_forged_all_that_others_accepted_of_it_is_looked_at(
    world: World, redis: Redis
) -> None:
    await ready(world)
    works = [await submitted(world, index=index) for index in range(4)]
    for index, name in enumerate(["validator", "second", "validator"]):
        await gave(world, name, works[index].key, Outcome.ACCEPTED)
    third, second = [
        await looking(world, redis, name, LookPolicy(accepted=0, refused=0)) for name in ("third", "second")
    ]
    assert await third.taken() == await second.taken() == []
    await gave(world, "validator", works[3].key, Outcome.FORGED)
    assert {item.work.key for item in await third.taken()} == {works[0].key, works[1].key, works[2].key}
    assert {item.work.key for item in await second.taken()} == {works[0].key, works[2].key}
    assert second.loop.counts.doubtful == 1  # its own can't be taken back, and it says so
    assert (await second.records.of(works[0].node)).failed_at is not None
    # It fails again: what was looked at is not looked at again, what came since is.
    works += [await submitted(world, index=index) for index in (4, 5)]
    await gave(world, "validator", works[4].key, Outcome.ACCEPTED)
    await gave(world, "validator", works[5].key, Outcome.FORGED)
    for done in (works[0], works[1], works[2]):
        await third.queue.drop([item_id(done.key, Kind.SECOND_LOOK)])
    assert {item.work.key for item in await third.taken()} == {works[4].key}


async def test_what_is_over_or_agreed_is_not_disputed(world: World, redis: Redis) -> None:
    await ready(world)
    one, other = [await submitted(world, index=index) for index in range(2)]
    await gave(world, "validator", one.key, Outcome.ACCEPTED)
    await gave(world, "validator", other.key, Outcome.ACCEPTED)
    judge, second = await world.as_("validator"), await world.as_("second")
    assert await follow_up(second, one.key, Outcome.ACCEPTED, EVIDENCE) is Followed.AGREES
    assert await follow_up(second, one.key, Outcome.REJECTED, EVIDENCE) is Followed.AGREES
    assert await follow_up(judge, one.key, Outcome.FORGED, EVIDENCE) is Followed.OWN
    await second.work.dispute(one.key, ZERO_DIGEST)
    assert await follow_up(await world.as_("third"), one.key, Outcome.FORGED, EVIDENCE) is Followed.OVER
    await world.warp(TERMS.challenge_period + SECOND)
    assert await follow_up(second, other.key, Outcome.FORGED, EVIDENCE) is Followed.OVER
    late = await looking(world, redis, "second")
    await late.ledger.work.finalize([other.key])
    assert [item.kind for item in await late.taken()] == []


async def test_with_a_single_validator_a_dispute_ends_by_its_deadline_without_a_penalty(
    world: World, redis: Redis
) -> None:
    await ready(world)
    owner = await world.as_("owner")
    for name in ("second", "third"):
        await owner.pools.remove_validator(POOL, world.keys[name].address, until=await owner.now())
    work = await submitted(world)
    only = await looking(world, redis, "validator")
    await gave(world, "validator", work.key, Outcome.FORGED)
    await (await world.as_("node")).work.dispute(work.key, EVIDENCE)
    assert await only.taken() == []
    assert await (await looking(world, redis, "second")).taken() == []  # no validator any more
    await world.warp(TERMS.dispute_period + SECOND)
    await owner.work.finalize([work.key])
    provider = world.keys["provider"].address
    assert (await owner.stake.of(provider)).active == 100 * UNIT
    assert await owner.work.accrued(POOL, provider) == 0
    assert await owner.pools.membership(POOL, world.keys["node"].address) is not None


async def test_verdicts_are_read_again_after_a_crash_and_counted_once(world: World, redis: Redis) -> None:
    await ready(world)
    work = await submitted(world)
    await gave(world, "second", work.key, Outcome.ACCEPTED)
    second = await looking(world, redis, "second")
    uncommitted: Any = second.loop

    async def killed(_batch: object) -> None:
        raise RuntimeError("kill -9")

    commit = uncommitted._following.commit
    uncommitted._following.commit = killed
    with pytest.raises(RuntimeError):
        await second.loop.round()
    uncommitted._following.commit = commit
    await (await looking(world, redis, "second")).loop.round()
    assert (await second.records.of(work.node)).clean == 1
