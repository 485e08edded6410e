"""Second looks and disputes between three validators on a real chain, in both directions, including payments."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio import Redis

from ledger.amounts import UNIT
from ledger.artifacts import Contract
from ledger.client import Ledger
from ledger.client.event_follower import EventFollower
from ledger.client.work import WorkStatus
from ledger.events.types import VerdictConfirmed
from protocol.errors import Unavailable
from protocol.identifiers import ZERO_DIGEST, Address, Digest
from protocol.identity.keys import Key
from protocol.runtime.clock import SystemClock
from protocol.verdicts import Outcome, ReasonCode
from protocol.wire.audits import AuditFile, CheckState
from rollouts.calibration.near_ties import NearTieCount
from tests.kit.scripted_examiner import concluded
from tests.kit.verdicts import verdict_on
from tests.kit.world import POOL, TERMS, World
from tests.validator.audit.evidence import audit_of, hash_of
from tests.validator.audit.works import announced, submitted
from validator.assignment.turns import rank_of
from validator.audit.epochs import Epochs
from validator.audit.second_looks import LookPolicy
from validator.domain.items import Item, ItemKind, item_id
from validator.domain.submissions import SubmittedWork
from validator.files import AuditFileWrong
from validator.loops.disputes import Followed, LookResults
from validator.loops.juries import EARLY, READABLE, STEP, UNDRAWN_PAUSE, Juries
from validator.loops.second_looks import FOLLOWED, SecondLooks
from validator.queue.retry_policy import RetryPolicy
from validator.queue.store import WorkQueue
from validator.store.keys import keys_of
from validator.store.members import MemberId
from validator.store.records import NodeRecords

REWARD = 100 * TERMS.price_per_unit
PENALTY = 200 * TERMS.penalty_per_unit
"""Penalty for forging all units of the lease, in units of 10⁻¹⁸ MUST."""
SECOND = timedelta(seconds=1)
EVIDENCE = Digest("0x" + "ed" * 32)
ALL = LookPolicy(accepted=1, rejected=1)
NONE = LookPolicy(accepted=0, rejected=0, forged=0)
AUDITS: dict[Digest, AuditFile] = {}
"""Audit files in the store."""


class StoppedClock(SystemClock):
    """A clock whose monotonic time advances only on request."""

    passed = 0.0

    def monotonic(self) -> float:
        return self.passed


@dataclass
class Looking:
    """One validator's second looks, with its own queue."""

    ledger: Ledger
    loop: SecondLooks
    queue: WorkQueue
    records: NodeRecords
    results: LookResults
    juries: Juries
    clock: StoppedClock

    async def follow_up(self, item: SubmittedWork, own: Outcome) -> Followed:
        """Applies the result `own` of a second look."""
        found = Item(work=item, kind=ItemKind.SECOND_LOOK, deadline_s=0, seen_ms=0)
        return await self.results.follow_up(found, concluded(own, ReasonCode.SAMPLING_REPLAY), EVIDENCE)

    async def taken(self) -> list[Item]:
        """Reads new events and returns the contents of the queue."""
        await self.loop.round()
        found = []
        while (item := await self.queue.take()) is not None:
            found.append(item)
        return found


