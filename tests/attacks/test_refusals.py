"""Attacks that other services stop before the validator's checks (docs/attacks.md)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from cli.devnet.attacks.attack import End
from cli.devnet.attacks.deliveries import SwappedUpload
from cli.devnet.attacks.registry import ATTACKS
from cli.devnet.attacks.slots import FUTURE, STALE, OtherStep
from cli.devnet.options import RunOptions
from ledger.client.work import WorkStatus
from ledger.errors import TransactionReverted
from orchestrator.domain.steps import Window
from protocol.wire.leases import SignedLease, SignedWorkClaim
from protocol.wire.slots import SlotGrant
from tests.attacks.stage import Stage, on_stage
from tests.kit.chain import development_chain, development_process
from tests.kit.memory_run_ledger import RunUnderTest
from tests.kit.runs import MakeRun, make_run
from tests.kit.world import POOL, TERMS, World, founded, world
from trainer.run.gathering.asynchrony import AsynchronyName

__all__ = ["development_chain", "development_process", "founded", "make_run", "world"]

_A_MOMENT = timedelta(seconds=1)
MOST_GHOSTS = 12


@pytest.fixture
async def stage(world: World, redis_url: str, tmp_path: Path) -> AsyncIterator[Stage]:
    async with on_stage(world, redis_url, tmp_path) as made:
        yield made


async def submitted(stage: Stage, work: SignedWorkClaim) -> WorkStatus | None:
    """Returns the state of the node's work on the ledger."""
    found = await (await stage.world.as_("owner")).work.get(work.lease.lease.key.hash)
    return None if found is None else found.status


async def test_a_file_swapped_after_signing_is_refused_and_not_stored(stage: Stage) -> None:
    grant = await stage.run.lease(stage.key, groups=2)
    stage.hand_over(grant)
    waiting = await stage.deliver(SwappedUpload)
    assert waiting is not None
    assert "announced was" in waiting.error
    assert stage.objects() == []
    assert await submitted(stage, stage.run.signed(stage.key, grant)) is None


async def test_work_without_a_file_is_not_relayed_and_expires_unpaid_if_submitted_directly(stage: Stage) -> None:
    grant = await stage.run.lease(stage.key, groups=2)
    work = stage.run.signed(stage.key, grant)
    answer = await stage.run.hand_in(stage.key, work, uploaded=False)
    assert (answer.status_code, answer.json()["code"]) == (409, "no-file")
    assert await stage.run.relayer.round() == 0
    assert await submitted(stage, work) is None
    # With its own gas the node needs no relayer. Then no validator can judge the work, and none needs to.
    ledger = await stage.world.as_("owner")
    provider = stage.world.keys["provider"].address
    await (await stage.world.as_("node")).work.submit(work.lease, sha256=work.sha256, units=work.units)
    before = await ledger.stake.of(provider)
    await stage.world.warp(TERMS.judge_period + _A_MOMENT)
    key = work.lease.lease.key.hash
    await ledger.work.expire([key])
    assert await submitted(stage, work) is WorkStatus.EXPIRED
    assert await ledger.work.accrued(POOL, provider) == 0
    assert (await ledger.pools.escrow(POOL)).reserved == 0
    assert (await ledger.stake.of(provider)).active == before.active


async def test_a_ghost_submission_does_not_occupy_its_step_and_the_node_is_throttled(
    world: World, redis_url: str, tmp_path: Path
) -> None:
    async with on_stage(world, redis_url, tmp_path) as stage:
        before = (await stage.run.step(stage.key)).need
        for number in range(MOST_GHOSTS):
            answer = await stage.run.ask(stage.key, groups=2)
            if answer.status_code != 200:
                break
            grant = SlotGrant.model_validate_json(answer.content)
            stage.hand_over(grant, content=b"never uploaded" + bytes([number]))
            await stage.deliver(ATTACKS["ghost"].delivery)
            await stage.run.sync.round()
            assert await submitted(stage, stage.run.signed(stage.key, grant)) is WorkStatus.SUBMITTED
            assert (await stage.run.step(stage.key)).need == before, "other nodes can lease its groups at once"
        assert (answer.status_code, answer.json()["code"]) == (409, "no-slot")
        assert "no slots for another" in answer.json()["detail"]
        assert stage.objects() == []


async def test_a_late_upload_arrives_after_its_submission(stage: Stage) -> None:
    grant = await stage.run.lease(stage.key, groups=2)
    stage.hand_over(grant)
    waiting = await stage.deliver(ATTACKS["late-upload"].delivery)
    assert waiting is not None
    assert "may not be public yet" in waiting.error
    assert await submitted(stage, stage.run.signed(stage.key, grant)) is WorkStatus.SUBMITTED
    assert stage.objects() == []
    await stage.run.sync.round()
    assert (await stage.run.step(stage.key)).need > 0


