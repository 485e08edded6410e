"""Shares of a step: limits per provider, slow leases, delivery records, funds, seeds."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ledger.client.event_follower import ObservedEvent
from ledger.events.types import VerdictGiven
from orchestrator.domain.lease_terms import TIMES_KEPT, DeliveryTime
from orchestrator.domain.slots import SlotEvent
from orchestrator.domain.steps import StepCount
from protocol.identity.keys import Key
from protocol.verdicts import Outcome, ReasonCode
from tests.kit.memory_run_ledger import RunUnderTest, funds, sha
from tests.kit.runs import MakeRun


async def member_of(run: RunUnderTest, provider: Key) -> Key:
    """Returns a member of another provider than the default one."""
    key = await run.member()
    run.chain.memberships[key.address] = replace(run.chain.memberships[key.address], provider=provider.address)
    await run.leasing.store.drop_cached_memberships([key.address])
    return key


async def refused(run: RunUnderTest, key: Key, *, step: int = 0, groups: int = 8) -> str:
    answer = await run.ask(key, step=step, groups=groups)
    assert (answer.status_code, answer.json()["code"]) == (409, "no-slot")
    return str(answer.json()["detail"])


async def add_judged_work(
    run: RunUnderTest, key: Key, outcome: Outcome, *, file: int = 1, reason: int = 0, what: SlotEvent = SlotEvent.JUDGED
) -> str:
    """Adds a slot whose work was submitted and judged; returns its work key."""
    grant = await run.lease(key, step=(await run.step(key)).step, groups=1)
    run.submit_alone(grant, file=file)
    work = grant.lease.lease.key.hash
    run.chain.happen(work, key.address, what, outcome)
    verdict = run.chain.happened[-1].event
    assert isinstance(verdict, VerdictGiven)
    run.chain.happened[-1] = ObservedEvent(replace(verdict, reason=reason))
    await run.sync.round()
    return work


# A provider's share of a step


async def test_a_provider_without_competitors_can_hold_a_whole_step(run: RunUnderTest) -> None:
    key, other = await run.member(), await run.member()
    assert (await run.lease(key, groups=4)).lease.groups == 4
    assert (await run.lease(other, groups=4)).lease.groups == 4, "both are of one provider"


async def test_while_others_request_slots_a_provider_holds_at_most_a_third_of_a_step(run: RunUnderTest) -> None:
    slow = await member_of(run, Key.generate())
    honest = await member_of(run, Key.generate())
    assert (await run.lease(honest, groups=1)).lease.groups == 1
    assert (await run.lease(slow, groups=8)).lease.groups == 3, "a third of 8, rounded up"
    assert "holds a third of step 0" in await refused(run, slow)
    await run.pool.send(slow, "/v1/slots/release", {"slots": [{"step": 0, "index": 0}]})
    assert (await run.lease(slow, groups=2)).lease.groups == 2, "released slots no longer count"


async def test_other_providers_count_as_requesting_for_one_lease_duration(run: RunUnderTest) -> None:
    slow, honest = await member_of(run, Key.generate()), await member_of(run, Key.generate())
    await run.lease(honest, groups=1)
    await run.pool.clock.turn(timedelta(seconds=99))
    await run.pool.beat(slow)
    assert (await run.lease(slow, groups=8)).lease.groups == 3
    await run.pool.clock.turn(timedelta(seconds=2))
    await run.pool.beat(slow)
    assert (await run.lease(slow, groups=8)).lease.groups == 4, "the rest of the step"


async def test_a_provider_gets_at_least_one_group_of_a_small_step(run: RunUnderTest) -> None:
    await run.demand(0, 2)
    first, second = await member_of(run, Key.generate()), await member_of(run, Key.generate())
    await run.lease(first, groups=1)
    assert (await run.lease(second, groups=8)).lease.groups == 1


# Slow leases


async def test_no_step_waits_for_a_slot_beyond_half_of_its_lease(run: RunUnderTest) -> None:
    key, other = await run.member(), await run.member()
    grant = await run.lease(key, groups=8)
    await run.pool.clock.turn(timedelta(seconds=49))
    await run.sync.round()
    assert (await run.view())["need"] == 0
    await run.pool.clock.turn(timedelta(seconds=1))
    await run.sync.round()
    view = await run.view()
    assert (view["leased"], view["spare"], view["need"]) == (8, 8, 8)
    await run.pool.beat(other)
    assert (await run.step(other)).need == 8
    second = await run.lease(other, groups=8)
    assert second.lease.groups == 8
    for key_of, each, file in ((key, grant, 1), (other, second, 2)):
        run.submit_alone(each, file=file)
        run.chain.happen(each.lease.lease.key.hash, key_of.address, SlotEvent.JUDGED, Outcome.ACCEPTED)
    await run.sync.round()
    view = await run.view()
    assert (view["accepted"], view["leased"], view["spare"], view["need"]) == (16, 0, 0, 0), "both are taken"


@pytest.mark.parametrize(
    "count",
    [
        {"demand": 9},
        {"demand": 9, "leased": 4},
        {"demand": 9, "leased": 4, "spare": 5},
        {"demand": 9, "spare": 1},
        {"demand": 9, "accepted": 3, "pending": 2, "leased": 1, "spare": 3, "rejected": 7},
        {"demand": 9, "accepted": 9},
        {"demand": 9, "spare": 18},
        {"demand": 9, "spare": 17},
        {"demand": 0},
    ],
)
async def test_the_lua_script_and_step_count_compute_the_same_need(make_run: MakeRun, count: dict[str, int]) -> None:
    run = make_run(run_groups_per_slot=4096)
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    pairs = [part for pair in count.items() for part in pair]
    await run.pool.dependencies.database.ask("HSET", run.pool.dependencies.database.key("run", "step", "0"), *pairs)
    need = StepCount(**count).need
    answer = await run.ask(key, groups=4096)
    assert (answer.json()["lease"]["groups"] if answer.status_code == 200 else 0) == need


async def run_with_deliveries(make_run: MakeRun, **settings: Any) -> RunUnderTest:
    """Returns a run whose nodes deliver in 25 s, so that a lease lasts 100 s."""
    run = make_run(run_groups=100, **settings)
    await run.sync.round()
    await run.publish(0)
    for _ in range(TIMES_KEPT):
        await run.leasing.store.record_delivery_time(DeliveryTime(25_000, 1))
    return run


async def pass_time(run: RunUnderTest, key: Key, seconds: int) -> None:
    await run.pool.clock.turn(timedelta(seconds=seconds))
    await run.sync.round()
    await run.pool.beat(key)


async def lease_states(run: RunUnderTest, key: Key) -> list[str]:
    return [each["state"] for each in (await run.pool.owner("GET", f"/v1/nodes/{key.address}/leases"))["leases"]]


async def test_work_delivered_after_half_of_its_lease_counts_against_its_node(make_run: MakeRun) -> None:
    run = await run_with_deliveries(make_run, run_delivery_least=2, run_free_rejections=2, run_throttle_pause_s=300)
    key = await run.member()
    for file in (1, 2):
        grant = await run.lease(key, groups=1)
        await pass_time(run, key, 52)
        run.submit_alone(grant, file=file)
        run.chain.happen(grant.lease.lease.key.hash, key.address, SlotEvent.JUDGED, Outcome.ACCEPTED)
        await run.sync.round()
    assert await lease_states(run, key) == ["late", "late"]
    assert "the node delivered too few" in await refused(run, key)


async def test_work_delivered_in_the_first_half_of_its_lease_is_on_time(make_run: MakeRun) -> None:
    run = await run_with_deliveries(make_run)
    key = await run.member()
    grant = await run.lease(key, groups=1)
    await pass_time(run, key, 49)
    run.submit_alone(grant)
    await run.sync.round()
    assert await lease_states(run, key) == ["submitted"]


async def test_work_that_waits_for_the_relayer_is_not_late(make_run: MakeRun) -> None:
    run = await run_with_deliveries(make_run)
    key = await run.member()
    grant = await run.lease(key, groups=1)
    await pass_time(run, key, 49)
    assert (await run.hand_in(key, run.signed(key, grant))).status_code == 200
    await pass_time(run, key, 30)
    await run.relayer.round()
    await run.sync.round()
    assert await lease_states(run, key) == ["submitted"]


async def test_work_is_not_late_because_the_ledger_could_not_be_read(make_run: MakeRun) -> None:
    run = await run_with_deliveries(make_run)
    key = await run.member()
    grant = await run.lease(key, groups=1)
    await run.pool.clock.turn(timedelta(seconds=90))
    run.submit_alone(grant)
    await run.sync.round()  # the first one since the lease began
    assert await lease_states(run, key) == ["submitted"]


async def test_work_is_not_late_because_of_a_reorg(make_run: MakeRun) -> None:
    run = await run_with_deliveries(make_run)
    key = await run.member()
    grant = await run.lease(key, groups=1)
    await pass_time(run, key, 10)
    run.submit_alone(grant)
    await run.sync.round()
    run.chain.take_back(grant.lease.lease.key.hash)
    await pass_time(run, key, 60)
    run.submit_alone(grant)
    await run.sync.round()
    assert await lease_states(run, key) == ["submitted"]


async def test_no_step_waits_for_a_node_on_probation(make_run: MakeRun) -> None:
    run = make_run(run_delivery_least=1, run_throttle_pause_s=0)
    await run.sync.round()
    await run.publish(0)
    key, other = await run.member(), await member_of(run, Key.generate())
    await run.lease(key, groups=1)
    await run.pool.send(key, "/v1/slots/release", {"slots": [{"step": 0, "index": 0}]})
    trial = await run.lease(key, groups=2)
    view = await run.view()
    assert (view["leased"], view["spare"], view["need"]) == (2, 2, 8)
    assert "one slot at a time" in await refused(run, key)
    await run.sync.round()
    assert (await run.view())["spare"] == 2, "processing the state again changes nothing"
    assert (await run.step(other)).need == 8
    run.submit_alone(trial)
    await run.sync.round()
    view = await run.view()
    assert (view["pending"], view["spare"], view["need"]) == (2, 0, 6), "its delivered work counts"


async def test_lease_durations_follow_the_pools_delivery_times(make_run: MakeRun) -> None:
    run = make_run(run_lease_s=600, run_lease_least_s=20, run_groups=100)
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    for file in range(8):
        grant = await run.lease(key, groups=1)
        assert grant.lease.expiry == int(run.pool.clock.now().timestamp()) + 600, "too few deliveries are known"
        await run.pool.clock.turn(timedelta(seconds=15))
        await run.pool.beat(key)
        run.submit_alone(grant, file=file + 1)
        run.chain.happen(grant.lease.lease.key.hash, key.address, SlotEvent.JUDGED, Outcome.ACCEPTED)
        await run.sync.round()
    assert (await run.lease(key, groups=1)).lease.expiry == int(run.pool.clock.now().timestamp()) + 60


async def test_lease_durations_that_are_too_short_grow_again(make_run: MakeRun) -> None:
    run = make_run(run_lease_s=600, run_lease_least_s=20, run_delivery_least=100, run_groups=100)
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    for _ in range(TIMES_KEPT):
        await run.leasing.store.record_delivery_time(DeliveryTime(1_000, 1))
    lengths = []
    for _ in range(2 * TIMES_KEPT):
        lengths.append((await run.lease(key, groups=1)).lease.expiry - int(run.pool.clock.now().timestamp()))
        await run.pool.clock.turn(timedelta(seconds=lengths[-1] + 20))
        await run.sync.round()
        await run.pool.beat(key)
    assert (lengths[0], lengths[-1]) == (20, 600)


async def test_only_accepted_work_shortens_lease_durations(run: RunUnderTest) -> None:
    key = await run.member()
    await add_judged_work(run, key, Outcome.REJECTED)
    assert await run.leasing.store.times() == []
    await add_judged_work(run, key, Outcome.ACCEPTED, file=2)
    assert len(await run.leasing.store.times()) == 1


# Records


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Outcome.REJECTED, ReasonCode.TERMINATION_EARLY),
        (Outcome.ACCEPTED, ReasonCode.PASSED_UNDECIDED),
    ],
)
async def test_bad_work_beyond_the_free_ones_throttles_its_node(
    make_run: MakeRun, outcome: Outcome, reason: ReasonCode
) -> None:
    run = make_run(run_delivery_least=3, run_free_rejections=2, run_throttle_pause_s=300, run_groups=100)
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    for file in range(5):  # 3 of 5 beyond the 2 free ones
        await add_judged_work(run, key, outcome, file=file + 1, reason=reason)
    assert "the node delivered too few" in await refused(run, key, step=(await run.step(key)).step)


async def test_throttling_for_bad_work_begins_with_its_verdict(make_run: MakeRun) -> None:
    run = make_run(run_delivery_least=1, run_free_rejections=0, run_throttle_pause_s=300)
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    grant = await run.lease(key, groups=1)
    run.submit_alone(grant)
    await run.sync.round()
    await run.pool.clock.turn(timedelta(seconds=600))
    run.chain.happen(grant.lease.lease.key.hash, key.address, SlotEvent.JUDGED, Outcome.REJECTED)
    await run.sync.round()
    await run.pool.beat(key)
    assert "no slots for another 300 s" in await refused(run, key)


async def test_a_node_accused_of_forgery_gets_no_slots_until_the_verdict_is_final(run: RunUnderTest) -> None:
    key = await run.member()
    work = await add_judged_work(run, key, Outcome.FORGED)
    assert "was judged forged" in await refused(run, key)
    run.chain.happen(work, key.address, SlotEvent.DISPUTED)
    await run.sync.round()
    assert "was judged forged" in await refused(run, key), "a dispute does not decide yet"
    run.chain.happen(work, key.address, SlotEvent.DECIDED, Outcome.ACCEPTED)
    run.chain.happen(work, key.address, SlotEvent.FINAL, Outcome.ACCEPTED)
    await run.sync.round()
    assert (await run.lease(key, groups=1)).lease.groups == 1


async def test_an_accusation_ends_with_its_verdict(run: RunUnderTest) -> None:
    key = await run.member()
    work = await add_judged_work(run, key, Outcome.FORGED)
    run.chain.happen(work, key.address, SlotEvent.FINAL, Outcome.FORGED)
    await run.sync.round()
    assert (await run.lease(key, groups=1)).lease.groups == 1, "the ledger decides whether it is still a member"


async def test_nodes_of_one_provider_share_a_delivery_record(make_run: MakeRun) -> None:
    run = make_run(run_delivery_least=4, run_throttle_pause_s=300, run_groups=100)
    await run.sync.round()
    await run.publish(0)
    provider = Key.generate()
    for _ in range(4):  # each is too new to be judged by itself
        node = await member_of(run, provider)
        index = (await run.lease(node, groups=1)).lease.index
        await run.pool.send(node, "/v1/slots/release", {"slots": [{"step": 0, "index": index}]})
    another = await member_of(run, provider)
    assert "the nodes of this provider together" in await refused(run, another)
    assert (await run.lease(await run.member(), groups=1)).lease.groups == 1, "a node of another provider may"
    await run.pool.clock.turn(timedelta(seconds=301))
    await run.pool.beat(another)
    await run.lease(another, groups=1)
    assert "one slot at a time" in await refused(run, another)


async def test_live_leases_of_many_nodes_do_not_hide_a_providers_failures(make_run: MakeRun) -> None:
    run = make_run(
        run_delivery_least=4, run_delivery_window=4, run_provider_window=4, run_slots_per_node=2, run_groups=100
    )
    await run.sync.round()
    await run.publish(0)
    provider = Key.generate()
    oldest = [await member_of(run, provider) for _ in range(4)]
    indexes = [(await run.lease(node, groups=1)).lease.index for node in oldest]
    for _ in range(4):
        node = await member_of(run, provider)
        for _ in range(2):
            await run.lease(node, groups=1)
    for node, index in zip(oldest, indexes, strict=True):
        await run.pool.send(node, "/v1/slots/release", {"slots": [{"step": 0, "index": index}]})
    assert "the nodes of this provider together" in await refused(run, await member_of(run, provider))


# Funds and terms


async def _money(run: RunUnderTest, **money: Any) -> None:
    run.chain.money = funds(**money)
    await run.pool.clock.turn(timedelta(seconds=11))
    await run.sync.round()


@pytest.mark.parametrize(
    ("money", "groups"),
    [
        ({"free": 450, "fees": 50}, [4]),
        ({"free": 449, "fees": 50}, [3]),
        ({"free": 500, "fees": 50}, [4]),
        ({"free": 600, "fees": 50}, [4, 1]),
        ({"free": 149, "fees": 50}, []),
        ({"free": 150, "price": 0, "fees": 50}, [4, 4]),
        ({"free": 49, "price": 0, "fees": 50}, []),
    ],
)
async def test_each_lease_reserves_its_fees_from_the_escrow(
    make_run: MakeRun, money: dict[str, int], groups: list[int]
) -> None:
    run = make_run(run_groups=8)
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    await _money(run, **money)
    await run.pool.beat(key)
    got: list[int] = []
    while len(got) < 3 and (answer := await run.ask(key, groups=4)).status_code == 200:
        got.append(answer.json()["lease"]["groups"])
    assert got == groups


async def test_a_repeated_request_returns_the_lease_that_took_the_last_funds(run: RunUnderTest) -> None:
    key = await run.member()
    await _money(run, free=400)
    await run.pool.beat(key)
    first = await run.ask(key, groups=4, request="a" * 32)
    again = await run.ask(key, groups=4, request="a" * 32)
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.json() == first.json()


async def test_leases_longer_than_the_notice_period_are_refused_with_both_durations(run: RunUnderTest) -> None:
    key = await run.member()
    await _money(run, notice=timedelta(seconds=99))
    await run.pool.beat(key)
    assert "run_lease_s is 100 s, and the pool's notice period only 99 s" in await refused(run, key)
    assert "run_lease_s" in (await run.pool.owner("GET", "/v1/run"))["paused"]
    await _money(run, notice=timedelta(seconds=100))
    await run.pool.beat(key)
    assert (await run.lease(key)).lease.groups == 4


# Seeds


async def test_a_salt_is_disclosed_only_with_its_lease(run: RunUnderTest) -> None:
    key = await run.member()
    first, second = await run.lease(key, groups=1), await run.lease(key, groups=1)
    assert first.lease.salt != second.lease.salt
    kept = [
        str(await run.pool.dependencies.redis.hgetall(each))
        for each in await run.pool.dependencies.redis.keys("*run:slot:*")
    ]
    assert len(kept) == 2
    for lease in (first.lease, second.lease):
        assert not any(lease.salt in text or lease.salt[2:] in text for text in kept), "not in Redis"


async def test_another_replica_derives_the_same_salt(make_run: MakeRun) -> None:
    run, other = make_run(), make_run()
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    first = await run.ask(key, request="b" * 32)
    second = await other.ask(key, request="b" * 32)
    assert first.json()["lease"] == second.json()["lease"]
    assert first.json()["lease"]["salt"] != sha(0)