async def looking(world: World, redis: Redis, name: str, policy: LookPolicy = ALL) -> Looking:
    """Returns the second looks of the validator `name`; the validators of a test share only the chain."""
    ledger, key = await world.as_(name), world.keys[name]
    keys, clock = keys_of(list(world.keys).index(name) + 1), StoppedClock()
    records = NodeRecords(redis, keys=keys, validator=key.address)
    queue = WorkQueue(
        redis,
        keys=keys,
        clock=clock,
        lease=timedelta(minutes=1),
        member=MemberId("000000000000"),
        retry_policy=RetryPolicy(),
    )
    following = EventFollower(
        "verdicts",
        world.deployment,
        kinds=FOLLOWED,
        contracts=[world.deployment[Contract.WORK_LEDGER]],
        redis=redis,
        keys=keys,
        confirmations=0,
        clock=clock,
    )
    chain: Any = SimpleNamespace()

    async def connected() -> Ledger:
        return ledger

    async def validators() -> list[Address]:
        return await ledger.pools.validators(POOL)

    async def read(_validator: Address, sha256: Digest) -> AuditFile:
        if sha256 not in AUDITS:
            raise AuditFileWrong(f"no audit file {sha256}")
        return AUDITS[sha256]

    chain.ledger, chain.validators = connected, validators
    juries = Juries(key.address, chain=chain, clock=clock)
    results = LookResults(connected, read=read, pool_id=POOL)
    loop = SecondLooks(
        ledger,
        following,
        queue=queue,
        records=records,
        epochs=Epochs(ledger, key, pool_id=POOL),
        pool_id=POOL,
        policy=policy,
        takeover=timedelta(),
        juries=juries,
    )
    return Looking(ledger, loop, queue, records, results, juries, clock)


async def gave(
    world: World, name: str, key: Digest, outcome: Outcome, *, decisive: bool = False, audit: Digest = EVIDENCE
) -> None:
    """Sends a verdict of a validator; a verdict in a dispute is sent at the validator's turn."""
    reason = ReasonCode.PASSED if outcome is Outcome.ACCEPTED else ReasonCode.COMPUTATION_OTHER_MODEL
    ledger = await world.as_(name)
    if decisive:
        await its_turn(world, name, key)
    verdict = await verdict_on(ledger, key, outcome, reason=reason, audit_hash=audit, decisive=decisive)
    assert await ledger.work.judge([verdict]) == []


async def its_turn(world: World, name: str, key: Digest) -> None:
    """Lets blocks and time pass until a validator may decide a dispute."""
    await world.controls.mine(2)
    ledger = await world.as_(name)
    opens_at = await ledger.work.turn_of(key, ledger.address)
    assert opens_at is not None
    await world.warp(max(timedelta(), opens_at - await ledger.now()) + SECOND)


async def ready(world: World) -> None:
    """Makes a node join the pool and announces a version."""
    await world.member()
    await announced(world)


async def test_a_wrong_verdict_is_disputed_and_overturned_by_a_third_validator(world: World, redis: Redis) -> None:
    """The opposite case, a rejection that is overturned, is tested with whole services."""
    first, truth, paid, slashed = Outcome.ACCEPTED, Outcome.FORGED, 0, PENALTY
    await ready(world)
    work = await submitted(world)
    judge, second, third = [await looking(world, redis, name) for name in ("validator", "second", "third")]
    await gave(world, "validator", work.key, first)
    assert await judge.taken() == []  # its own
    (look,) = await second.taken()
    assert (look.kind, look.work) == (ItemKind.SECOND_LOOK, work)
    assert await second.follow_up(work, truth) is Followed.DISPUTED
    assert await second.follow_up(work, truth) is Followed.DISPUTED  # after a crash
    assert await judge.taken() == []
    assert await second.taken() == []  # a party
    (dispute,) = await third.taken()
    assert (dispute.kind, dispute.work) == (ItemKind.DISPUTE, work)
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


async def test_a_nodes_dispute_is_judged_by_validators_other_than_the_first_judge(world: World, redis: Redis) -> None:
    await ready(world)
    work = await submitted(world)
    await gave(world, "validator", work.key, Outcome.FORGED)
    await (await world.as_("node")).work.dispute(work.key, EVIDENCE)
    assert await (await looking(world, redis, "validator", NONE)).taken() == []
    for name in ("second", "third"):  # both have read it; the one with the later turn finds it decided
        each = await looking(world, redis, name, NONE)
        assert [item.kind for item in await each.taken()] == [ItemKind.DISPUTE]
    await gave(world, "third", work.key, Outcome.ACCEPTED, decisive=True)
    assert await (await world.as_("third")).work.accrued(POOL, world.keys["provider"].address) == REWARD


