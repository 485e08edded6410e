"""Slot leasing over the API: eligible nodes, content of a lease, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from protocol.identity.keys import Key
from tests.kit.memory_run_ledger import MAIN, RunUnderTest, sha
from tests.kit.runs import MakeRun


def problem(answer: Any) -> tuple[int, str, str]:
    body = answer.json()
    return answer.status_code, body["code"], body["detail"]


async def _money(run: RunUnderTest, **change: Any) -> None:
    run.chain.money = replace(run.chain.money, **change)
    await run.pool.clock.turn(timedelta(seconds=11))
    await run.sync.round()


async def _stake(run: RunUnderTest, amount: int) -> None:
    run.chain.stake = amount


async def _end_membership(run: RunUnderTest, key: Key) -> None:
    del run.chain.memberships[key.address]


async def test_a_member_leases_a_slot_signed_by_the_pools_key(run: RunUnderTest) -> None:
    key = await run.member()
    step = await run.step(key)
    assert (step.step, step.need, step.reason, step.run_id) == (0, 8, "", MAIN)
    grant = await run.lease(key)
    lease = grant.lease
    assert lease.lease.signer(lease.raw_signature, run.chain.domain) == run.pool.dependencies.key.address
    assert (lease.node, lease.step, lease.index, lease.groups, lease.max_units) == (key.address, 0, 0, 4, 400)
    assert (await run.step(key)).need == 4


async def test_the_beacon_is_the_later_block_of_announcement_and_joining(run: RunUnderTest) -> None:
    announced = run.chain.versions[0].block
    key = await run.member()
    joined = run.chain.memberships[key.address].block
    assert joined > announced
    grant = await run.lease(key)
    assert (grant.lease.beacon_block, grant.beacon) == (joined, sha(joined))
    await run.publish(1)
    later = await run.lease(key, step=1)
    assert later.lease.beacon_block == run.chain.versions[1].block > joined


async def test_no_slot_is_leased_before_the_beacon_block_is_confirmed(run: RunUnderTest) -> None:
    run.chain.confirmations = 3
    key = await run.member()
    status, code, detail = problem(await run.ask(key))
    assert (status, code) == (409, "no-slot")
    assert "is not confirmed yet" in detail
    run.chain.head += 3
    assert (await run.lease(key)).lease.index == 0


async def test_a_repeated_request_returns_the_same_slot(run: RunUnderTest) -> None:
    key = await run.member()
    first = await run.ask(key, request="a" * 32)
    assert (await run.ask(key, request="a" * 32)).json() == first.json()
    assert (await run.view())["leased"] == 4
    assert (await run.ask(key, request="b" * 32)).json()["lease"]["index"] == 1


async def test_a_repeated_request_for_a_finished_slot_gets_no_new_slot(run: RunUnderTest) -> None:
    key = await run.member()
    await run.ask(key, request="a" * 32)
    await run.pool.send(key, "/v1/slots/release", {"slots": [{"step": 0, "index": 0}]})
    assert problem(await run.ask(key, request="a" * 32))[1] == "no-slot"


async def test_slot_indices_are_per_node_and_never_reused(run: RunUnderTest) -> None:
    first, second = await run.member(), await run.member()
    assert [(await run.lease(first, groups=1)).lease.index for _ in range(2)] == [0, 1]
    assert (await run.lease(second, groups=1)).lease.index == 0
    await run.pool.send(first, "/v1/slots/release", {"slots": [{"step": 0, "index": 1}]})
    assert (await run.lease(first, groups=1)).lease.index == 2


async def test_a_slot_is_bounded_by_the_steps_need_and_the_pools_limit(make_run: MakeRun) -> None:
    run = make_run(run_groups_per_slot=6)
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    assert (await run.lease(key, groups=100)).lease.groups == 6
    assert (await run.lease(key, groups=100)).lease.groups == 2
    assert "has all the rollouts that it needs" in problem(await run.ask(key))[2]
    assert (await run.step(key)).step == 1


@pytest.mark.parametrize(
    ("change", "step", "status", "code", "words"),
    [
        (lambda run, key: run.demand(0, 0, closed=True), 0, 409, "no-slot", "step 0 is closed"),
        (None, 3, 409, "no-slot", "too far ahead of version 0"),
        (None, 1, 409, "no-slot", "step 0 needs rollouts before step 1"),
        (lambda run, key: run.pool.owner("POST", f"/v1/nodes/{key.address}/drain"), 0, 403, "not-active", "draining"),
        (lambda run, key: run.pool.owner("POST", f"/v1/nodes/{key.address}/ban"), 0, 403, "not-active", "banned"),
        (lambda run, key: _money(run, free=399), 0, 200, "", ""),
        (lambda run, key: _money(run, free=100), 0, 200, "", ""),
        (lambda run, key: _money(run, free=99), 0, 409, "no-slot", "escrow can't pay"),
        (lambda run, key: _money(run, active=False), 0, 409, "no-slot", "not active on the ledger"),
        (lambda run, key: _stake(run, 199), 0, 409, "no-slot", "does not cover more open work"),
        (lambda run, key: _stake(run, 200), 0, 200, "", ""),
        (_end_membership, 0, 403, "not-a-member", "is not a member"),
    ],
)
async def test_a_refused_slot_request_states_the_reason(
    run: RunUnderTest, change: Callable[..., Any] | None, step: int, status: int, code: str, words: str
) -> None:
    key = await run.member()
    if change is not None:
        await change(run, key)
    answer = await run.ask(key, step=step)
    assert answer.status_code == status
    if status == 200:
        assert answer.json()["lease"]["groups"] < 4, "as much as the escrow covers"
    else:
        assert problem(answer)[1] == code
        assert words in problem(answer)[2]


async def test_open_leases_reserve_escrow_and_stake_until_they_end(run: RunUnderTest) -> None:
    await _money(run, free=400)
    key = await run.member()
    await run.lease(key, groups=4)
    assert "escrow" in problem(await run.ask(key))[2]
    assert "escrow" in (await run.step(key)).reason
    await run.pool.send(key, "/v1/slots/release", {"slots": [{"step": 0, "index": 0}]})
    assert "escrow" in problem(await run.ask(key))[2], "the node still has the signed lease"
    await run.pool.clock.turn(run.leasing.terms.lease + run.leasing.terms.grace + timedelta(seconds=1))
    await run.sync.round()
    assert (await run.lease(key, groups=4)).lease.groups == 4


async def test_a_stranger_gets_no_slot_and_causes_no_chain_read(run: RunUnderTest) -> None:
    run.chain.down = True
    assert problem(await run.ask(Key.generate()))[:2] == (403, "not-active")


async def test_the_number_of_slots_per_node_is_limited(make_run: MakeRun) -> None:
    run = make_run(run_slots_per_node=2)
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    for _ in range(2):
        await run.lease(key, groups=1)
    assert "holds 2 slots already" in problem(await run.ask(key, groups=1))[2]


async def test_without_a_run_the_step_endpoint_answers_404(make_run: MakeRun) -> None:
    run = make_run()
    object.__setattr__(run.pool.dependencies, "slot_leasing", None)
    key = Key.generate()
    assert problem(await run.pool.send(key, "/v1/run/step", None, method="GET"))[:2] == (404, "no-run")


async def test_no_slot_is_leased_before_the_ledger_was_read_completely(make_run: MakeRun) -> None:
    run = make_run()
    key = await run.pool.member()
    run.chain.add_member(key.address)
    assert "has not read the ledger" in (await run.step(key)).reason
    assert "has not read the ledger" in problem(await run.ask(key))[2]


# Expired and released leases


async def test_an_expired_lease_frees_its_groups_but_not_its_index(run: RunUnderTest) -> None:
    key = await run.member()
    await run.lease(key)
    await run.pool.clock.turn(timedelta(seconds=105))
    await run.sync.round()
    assert (await run.view())["leased"] == 4, "its work may still be found on the ledger"
    await run.pool.clock.turn(timedelta(seconds=10))
    await run.sync.round()
    assert (await run.view())["leased"] == 0
    await run.pool.beat(key)
    assert (await run.lease(key)).lease.index == 1
    mine = (await run.pool.send(key, "/v1/nodes/me/leases", None, method="GET")).json()
    assert [each["state"] for each in mine["leases"]] == ["live", "undelivered"]
    assert (mine["delivered"], mine["undelivered"], mine["resting_until_ms"]) == (0, 1, None)
    assert await run.pool.owner("GET", f"/v1/nodes/{key.address}/leases") == mine


async def test_no_slot_counts_as_undelivered_while_the_chain_is_down(run: RunUnderTest) -> None:
    key = await run.member()
    grant = await run.lease(key)
    run.submit_alone(grant, file=1, units=7)
    run.chain.down = True
    await run.pool.clock.turn(timedelta(seconds=500))
    with pytest.raises(Exception, match="the chain is down"):
        await run.sync.round()
    run.chain.down = False
    await run.sync.round()
    assert (await run.view())["pending"] == 4
    assert (await run.pool.owner("GET", f"/v1/nodes/{key.address}/leases"))["delivered"] == 1


async def test_a_lease_that_expires_during_a_ledger_read_is_decided_at_the_next_read(
    run: RunUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await run.member()
    grant = await run.lease(key)
    read = run.chain.events

    async def slowly() -> Any:
        found = await read()
        run.submit_alone(grant, file=1, units=7)  # submitted in time, but after this read
        await run.pool.clock.turn(timedelta(seconds=500))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(run.chain, "events", slowly)
        await run.sync.round()
    assert (await run.view())["leased"] == 4
    await run.sync.round()
    assert (await run.view())["pending"] == 4


async def test_throttling_begins_at_the_leases_expiry_whenever_it_is_noticed(make_run: MakeRun) -> None:
    run = make_run(run_delivery_least=1, run_throttle_pause_s=300)
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    expiry = (await run.lease(key)).lease.expiry
    await run.pool.clock.turn(timedelta(seconds=250))
    await run.sync.round()
    told = await run.pool.owner("GET", f"/v1/nodes/{key.address}/leases")
    assert told["resting_until_ms"] == (expiry + 300) * 1000


async def test_a_node_with_a_low_delivery_rate_is_throttled_and_then_put_on_probation(make_run: MakeRun) -> None:
    run = make_run(run_delivery_window=2, run_delivery_least=2, run_throttle_pause_s=300, run_slots_per_node=2)
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    for index in range(2):
        await run.lease(key, groups=1)
        await run.pool.send(key, "/v1/slots/release", {"slots": [{"step": 0, "index": index}]})
    status, code, detail = problem(await run.ask(key))
    assert (status, code) == (409, "no-slot")
    assert "no slots for another 300 s" in detail
    await run.pool.clock.turn(timedelta(seconds=301))
    await run.pool.beat(key)
    assert (await run.lease(key, groups=1)).lease.index == 2
    assert "one slot at a time" in problem(await run.ask(key, groups=1))[2]


async def test_a_node_that_submits_at_the_last_moment_repeatedly_is_throttled(make_run: MakeRun) -> None:
    run = make_run(run_delivery_least=2, run_grace_s=1)
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    for _ in range(2):
        grant = await run.lease(key, groups=8)
        await run.pool.clock.turn(timedelta(seconds=99.5))
        await run.pool.beat(key)
        await run.hand_in(key, run.signed(key, grant))
        await run.pool.clock.turn(timedelta(seconds=5))
        await run.relayer.round()
        await run.sync.round()
    assert run.chain.batches == []
    assert "no slots for another" in problem(await run.ask(key))[2]


async def test_a_node_cannot_release_another_nodes_slot_or_a_delivered_one(run: RunUnderTest) -> None:
    key, other = await run.member(), await run.member()
    grant = await run.lease(key)
    await run.delivered(key, grant)
    for who in (key, other):
        answer = await run.pool.send(who, "/v1/slots/release", {"slots": [{"step": 0, "index": 0}]})
        assert answer.status_code == 200
    assert (await run.view())["pending"] == 4