async def test_an_upload_without_a_lease_is_refused_by_the_store(stage: Stage) -> None:
    grant = await stage.run.lease(stage.key, groups=2)
    stage.hand_over(grant)
    waiting = await stage.deliver(ATTACKS["unleased-upload"].delivery)
    assert waiting is not None
    assert "room" not in waiting.error
    assert stage.objects() == []
    assert await submitted(stage, stage.run.signed(stage.key, grant)) is None


async def test_a_banned_node_gets_no_slots_but_its_earlier_lease_is_still_accepted(stage: Stage) -> None:
    grant = await stage.run.lease(stage.key, groups=2)
    await (await stage.world.as_("manager")).pools.ban(POOL, stage.key.address, "seen cheating")
    stage.hand_over(grant)
    assert await stage.deliver(ATTACKS["banned-in-between"].delivery, rounds=2) is None
    key = grant.lease.lease.key.hash
    assert await (await stage.world.as_("owner")).work.get(key) is not None
    await stage.run.sync.round()
    answer = await stage.run.ask(stage.key, groups=2)
    assert answer.status_code in {403, 409}


async def test_a_lease_longer_than_the_notice_period_is_refused_after_a_ban(stage: Stage) -> None:
    item = await stage.world.submission(index=77)
    ends = int((await (await stage.world.as_("owner")).now()).timestamp())
    later = replace(item.lease.lease, expiry=ends + int(TERMS.notice_period.total_seconds()) + 600)
    await (await stage.world.as_("manager")).pools.ban(POOL, stage.key.address, "seen cheating")
    key, domain = stage.world.keys["orchestrator"], (await stage.world.as_("owner")).work.domain
    signed = SignedLease.of(later, domain=domain, signature=later.sign(key, domain))
    with pytest.raises(TransactionReverted, match="NotMember"):
        await (await stage.world.as_("node")).work.submit(signed, sha256=item.sha256, units=item.units)


async def test_a_lease_admits_one_file_and_no_more_units_than_it_allows(stage: Stage) -> None:
    one, other = [await stage.run.lease(stage.key, groups=2) for _ in range(2)]
    first, second = (stage.run.signed(stage.key, one, file=file) for file in (1, 2))
    inflated = stage.run.signed(stage.key, other, units=other.lease.max_units + 1)
    carrier = await stage.world.as_("orchestrator")
    refused = await carrier.work.submit_batch([first, second, inflated])
    assert [each.reason.partition("(")[0] for each in refused] == ["WorkExists", "UnitsOutOfRange"]


@pytest.mark.parametrize(("by", "words"), [(FUTURE, "too far ahead"), (STALE, "step 0 is closed")])
async def test_a_finished_step_and_a_future_step_have_no_slots(by: int, words: str, make_run: MakeRun) -> None:
    run = await running(make_run())
    key = await run.member()
    await run.demand(0, 0, closed=True)
    answer = await run.ask(key, step=OtherStep(by).wish(-STALE))
    assert (answer.status_code, answer.json()["code"]) == (409, "no-slot")
    assert words in answer.json()["detail"]


def test_the_stale_node_requests_a_far_future_step_until_a_step_is_over() -> None:
    assert [OtherStep(STALE).wish(step) for step in (0, 8, 9, 12)] == [1000, 1008, 0, 3]


@pytest.mark.parametrize("asynchrony", list(AsynchronyName))
def test_the_stale_node_requests_a_finished_step_at_every_devnet_asynchrony(asynchrony: AsynchronyName) -> None:
    newest = 20
    window = Window.of(floor=0, version=newest, async_level=RunOptions(asynchrony=asynchrony.value).async_level)
    assert OtherStep(STALE).wish(window.last) < window.first


async def test_a_node_that_delivers_one_slot_in_four_is_throttled(make_run: MakeRun) -> None:
    run = await running(make_run(run_delivery_least=4, run_throttle_pause_s=300, run_slots_per_node=2))
    await run.demand(0, 100)
    key = await run.member()
    for number in range(4):
        grant = await run.lease(key, groups=1)
        if number:
            await run.pool.send(key, "/v1/slots/release", {"slots": [{"step": 0, "index": grant.lease.index}]})
        else:
            await run.delivered(key, grant, file=number)
    answer = await run.ask(key, groups=1)
    assert answer.status_code == 409
    assert "no slots for another" in answer.json()["detail"]


async def running(run: RunUnderTest) -> RunUnderTest:
    await run.sync.round()
    await run.publish(0)
    return run


def test_every_attack_declares_its_end_and_its_reason_codes() -> None:
    for name, cheat in ATTACKS.items():
        assert name == cheat.name
        assert bool(cheat.reasons) == (cheat.end in {End.SLASHED, End.UNPAID}), name
        assert all(reason.may_be_forgery for reason in cheat.reasons)