@pytest.mark.parametrize(("steerable", "followed"), [(True, Followed.AGREES), (False, Followed.DISPUTED)])
async def test_a_rejection_for_near_ties_of_many_files_is_not_disputed_for_one_clean_file(
    world: World, redis: Redis, steerable: bool, followed: Followed
) -> None:
    """A file without near-ties to count, as in float32, is an exception: its rejection must be wrong."""
    await world.member()
    item = await submitted(world)
    judge, other = await world.as_("validator"), await looking(world, redis, "second")
    reason = ReasonCode.SAMPLING_BUDGET
    await judge.work.judge([await verdict_on(judge, item.key, Outcome.REJECTED, reason=reason)])
    ties = NearTieCount(tokens=9, deviations=0.1, rate=0.01, size=0.1) if steerable else None
    found = replace(concluded(Outcome.ACCEPTED, ReasonCode.PASSED), near_ties=ties)
    look = Item(work=item, kind=ItemKind.SECOND_LOOK, deadline_s=0, seen_ms=0)
    assert await other.results.follow_up(look, found, EVIDENCE) is followed


async def test_after_a_forgery_all_work_of_the_node_accepted_by_others_is_examined(world: World, redis: Redis) -> None:
    await ready(world)
    works = [await submitted(world, index=index) for index in range(4)]
    for index, name in enumerate(["validator", "second", "validator"]):
        await gave(world, name, works[index].key, Outcome.ACCEPTED)
    third, second = [await looking(world, redis, name, NONE) for name in ("third", "second")]
    assert await third.taken() == await second.taken() == []
    await gave(world, "validator", works[3].key, Outcome.FORGED)
    assert {item.work.key for item in await third.taken()} == {works[0].key, works[1].key, works[2].key}
    assert {item.work.key for item in await second.taken()} == {works[0].key, works[2].key}
    assert second.loop.counts.doubtful == 1  # it cannot withdraw its own verdict, and logs that
    assert (await second.records.of(works[0].node)).failed_at is not None
    # The node fails again: examined works are not examined again, newer ones are.
    works += [await submitted(world, index=index) for index in (4, 5)]
    await gave(world, "validator", works[4].key, Outcome.ACCEPTED)
    await gave(world, "validator", works[5].key, Outcome.FORGED)
    for done in (works[0], works[1], works[2]):
        await third.queue.drop([item_id(done.key, ItemKind.SECOND_LOOK)])
    assert {item.work.key for item in await third.taken()} == {works[4].key}


async def test_final_or_confirmed_verdicts_are_not_disputed(world: World, redis: Redis) -> None:
    await ready(world)
    one, other = [await submitted(world, index=index) for index in range(2)]
    await gave(world, "validator", one.key, Outcome.ACCEPTED)
    await gave(world, "validator", other.key, Outcome.ACCEPTED)
    judge, second, third = [await looking(world, redis, name) for name in ("validator", "second", "third")]
    assert await second.follow_up(one, Outcome.ACCEPTED) is Followed.AGREES
    assert await second.follow_up(one, Outcome.REJECTED) is Followed.AGREES
    assert await judge.follow_up(one, Outcome.FORGED) is Followed.OWN
    await second.ledger.work.dispute(one.key, ZERO_DIGEST)
    assert await third.follow_up(one, Outcome.FORGED) is Followed.OVER
    await world.warp(TERMS.challenge_period + SECOND)
    assert await second.follow_up(other, Outcome.FORGED) is Followed.OVER
    late = await looking(world, redis, "second")
    await late.ledger.work.finalize([other.key])
    assert [item.kind for item in await late.taken()] == []


