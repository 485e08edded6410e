"""Checks of the script that leases a slot: funds, steps, version, earlier leases."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from orchestrator.domain.slots import SlotEvent
from protocol.identity.keys import Key
from protocol.verdicts import Outcome
from tests.kit.memory_run_ledger import RunUnderTest, funds
from tests.kit.runs import MakeRun


async def refused(run: RunUnderTest, key: Key, *, step: int = 0) -> str:
    answer = await run.ask(key, step=step, groups=1)
    assert answer.status_code == 409, answer.text
    assert answer.json()["code"] == "no-slot"
    return str(answer.json()["detail"])


async def test_one_stake_covers_all_open_leases_of_its_provider(run: RunUnderTest) -> None:
    first, second = await run.member(), await run.member()
    run.chain.stake = 600  # at a penalty of 2 for each of 100 units: three groups
    assert (await run.lease(first, groups=2)).lease.groups == 2
    assert (await run.lease(second, groups=2)).lease.groups == 1, "the remainder of the first lease"
    assert "does not cover more open work" in await refused(run, second)
    await run.pool.send(first, "/v1/slots/release", {"slots": [{"step": 0, "index": 0}]})
    assert "does not cover more open work" in await refused(run, second), "the first could still submit under its lease"


async def test_pending_and_accepted_groups_are_not_leased_again(run: RunUnderTest) -> None:
    key = await run.member()
    work = await run.delivered(key, await run.lease(key, groups=8))
    assert "has all the rollouts that it needs" in await refused(run, key)
    run.chain.happen(work, key.address, SlotEvent.JUDGED, Outcome.ACCEPTED)
    await run.sync.round()
    assert "has all the rollouts that it needs" in await refused(run, key)
    assert (await run.lease(key, step=1)).lease.step == 1


async def test_a_step_closed_with_too_few_rollouts_does_not_delay_later_steps(run: RunUnderTest) -> None:
    key = await run.member()
    await run.demand(0, 0, closed=True)
    assert (await run.view())["accepted"] == 0
    assert (await run.lease(key, step=1)).lease.step == 1


@pytest.mark.parametrize(("version", "attempt", "step"), [(1, 0, 1), (0, 1, 0)], ids=["version", "attempt"])
async def test_a_version_that_changes_during_a_request_is_the_leased_one(
    run: RunUnderTest, monkeypatch: pytest.MonkeyPatch, version: int, attempt: int, step: int
) -> None:
    key = await run.member()
    await run.lease(key, groups=1)  # the stake is cached from here on, so that no later request reads it again
    before, store = await run.leasing.store.state(), run.leasing.store
    await run.publish(version, attempt=attempt)
    real, told = store.state, [before]

    async def late() -> object:
        return told.pop() if told else await real()

    monkeypatch.setattr(store, "state", late)
    lease = (await run.lease(key, step=step)).lease
    assert (lease.version, lease.digest) == (version, run.chain.versions[version].digest)
    assert not told


async def test_the_same_request_id_from_another_node_is_a_new_request(run: RunUnderTest) -> None:
    first, second = await run.member(), await run.member()
    for key in (first, second):
        assert (await run.ask(key, request="a" * 32)).json()["lease"]["node"] == key.address
    assert (await run.view())["leased"] == 8


async def test_a_former_member_gets_no_slot_despite_a_cached_membership(run: RunUnderTest) -> None:
    key = await run.member()
    await run.lease(key, groups=1)
    await run.pool.dependencies.nodes.learn(key.address, {"member": "0"})
    answer = await run.ask(key)
    assert (answer.status_code, answer.json()["code"]) == (403, "not-active")


async def test_a_request_id_is_remembered_until_its_lease_ends(run: RunUnderTest) -> None:
    key = await run.member()
    await run.ask(key, request="a" * 32)
    name = run.pool.dependencies.database.key("run", "request", key.address, "a" * 32)
    assert 90_000 < await run.pool.dependencies.redis.pttl(name) <= 100_000


async def test_slot_indices_stop_before_the_limit(run: RunUnderTest) -> None:
    key = await run.member()
    await run.pool.dependencies.redis.hset(
        run.pool.dependencies.database.key("run", "next", "0"), key.address, str(2**32 - 1)
    )
    assert "all its indices" in await refused(run, key)


async def test_after_a_loss_of_redis_earlier_slot_indices_are_not_leased_again(
    make_run: MakeRun,
) -> None:
    run = make_run(run_units_per_group=100)
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    first, held = await run.lease(key, groups=2), await run.lease(key, groups=2)
    await run.delivered(key, first)
    await run.pool.dependencies.redis.flushall()
    run.chain.read = 0
    await run.sync.round()
    await run.pool.beat(key)
    await run.pool.dependencies.nodes.learn(key.address, {"member": "1"})
    anew = (await run.lease(key, groups=1)).lease
    assert anew.index not in {first.lease.index, held.lease.index}
    run.submit_alone(held, file=2, units=7)
    await run.sync.round()
    assert sorted((item["index"], item["groups"]) for item in await run.rollouts(status="all")) == [(0, 2), (1, 2)]
    assert (await run.view())["leased"] == 1


async def test_a_leases_expiry_is_rounded_down_to_a_whole_second(run: RunUnderTest) -> None:
    key = await run.member()
    await run.pool.clock.turn(timedelta(milliseconds=700))
    now = run.pool.clock.now().timestamp()
    assert now + 99 < (await run.lease(key)).lease.expiry <= now + 100


async def test_escrow_for_just_one_group_is_offered_and_leased(run: RunUnderTest) -> None:
    key = await run.member()
    run.chain.money = replace(run.chain.money, free=100)
    await run.pool.clock.turn(timedelta(seconds=11))
    await run.sync.round()
    assert ((await run.step(key)).need, (await run.step(key)).reason) == (8, "")
    assert (await run.lease(key)).lease.groups == 1
    assert "escrow" in (await run.step(key)).reason


async def test_without_price_and_penalty_neither_escrow_nor_stake_limits_leases(run: RunUnderTest) -> None:
    key = await run.member()
    run.chain.money, run.chain.stake = funds(free=0, price=0, penalty=0), 0
    await run.pool.clock.turn(timedelta(seconds=11))
    await run.sync.round()
    assert (await run.lease(key, groups=4)).lease.groups == 4


async def test_a_lease_of_a_forgotten_step_no_longer_reserves_escrow(make_run: MakeRun) -> None:
    run = make_run(run_kept_steps=1, run_slots_per_node=1)
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    run.chain.stake = 400  # two groups
    assert (await run.lease(key, groups=2)).lease.groups == 2
    await run.publish(5)
    await run.sync.round()
    assert (await run.lease(key, step=5, groups=2)).lease.groups == 2
