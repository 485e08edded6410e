"""Effects of ledger events on a run: submissions, verdicts, reorgs, and a loss of Redis."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ledger.events.types import MemberJoined
from orchestrator.domain.slots import SlotEvent
from protocol.http.client import RequestSigner
from protocol.identity.keys import Key
from protocol.verdicts import Outcome
from tests.kit.memory_ledger import PROVIDER
from tests.kit.memory_run_ledger import PUBLISHER, VALIDATOR, RunUnderTest, sha
from tests.kit.runs import MakeRun


async def delivered(run: RunUnderTest, *, step: int = 0, groups: int = 4, file: int = 1) -> tuple[Key, str]:
    key = await run.member()
    grant = await run.lease(key, step=step, groups=groups)
    return key, await run.delivered(key, grant, file=file)


async def test_verdicts_move_a_slots_groups_to_accepted_and_rejected(run: RunUnderTest) -> None:
    (first, good), (second, bad) = await delivered(run), await delivered(run)
    run.chain.happen(good, first.address, SlotEvent.JUDGED, Outcome.ACCEPTED)
    run.chain.happen(bad, second.address, SlotEvent.JUDGED, Outcome.FORGED)
    await run.sync.round()
    view = await run.view()
    assert (view["accepted"], view["rejected"], view["pending"], view["need"]) == (4, 4, 0, 4)
    [accepted], [rejected] = await run.rollouts(), await run.rollouts(status="rejected")
    assert (accepted["node"], accepted["status"], accepted["outcome"]) == (first.address, "provisional", 1)
    assert (rejected["node"], rejected["outcome"]) == (second.address, 3)


async def test_the_step_advances_when_complete_and_returns_when_work_is_rejected(run: RunUnderTest) -> None:
    key, work = await delivered(run, groups=8)
    other = await run.member()
    assert (await run.step(other)).step == 1
    run.chain.happen(work, key.address, SlotEvent.JUDGED, Outcome.REJECTED)
    await run.sync.round()
    assert ((await run.step(other)).step, (await run.step(other)).need) == (0, 8)


async def test_an_overturned_verdict_counts_as_its_final_outcome(run: RunUnderTest) -> None:
    key, work = await delivered(run)
    for what, outcome in (
        (SlotEvent.JUDGED, Outcome.FORGED),
        (SlotEvent.DISPUTED, None),
        (SlotEvent.DECIDED, Outcome.ACCEPTED),
        (SlotEvent.FINAL, Outcome.ACCEPTED),
    ):
        run.chain.happen(work, key.address, what, outcome)
    await run.sync.round()
    view = await run.view()
    assert (view["accepted"], view["rejected"]) == (4, 0)
    assert (await run.rollouts())[0]["status"] == "final"


async def test_work_without_a_timely_verdict_stops_counting_until_the_verdict_comes(run: RunUnderTest) -> None:
    key, work = await delivered(run)
    await run.pool.clock.turn(timedelta(seconds=901))
    await run.sync.round()
    assert ((await run.view())["pending"], (await run.view())["need"]) == (0, 8)
    run.chain.happen(work, key.address, SlotEvent.JUDGED, Outcome.ACCEPTED)
    await run.sync.round()
    assert (await run.view())["accepted"] == 4


async def test_a_late_submission_no_longer_counts_as_undelivered(run: RunUnderTest) -> None:
    key = await run.member()
    grant = await run.lease(key)
    await run.pool.clock.turn(timedelta(seconds=120))
    await run.sync.round()
    run.submit_alone(grant, file=1, units=7)  # mined before the lease's end and read late
    await run.sync.round()
    assert (await run.view())["pending"] == 4
    assert (await run.pool.owner("GET", f"/v1/nodes/{key.address}/leases"))["delivered"] == 1


async def test_no_step_waits_for_work_of_a_former_member(run: RunUnderTest) -> None:
    key, stays = await run.member(), await run.member()
    await run.lease(key)
    await run.lease(stays)
    run.chain.remove_member(key.address, held_until=0)
    run.chain.emit(MemberJoined, node=stays.address, provider=PROVIDER.address, nonce=1, stake_lock=0)
    await run.sync.round()
    assert (await run.view())["leased"] == 4, "the other's value remains"


async def test_a_submission_removed_by_a_reorg_becomes_a_lease_again(run: RunUnderTest) -> None:
    key = await run.member()
    grant = await run.lease(key)
    work = await run.delivered(key, grant)
    run.chain.take_back(work)
    await run.sync.round()
    view = await run.view()
    assert (view["leased"], view["pending"]) == (4, 0)
    run.submit_alone(grant, file=2, units=9)
    await run.sync.round()
    [item] = await run.rollouts(status="pending")
    assert (item["sha256"], item["units"]) == (sha(2), 9)


async def test_work_removed_by_a_reorg_is_relayed_again(run: RunUnderTest) -> None:
    key = await run.member()
    work = await run.delivered(key, await run.lease(key))
    run.chain.take_back(work)
    await run.sync.round()
    assert await run.relayer.round() == 1
    await run.sync.round()
    assert (await run.view())["pending"] == 4


async def test_work_lost_before_it_was_read_is_relayed_again_while_its_lease_lasts(
    run: RunUnderTest,
) -> None:
    key = await run.member()
    grant = await run.lease(key)
    await run.hand_in(key, run.signed(key, grant))
    await run.relayer.round()
    run.chain.works.clear()
    run.chain.happened.pop()
    await run.pool.clock.turn(timedelta(seconds=50))
    await run.sync.round()
    assert await run.relayer.round() == 1
    await run.sync.round()
    assert (await run.view())["pending"] == 4


async def test_after_a_loss_of_redis_the_run_is_restored_from_the_ledger(make_run: MakeRun) -> None:
    run = make_run(run_units_per_group=100, run_groups_per_slot=4)
    await run.sync.round()
    await run.publish(0)
    (first, good), (second, bad) = await delivered(run), await delivered(run, groups=3)
    run.chain.happen(good, first.address, SlotEvent.JUDGED, Outcome.ACCEPTED)
    await run.sync.round()
    before, listed = await run.view(), await run.rollouts(status="all")

    await run.pool.dependencies.redis.flushall()
    run.chain.read = 0
    assert "has not read the ledger" in (await run.step(first)).reason
    await run.sync.round()

    after = await run.view()
    assert after["accepted"] == before["accepted"] == 4
    assert after["pending"] == 3
    again = await run.rollouts(status="all")
    for name in ("key", "groups", "beacon_block"):
        assert {item[name] for item in again} == {item[name] for item in listed}
    run.chain.happen(bad, second.address, SlotEvent.JUDGED, Outcome.ACCEPTED)
    await run.sync.round()
    assert (await run.view())["pending"] == 0
    assert (await run.step(first)).checkpoint is not None, "restored from the ledger"
    key = await run.member()
    step = (await run.step(key)).step
    assert (await run.lease(key, step=step, groups=1)).lease.index >= 1024, "earlier leases are not leased again"


async def test_replayed_events_change_nothing(run: RunUnderTest) -> None:
    key, work = await delivered(run)
    run.chain.happen(work, key.address, SlotEvent.JUDGED, Outcome.ACCEPTED)
    run.chain.happen(work, key.address, SlotEvent.FINAL, Outcome.ACCEPTED)
    await run.sync.round()
    before = await run.view()
    run.chain.read = 0
    await run.sync.round()
    assert await run.view() == before


async def test_a_second_instance_resumes_reading_and_writes_nothing_twice(make_run: MakeRun) -> None:
    first, second = make_run(), make_run()
    await first.sync.round()
    await first.publish(0)
    key, work = await delivered(first)
    first.chain.happen(work, key.address, SlotEvent.JUDGED, Outcome.ACCEPTED)
    assert await second.sync.round() == 0, "the first instance holds the leader lease"
    await first.pool.dependencies.redis.delete(
        first.pool.dependencies.database.key("lease", "run")
    )  # the loop hung for too long
    await second.sync.round()
    assert (await second.view())["accepted"] == 4
    assert await first.sync.round() == 0


async def test_old_steps_are_deleted_with_their_data(make_run: MakeRun) -> None:
    run = make_run(run_kept_steps=1)
    await run.sync.round()
    await run.publish(0)
    await delivered(run)
    await run.demand(0, 8, closed=True)
    await run.sync.round()
    assert await run.rollouts(status="all") != []
    await run.publish(5)
    await run.sync.round()
    assert await run.rollouts(status="all") == []
    assert await run.pool.dependencies.redis.keys("*run:slot*") == []


# Versions and demand


async def test_a_version_must_be_announced_on_the_ledger_with_its_digest(run: RunUnderTest) -> None:
    announced = run.chain.announce(1)
    right = {"version": 1, "digest": announced.digest, "units_per_group": 5, "relays": ["http://relay:1"]}
    for wrong in ({"digest": sha(9)}, {"attempt": 1}, {"version": 2}):
        async with run.pool.http() as http:
            answer = await http.put(
                "/v1/run/checkpoint", json={**right, **wrong}, headers={"Authorization": f"Bearer {run.pool.token}"}
            )
        assert (answer.status_code, answer.json()["code"]) == (409, "not-announced")
    adopted = await run.pool.owner("PUT", "/v1/run/checkpoint", right)
    assert adopted["relays"] == ["http://relay:1"]
    assert adopted["publisher"] == PUBLISHER.address


async def test_the_step_tells_nodes_which_arithmetic_the_version_pays_for(run: RunUnderTest) -> None:
    await run.sync.round()
    announced = run.chain.announce(1)
    told = {"version": 1, "digest": announced.digest, "units_per_group": 5, "arithmetic": ["vllm/float32"]}
    adopted = await run.pool.owner("PUT", "/v1/run/checkpoint", told)
    assert adopted["arithmetic"] == ["vllm/float32"]
    checkpoint = (await run.step(await run.member())).checkpoint
    assert checkpoint is not None
    assert checkpoint.arithmetic == ("vllm/float32",)
    await run.publish(2)
    checkpoint = (await run.step(await run.member())).checkpoint
    assert checkpoint is not None
    assert checkpoint.arithmetic == (), "the arithmetic of one version does not apply to the next"


async def test_the_version_never_decreases(run: RunUnderTest) -> None:
    await run.publish(2)
    old = run.chain.versions[0]
    async with run.pool.http() as http:
        answer = await http.put(
            "/v1/run/checkpoint",
            json={"version": 0, "digest": old.digest, "units_per_group": 5},
            headers={"Authorization": f"Bearer {run.pool.token}"},
        )
    assert (answer.status_code, answer.json()["code"]) == (409, "checkpoint-goes-back")
    key = await run.member()
    assert (await run.step(key)).step == 2, "a version closes the steps below it"


async def test_a_version_announced_again_is_not_leased_until_the_trainer_confirms_it(run: RunUnderTest) -> None:
    key = await run.member()
    run.chain.announce(0, attempt=1)
    await run.sync.round()
    assert "announced anew" in (await run.step(key)).reason
    assert (await run.ask(key)).json()["code"] == "no-slot"
    await run.publish(0, attempt=2)
    assert (await run.lease(key)).lease.digest == run.chain.versions[0].digest


async def test_after_the_maximum_of_demand_raises_the_step_closes(make_run: MakeRun) -> None:
    run = make_run(run_max_rounds=2)
    await run.sync.round()
    await run.publish(0)
    answers = [await run.demand(0, groups) for groups in (4, 4, 3, 6, 8, 10)]
    told = [(each["demand"], each["rounds"], each["closed"]) for each in answers]
    assert told == [(4, 0, False), (4, 0, False), (4, 0, False), (6, 1, False), (8, 2, False), (8, 2, True)]
    assert (await run.step(await run.member())).step == 1
    assert (await run.demand(0, 99))["demand"] == 8, "a closed step stays closed"


async def test_a_step_closed_early_still_accepts_leased_work(run: RunUnderTest) -> None:
    key = await run.member()
    grant = await run.lease(key)
    await run.demand(0, 0, closed=True)
    work = await run.delivered(key, grant)
    run.chain.happen(work, key.address, SlotEvent.JUDGED, Outcome.ACCEPTED)
    await run.sync.round()
    assert [item["key"] for item in await run.rollouts(step="0")] == [work]


async def test_a_step_that_has_not_begun_cannot_be_closed_by_accident(run: RunUnderTest) -> None:
    async with run.pool.http() as http:
        body, token = {"step": 30, "groups": 0, "closed": True}, {"Authorization": f"Bearer {run.pool.token}"}
        answer = await http.put("/v1/run/demand", json=body, headers=token)
    assert (answer.status_code, answer.json()["code"]) == (409, "step-not-begun")
    assert (await run.step(await run.member())).need == 8


async def test_no_slots_are_leased_beyond_the_async_window(run: RunUnderTest) -> None:
    key = await run.member()
    await run.demand(2, 0, closed=True)
    step = await run.step(key)
    assert (step.need, step.step) == (0, 3)
    assert "need version 1" in step.reason
    await run.publish(1)
    assert ((await run.step(key)).step, (await run.step(key)).need) == (3, 8), "a closed step stays closed"


@pytest.mark.parametrize(
    ("who", "reads", "steers"),
    [(PUBLISHER, 200, 200), (VALIDATOR, 200, 403), (Key.generate(), 403, 403)],
    ids=["publisher", "validator", "stranger"],
)
async def test_run_endpoints_require_the_role_for_reading_or_for_control(
    run: RunUnderTest, who: Key, reads: int, steers: int
) -> None:
    signer = RequestSigner(who, audience=run.pool.dependencies.key.address, clock=run.pool.clock)
    async with run.pool.http(signer) as http:
        assert (await http.get("/v1/run/rollouts")).status_code == reads
        assert (await http.put("/v1/run/demand", json={"step": 0, "groups": 9})).status_code == steers


async def test_rollouts_are_listed_in_lease_order_in_pages(make_run: MakeRun) -> None:
    run = make_run(run_slots_per_node=8)
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    for step in (0, 1):
        await run.demand(step, 3)
        grants = []
        for _ in range(3):
            grants.append(await run.lease(key, step=step, groups=1))
            await run.pool.clock.turn(timedelta(seconds=2))
        for number, grant in enumerate(reversed(grants)):
            await run.delivered(key, grant, file=number + 1)
    found, cursor, pages = [], "", 0
    while pages < 20:
        page = await run.pool.owner("GET", f"/v1/run/rollouts?status=all&limit=2{cursor}")
        found += [(item["step"], item["index"]) for item in page["items"]]
        pages += 1
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert found == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