async def test_with_a_single_validator_a_dispute_ends_at_its_deadline_without_a_penalty(
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
    assert await (await looking(world, redis, "second")).taken() == []  # no longer a validator
    await world.warp(TERMS.dispute_period + SECOND)
    await owner.work.finalize([work.key])
    provider = world.keys["provider"].address
    assert (await owner.stake.of(provider)).active == 100 * UNIT
    assert await owner.work.accrued(POOL, provider) == 0
    assert await owner.pools.membership(POOL, world.keys["node"].address) is not None


async def test_every_forged_verdict_of_another_validator_gets_a_second_look(world: World, redis: Redis) -> None:
    await ready(world)
    work = await submitted(world)
    second = await looking(world, redis, "second", LookPolicy(accepted=0, rejected=0))
    await gave(world, "validator", work.key, Outcome.FORGED)
    (look,) = await second.taken()
    assert (look.kind, look.work) == (ItemKind.SECOND_LOOK, work)
    assert await second.follow_up(work, Outcome.ACCEPTED) is Followed.DISPUTED


async def test_verdicts_read_again_after_a_crash_are_counted_once(world: World, redis: Redis) -> None:
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


# Audit files with wrong rows


async def accepted_with(world: World, **wrong: Any) -> tuple[SubmittedWork, AuditFile]:
    """Returns work accepted with an audit file whose first row is changed, and the same without the change."""
    work = await submitted(world)
    honest = audit_of(work, world.keys["validator"].address, audited=range(10))
    first, *rest = honest.rows
    told = honest.model_copy(update={"rows": (first.model_copy(update=wrong), *rest)})
    AUDITS[hash_of(told)] = told
    await gave(world, "validator", work.key, Outcome.ACCEPTED, audit=hash_of(told))
    return work, honest


@pytest.mark.parametrize("reward", [-1.0, 1e6, -1e30, None])
async def test_an_acceptance_with_wrong_rewards_is_disputed_and_the_evidence_names_the_row(
    world: World, redis: Redis, reward: float | None
) -> None:
    """The trainer takes rewards from the audit file of the validator that judged."""
    await ready(world)
    work, honest = await accepted_with(world, reward=reward)
    second = await looking(world, redis, "second")
    (item,) = await second.taken()
    found = await second.results.compared(item, concluded(rows=honest.rows, environment="arithmetic"))
    check = found.checks[-1]
    assert (check.name, check.state, check.found) == ("second-look", CheckState.FAILED, 1)
    assert (check.findings[0].row, check.findings[0].reason) == (0, ReasonCode.REWARD_DIFFERS)
    assert await second.results.follow_up(item, found, EVIDENCE) is Followed.DISPUTED
    standing = await second.ledger.work.get(work.key)
    assert standing is not None
    assert (standing.status, standing.disputer) == (WorkStatus.DISPUTED, world.keys["second"].address)


async def test_equal_rows_agree_and_a_missing_audit_file_is_disputed_unless_the_store_is_down(
    world: World, redis: Redis
) -> None:
    await ready(world)
    work, honest = await accepted_with(world)
    second = await looking(world, redis, "second")
    (item,) = await second.taken()
    found = await second.results.compared(item, concluded(rows=honest.rows, environment="arithmetic"))
    assert found.checks[-1].state is CheckState.PASSED
    assert await second.results.follow_up(item, found, EVIDENCE) is Followed.AGREES
    AUDITS.clear()
    found = await second.results.compared(item, concluded(rows=honest.rows))
    assert (found.checks[-1].name, found.checks[-1].state) == ("second-look", CheckState.FAILED)

    async def down(*_: object) -> AuditFile:
        raise Unavailable("the store is down")

    with pytest.raises(Unavailable):
        await LookResults(second.results._ledger, read=down, pool_id=POOL).compared(item, concluded())
    assert await second.results.follow_up(item, found, EVIDENCE) is Followed.DISPUTED
    standing = await second.ledger.work.get(work.key)
    assert standing is not None
    assert standing.status is WorkStatus.DISPUTED


async def test_an_audit_file_of_other_work_is_disputed_even_with_right_rows(world: World, redis: Redis) -> None:
    await ready(world)
    work = await submitted(world)
    honest = audit_of(work, world.keys["validator"].address, audited=range(10))
    told = honest.model_copy(update={"step": 7})
    AUDITS[hash_of(told)] = told
    await gave(world, "validator", work.key, Outcome.ACCEPTED, audit=hash_of(told))
    second = await looking(world, redis, "second")
    (item,) = await second.taken()
    for own in (
        concluded(rows=honest.rows, environment="arithmetic"),
        concluded(Outcome.REJECTED, ReasonCode.REWARD_DIFFERS, rows=honest.rows),
    ):
        found = await second.results.compared(item, own)
        assert [each.what for each in found.checks[-1].findings] == ["the audit file has step 7, but the work has 1"]
    assert await second.results.follow_up(item, found, EVIDENCE) is Followed.DISPUTED


# Paid looks


async def paying(world: World) -> None:
    """Makes the pool pay for a second look at every verdict."""
    owner = await world.as_("owner")
    await owner.pools.set_terms(POOL, replace(TERMS, look_bps=10_000))
    await world.warp(TERMS.notice_period + SECOND)


async def test_one_second_look_is_paid_and_its_validator_confirms_the_verdict(world: World, redis: Redis) -> None:
    await paying(world)
    await ready(world)
    work = await submitted(world)
    judge, second, third = [await looking(world, redis, name, NONE) for name in ("validator", "second", "third")]
    await gave(world, "validator", work.key, Outcome.ACCEPTED)
    for each in (judge, second, third):
        assert await each.taken() == []  # the block that decides the draw is not mined yet
    await world.controls.mine(2)
    assert await judge.taken() == []  # its own
    for each in (second, third):
        (item,) = await each.taken()
        assert (item.kind, item.work) == (ItemKind.PAID_LOOK, work)
        assert each.loop.counts.paid == 1
    agreed = concluded()
    assert await second.results.follow_up(item, agreed, EVIDENCE) is Followed.CONFIRMED
    assert await third.results.follow_up(item, agreed, EVIDENCE) is Followed.AGREES  # one second look is paid
    standing = await second.ledger.work.get(work.key)
    assert standing is not None
    assert (standing.status, standing.looker) == (WorkStatus.PROVISIONAL, world.keys["second"].address)
    await second.taken()
    assert (second.loop.counts.confirmed, third.loop.counts.confirmed) == (1, 0)
    await world.warp(TERMS.challenge_period + SECOND)
    await second.ledger.work.finalize([work.key])
    assert await second.ledger.work.accrued(POOL, world.keys["second"].address) == TERMS.verdict_fee


async def test_a_paid_second_look_that_finds_forgery_disputes(world: World, redis: Redis) -> None:
    await paying(world)
    await ready(world)
    work = await submitted(world)
    second = await looking(world, redis, "second", NONE)
    await gave(world, "validator", work.key, Outcome.ACCEPTED)
    await world.controls.mine(2)
    (item,) = await second.taken()
    assert item.kind is ItemKind.PAID_LOOK
    assert await second.follow_up(work, Outcome.FORGED) is Followed.DISPUTED


async def test_unpaid_or_too_old_verdicts_are_chosen_for_second_looks_by_the_secret_only(
    world: World, redis: Redis
) -> None:
    await ready(world)
    work = await submitted(world)
    second = await looking(world, redis, "second", NONE)
    await gave(world, "validator", work.key, Outcome.ACCEPTED)
    await second.taken()
    await world.controls.mine(2)
    assert await second.taken() == []
    assert not second.loop._undrawn
    await paying(world)
    later = await submitted(world, index=1)
    await gave(world, "validator", later.key, Outcome.ACCEPTED)
    await second.taken()
    await world.controls.mine(260)
    assert await second.taken() == []
    assert not second.loop._undrawn


async def test_concurrent_second_looks_are_confirmed_in_one_transaction(world: World, redis: Redis) -> None:
    await paying(world)
    await ready(world)
    works = [await submitted(world, index=index) for index in range(4)]
    for work in works:
        await gave(world, "validator", work.key, Outcome.ACCEPTED)
    await world.controls.mine(2)
    second = await looking(world, redis, "second", NONE)
    items = await second.taken()
    assert len(items) == 4
    found = await asyncio.gather(*(second.results.follow_up(item, concluded(), EVIDENCE) for item in items))
    assert set(found) == {Followed.CONFIRMED}
    events = await second.ledger.history(VerdictConfirmed, pool_id=POOL)
    assert len({event.log.transaction for event in events}) < len(events) == 4


# Orders


async def test_a_contradicted_dispute_is_taken_up_by_the_other_validators(world: World, redis: Redis) -> None:
    world.keys = {**world.keys, "fourth": Key.generate(), "fifth": Key.generate()}
    owner = await world.as_("owner")
    for name in ("fourth", "fifth"):
        await owner.pools.add_validator(POOL, world.keys[name].address)
        await world.controls.set_balance(world.keys[name].address, 10**18)
    await ready(world)
    work = await submitted(world)
    await gave(world, "validator", work.key, Outcome.ACCEPTED)
    await (await world.as_("second")).work.dispute(work.key, EVIDENCE)
    others = {name: await looking(world, redis, name, NONE) for name in ("third", "fourth", "fifth")}
    await world.controls.mine(2)
    turns = {name: await each.ledger.work.turn_of(work.key, each.ledger.address) for name, each in others.items()}
    first, second, third = sorted(turns, key=lambda name: (turns[name] is None, turns[name]))
    for each in others.values():
        assert [item.kind for item in await each.taken()] == [ItemKind.DISPUTE]
    await gave(world, first, work.key, Outcome.FORGED, decisive=True)
    standing = await owner.work.get(work.key)
    assert standing is not None
    assert (standing.status, standing.juror) == (WorkStatus.DISPUTED, world.keys[first].address)
    for name in (second, third):  # if the validator had dropped it, it would return
        await others[name].queue.drop([item_id(work.key, ItemKind.DISPUTE)])
        assert [item.kind for item in await others[name].taken()] == [ItemKind.DISPUTE]
        assert others[name].loop.counts.contradicted == 1
    await others[first].queue.drop([item_id(work.key, ItemKind.DISPUTE)])
    assert await others[first].taken() == []
    await gave(world, second, work.key, Outcome.FORGED, decisive=True)
    standing = await owner.work.get(work.key)
    assert standing is not None
    assert (standing.status, standing.outcome) == (WorkStatus.FINAL, Outcome.FORGED)


async def disputed(world: World) -> SubmittedWork:
    await ready(world)
    work = await submitted(world)
    await gave(world, "validator", work.key, Outcome.FORGED)
    await (await world.as_("node")).work.dispute(work.key, EVIDENCE)
    return work


async def test_one_validator_makes_a_block_if_none_follows_a_dispute(world: World, redis: Redis) -> None:
    work = await disputed(world)
    named = [await looking(world, redis, name, NONE) for name in ("second", "third")]
    validators = [each.ledger.address for each in named]
    first, later = sorted(named, key=lambda each: rank_of(work.key, each.ledger.address, validators))
    for each in named:
        each.juries.missed(work.key)
        assert await each.juries.round() == 0  # on most chains the block is mined by itself
        each.clock.passed = UNDRAWN_PAUSE.total_seconds()
    assert await later.ledger.work.turn_of(work.key, later.ledger.address) is None
    assert await later.juries.round() == 0  # the other validator does it
    sent = 0
    while await first.ledger.work.turn_of(work.key, first.ledger.address) is None:
        sent += await first.juries.round()
        first.clock.passed += UNDRAWN_PAUSE.total_seconds()
        assert sent < 4
    assert sent
    for each in named:
        each.clock.passed += 60
        assert await each.juries.round() == 0


async def test_the_order_is_recorded_by_one_validator_before_its_block_hash_expires(world: World, redis: Redis) -> None:
    work = await disputed(world)
    named = [await looking(world, redis, name, NONE) for name in ("second", "third")]
    for each in named:
        await each.taken()
    await world.controls.mine(EARLY)
    assert sorted([await each.juries.round() for each in named]) == [0, 1]
    assert [await each.juries.round() for each in named] == [0, 0]
    turns = [await each.ledger.work.turn_of(work.key, each.ledger.address) for each in named]
    await world.controls.mine(READABLE)
    assert [await each.ledger.work.turn_of(work.key, each.ledger.address) for each in named] == turns
    assert [await each.juries.round() for each in named] == [0, 0]


async def test_the_third_validator_records_the_order_if_two_before_it_are_silent(world: World, redis: Redis) -> None:
    world.keys = {**world.keys, "fourth": Key.generate()}
    owner = await world.as_("owner")
    await owner.pools.add_validator(POOL, world.keys["fourth"].address)
    await world.controls.set_balance(world.keys["fourth"].address, 10**18)
    work = await disputed(world)
    named = [await looking(world, redis, name, NONE) for name in ("second", "third", "fourth")]
    validators = [each.ledger.address for each in named]
    last = max(named, key=lambda each: rank_of(work.key, each.ledger.address, validators))
    await last.taken()
    await world.controls.mine(EARLY + 2 * STEP - 2)
    assert await last.juries.round() == 0
    await world.controls.mine(2)
    assert await last.juries.round() == 1
    await world.controls.mine(READABLE)
    assert await last.ledger.work.turn_of(work.key, last.ledger.address) is not None


async def test_an_order_whose_block_hash_expired_is_drawn_again(world: World, redis: Redis) -> None:
    work = await disputed(world)
    second, third = [await looking(world, redis, name, NONE) for name in ("second", "third")]
    await world.controls.mine(READABLE + 2)
    assert await second.ledger.work.turn_of(work.key, second.ledger.address) is None
    for each in (second, third):
        each.juries.missed(work.key)
        each.clock.passed = 10 * UNDRAWN_PAUSE.total_seconds()
    assert await second.juries.round() == 1
    await world.controls.mine(2)
    assert await second.ledger.work.turn_of(work.key, second.ledger.address) is not None
    assert await third.juries.round() == 0


async def test_no_validator_makes_blocks_for_a_finished_dispute_or_one_it_cannot_decide(
    world: World, redis: Redis
) -> None:
    work = await disputed(world)
    judge, second, third = [await looking(world, redis, name, NONE) for name in ("validator", "second", "third")]
    owner = await world.as_("owner")
    await owner.pools.remove_validator(POOL, world.keys["third"].address, until=await owner.now())
    for each in (judge, third):
        each.juries.missed(work.key)
        each.clock.passed = 1000.0
        assert await each.juries.round() == 0
    second.juries.missed(work.key)
    await world.warp(TERMS.dispute_period + SECOND)
    second.clock.passed = 1000.0
    block = await owner.block()
    assert await second.juries.round() == 0
    assert await owner.block() == block


# Records


async def test_a_forgery_returns_all_nodes_of_the_provider_to_full_audits(world: World, redis: Redis) -> None:
    await ready(world)
    one, other = [await submitted(world, index=index) for index in range(2)]
    second = await looking(world, redis, "second", NONE)
    provider, sibling = world.keys["provider"].address, Key.generate().address
    await gave(world, "validator", one.key, Outcome.FORGED)
    await gave(world, "validator", other.key, Outcome.REJECTED)
    await second.loop.round()
    assert (await second.records.of(sibling, provider=provider)).provider_forged_at is not None
    assert (await second.records.of(sibling, provider=sibling)).provider_forged_at is None
    await (await world.as_("node")).work.dispute(one.key, EVIDENCE)
    await gave(world, "third", one.key, Outcome.ACCEPTED, decisive=True)
    await second.loop.round()
    assert (await second.records.of(sibling, provider=provider)).provider_forged_at is None, "it was overturned"
