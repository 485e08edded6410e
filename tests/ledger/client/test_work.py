"""Work from the lease to the payment, through the typed client on a real chain."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ledger.amounts import UNIT
from ledger.client.audits import commitment_of
from ledger.client.work import Verdict, WorkStatus
from ledger.errors import TransactionReverted
from ledger.events.types import (
    CheckpointAnnounced,
    DisputeLost,
    SecretRevealed,
    Slashed,
    VerdictConfirmed,
    WorkFinal,
    WorkSubmitted,
)
from ledger.version_needs import CLOCKS_DIFFER, VersionNeeds
from protocol.identifiers import ZERO_ADDRESS, ZERO_DIGEST, Digest, run_id
from protocol.leases import Dispute
from protocol.runtime.clock import ManualClock
from protocol.verdicts import Outcome, ReasonCode
from tests.kit.verdicts import AUDIT, verdict_on
from tests.kit.world import POOL, TERMS, World

FEE = TERMS.verdict_fee
RESERVED = 100 * TERMS.price_per_unit + TERMS.reserved_fees
REWARD = 100 * TERMS.price_per_unit
PENALTY = 100 * TERMS.penalty_per_unit
SECOND = timedelta(seconds=1)


async def test_undisputed_accepted_work_is_paid_after_the_challenge_window(world: World) -> None:
    await world.member()
    key = await world.submitted()
    provider, validator = await world.as_("provider"), await world.as_("validator")
    work = await provider.work.get(key)
    assert work is not None
    assert (work.status, work.units, work.reward, work.penalty) == (WorkStatus.SUBMITTED, 100, REWARD, PENALTY)
    assert (work.outcome, work.judge, work.disputer) == (None, None, None)
    assert (await provider.pools.escrow(POOL)).reserved == RESERVED
    assert (await provider.stake.of(provider.address)).work_lock == PENALTY
    assert await validator.work.judge([await verdict_on(validator, key, Outcome.ACCEPTED)]) == []
    await provider.work.finalize([key])
    assert await provider.work.accrued(POOL, provider.address) == 0  # the challenge period is open
    await world.warp(TERMS.challenge_period + SECOND)
    await provider.work.finalize([key])
    assert await provider.work.accrued(POOL, provider.address) == REWARD
    assert (await provider.stake.of(provider.address)).work_lock == 0
    before = await provider.token.balance_of(provider.address)
    assert await provider.work.claim([POOL], provider.address) == REWARD
    assert await provider.token.balance_of(provider.address) == before + REWARD
    totals = await provider.work.totals(POOL)
    assert (totals.accrued, totals.paid) == (REWARD + FEE, REWARD)
    assert await validator.work.accrued(POOL, validator.address) == FEE
    with pytest.raises(TransactionReverted, match="has no unclaimed rewards"):
        await provider.work.claim([POOL], provider.address)


async def test_forged_work_costs_stake_and_the_membership(world: World) -> None:
    await world.member()
    key = await world.submitted()
    validator, provider = await world.as_("validator"), world.keys["provider"].address
    supply = await validator.token.total_supply()
    other_model = ReasonCode.COMPUTATION_OTHER_MODEL
    await validator.work.judge([await verdict_on(validator, key, Outcome.FORGED, reason=other_model)])
    assert (await validator.stake.of(provider)).active == 100 * UNIT  # not before the work is final
    await world.warp(TERMS.challenge_period + SECOND)
    await validator.work.finalize([key])
    work = await validator.work.get(key)
    assert work is not None
    assert (work.status, work.outcome, work.reason) == (
        WorkStatus.FINAL,
        Outcome.FORGED,
        ReasonCode.COMPUTATION_OTHER_MODEL,
    )
    assert (await validator.stake.of(provider)).active == 100 * UNIT - PENALTY
    # the domain has no reserve, so the penalty is burned
    assert await validator.token.total_supply() == supply - PENALTY
    assert await validator.pools.membership(POOL, world.keys["node"].address) is None
    assert (await validator.pools.escrow(POOL)).free == 100 * UNIT - FEE
    (slashed,) = await validator.history(Slashed)
    assert (slashed.provider, slashed.recipient, slashed.taken) == (provider, None, PENALTY)


async def test_rejected_work_is_unpaid_and_costs_nothing(world: World) -> None:
    await world.member()
    key = await world.submitted()
    validator = await world.as_("validator")
    await validator.work.judge([await verdict_on(validator, key, Outcome.REJECTED)])
    await world.warp(TERMS.challenge_period + SECOND)
    await validator.work.finalize([key])
    (final,) = await validator.history(WorkFinal, pool_id=POOL)
    assert (final.outcome, final.paid, final.slashed) == (Outcome.REJECTED, 0, 0)
    assert await validator.pools.membership(POOL, world.keys["node"].address) is not None


async def test_a_node_disputes_and_a_second_validator_decides_in_its_favour(world: World) -> None:
    await world.member()
    key = await world.submitted()
    first, second = await world.as_("validator"), await world.as_("second")
    await first.work.judge([await verdict_on(first, key, Outcome.FORGED)])
    carrier, node = await world.as_("owner"), world.keys["node"]
    deadline = await carrier.now() + timedelta(minutes=5)
    word = Dispute(key=key, evidence_hash=ZERO_DIGEST, deadline=int(deadline.timestamp()))
    await carrier.work.dispute(key, ZERO_DIGEST, deadline=deadline, node_signature=word.sign(node, carrier.work.domain))
    (refused,) = await first.work.judge([await verdict_on(first, key, Outcome.FORGED, decisive=True)])
    assert refused.reason.startswith("ConflictOfInterest")
    # the block hash that decides the order is not readable yet
    assert await second.work.turn_of(key, second.address) is None
    await second.work.draw_juries([key])
    await second.work.draw_juries([key])
    assert await first.work.turn_of(key, first.address) is None
    third = await world.as_("third")
    turns = {each: await each.work.turn_of(key, each.address) for each in (second, third)}
    disputed = await second.work.get(key)
    assert disputed is not None
    opens = sorted(turn for turn in turns.values() if turn)
    assert opens == [disputed.since, disputed.since + TERMS.dispute_period / 3]
    second = next(each for each, turn in turns.items() if turn == opens[0])
    assert await second.work.judge([await verdict_on(second, key, Outcome.ACCEPTED, decisive=True)]) == []
    work = await second.work.get(key)
    assert work is not None
    assert (work.status, work.outcome, work.disputer) == (WorkStatus.FINAL, Outcome.ACCEPTED, node.address)
    assert await second.work.accrued(POOL, world.keys["provider"].address) == REWARD


async def test_a_late_first_verdict_does_not_decide_a_dispute(world: World) -> None:
    """The validator never learned of the dispute; only the verdict itself can tell the two apart."""
    await world.member()
    key = await world.submitted()
    first, second, third = [await world.as_(name) for name in ("validator", "second", "third")]
    late = await verdict_on(second, key, Outcome.ACCEPTED)
    await first.work.judge([await verdict_on(first, key, Outcome.FORGED)])
    await third.work.dispute(key, ZERO_DIGEST)
    other = await world.submitted(index=1)
    (refused,) = await second.work.judge([late, await verdict_on(second, other, Outcome.REJECTED)])
    assert (refused.subject, refused.reason.partition("(")[0]) == (key, "WrongStatus")
    works = [await second.work.get(each) for each in (key, other)]
    assert [(work.status, work.outcome) for work in works if work is not None] == [
        (WorkStatus.DISPUTED, Outcome.FORGED),
        (WorkStatus.PROVISIONAL, Outcome.REJECTED),
    ]


@pytest.mark.parametrize("wrong", [{"sha256": Digest("0x" + "ee" * 32)}, {"units": 99}], ids=["file", "units"])
async def test_a_verdict_on_a_replaced_submission_is_refused(world: World, wrong: dict[str, Any]) -> None:
    await world.member()
    key = await world.submitted()
    validator = await world.as_("validator")
    right = await verdict_on(validator, key, Outcome.ACCEPTED)
    (refused,) = await validator.work.judge([replace(right, **wrong)])
    assert refused.reason.startswith("OtherSubmission")
    assert await validator.work.judge([right]) == []


async def test_a_validator_disputes_an_acceptance_and_a_third_validator_decides(world: World) -> None:
    await world.member()
    key = await world.submitted()
    first, second, third = [await world.as_(name) for name in ("validator", "second", "third")]
    await first.work.judge([await verdict_on(first, key, Outcome.ACCEPTED)])
    await second.work.dispute(key, ZERO_DIGEST)
    (refused,) = await second.work.judge([await verdict_on(second, key, Outcome.FORGED, decisive=True)])
    assert refused.reason.startswith("ConflictOfInterest")
    await third.work.draw_juries([key])
    await third.work.judge([await verdict_on(third, key, Outcome.FORGED, decisive=True)])
    assert (await second.stake.of(world.keys["provider"].address)).active == 100 * UNIT - PENALTY


async def test_a_confirming_second_look_is_recorded_and_paid(world: World) -> None:
    await world.member()
    owner = await world.as_("owner")
    await owner.pools.set_terms(POOL, replace(TERMS, look_bps=10_000))
    await world.warp(TERMS.notice_period + SECOND)
    key = await world.submitted()
    first, second = await world.as_("validator"), await world.as_("second")
    await first.work.judge([await verdict_on(first, key, Outcome.ACCEPTED)])
    assert not await second.work.look_wanted(key)  # the block that decides the draw is not mined yet
    await world.warp(SECOND)
    await world.warp(SECOND)
    assert await second.work.look_wanted(key)
    work = await second.work.get(key)
    assert work is not None
    look = Verdict(key=key, sha256=work.sha256, units=work.units, outcome=Outcome.REJECTED, reason=0)
    (refused,) = await second.work.confirm([look])
    assert refused.reason.startswith("OutcomeDiffers")
    assert await second.work.confirm([replace(look, outcome=Outcome.ACCEPTED)]) == []
    (confirmed,) = await second.history(VerdictConfirmed, pool_id=POOL)
    assert (confirmed.validator, confirmed.key) == (second.address, key)
    await world.warp(TERMS.challenge_period + SECOND)
    await first.work.finalize([key])
    assert [await first.work.accrued(POOL, each.address) for each in (first, second)] == [FEE, FEE]


@pytest.mark.parametrize(("first", "paid"), [(Outcome.FORGED, 0), (Outcome.REJECTED, 0), (Outcome.ACCEPTED, REWARD)])
async def test_without_a_second_verdict_the_first_one_stands_and_the_penalty_is_released(
    world: World, first: Outcome, paid: int
) -> None:
    await world.member()
    key = await world.submitted()
    judge = await world.as_("validator")
    await judge.work.judge([await verdict_on(judge, key, first)])
    second, provider = await world.as_("second"), world.keys["provider"].address
    await second.work.dispute(key, ZERO_DIGEST)
    await world.warp(TERMS.dispute_period + SECOND)
    await second.work.finalize([key])
    assert await second.work.accrued(POOL, provider) == paid
    stake = await second.stake.of(provider)
    assert (stake.active, stake.work_lock) == (100 * UNIT, 0)
    assert await second.pools.membership(POOL, world.keys["node"].address) is not None


async def test_a_lost_dispute_of_a_rejection_costs_the_announced_amount(world: World) -> None:
    await world.member()
    key, provider = await world.submitted(), await world.as_("provider")
    first, second = await world.as_("validator"), await world.as_("second")
    await first.work.judge([await verdict_on(first, key, Outcome.REJECTED)])
    await provider.work.dispute(key, ZERO_DIGEST)
    work = await provider.work.get(key)
    assert work is not None
    assert work.lost_dispute_cost == work.penalty // 10 > 0
    await world.warp(TERMS.dispute_period / 2)
    assert await second.work.judge([await verdict_on(second, key, Outcome.REJECTED, decisive=True)]) == []
    (lost,) = await second.history(DisputeLost, pool_id=POOL)
    assert (lost.key, lost.taken) == (key, work.lost_dispute_cost)
    stake = await second.stake.of(world.keys["provider"].address)
    assert (stake.active, stake.work_lock) == (100 * UNIT - work.lost_dispute_cost, 0)


async def test_work_without_a_verdict_expires_without_blame(world: World) -> None:
    await world.member()
    key = await world.submitted()
    anybody = await world.as_("owner")
    await anybody.work.expire([key])
    await world.warp(TERMS.judge_period + SECOND)
    late = await world.as_("validator")
    (refused,) = await late.work.judge([await verdict_on(late, key, Outcome.FORGED)])
    assert refused.reason.startswith("TooLate")
    await anybody.work.expire([key])
    work = await anybody.work.get(key)
    assert work is not None
    assert work.status is WorkStatus.EXPIRED
    assert (await anybody.stake.of(world.keys["provider"].address)).work_lock == 0
    assert (await anybody.pools.escrow(POOL)).reserved == 0


async def test_a_lease_is_valid_once_and_a_batch_reports_refused_items(world: World) -> None:
    await world.member()
    good, other = await world.submission(index=0), await world.submission(index=1)
    forged = await world.submission(index=2, signer="manager")
    inflated = await world.submission(index=3, units=1001)
    carrier = await world.as_("orchestrator")
    refused = await carrier.work.submit_batch([good, good, forged, inflated, other])
    assert [refusal.reason.partition("(")[0] for refusal in refused] == [
        "WorkExists",
        "NotOrchestrator",
        "UnitsOutOfRange",
    ]
    submitted = await carrier.history(WorkSubmitted, pool_id=POOL)
    assert [event.index for event in submitted] == [0, 1]
    assert submitted[0].key == good.lease.lease.key.hash
    assert submitted[0].run == run_id("main")


async def test_a_node_with_gas_submits_its_own_work(world: World) -> None:
    await world.member()
    item = await world.submission()
    node = await world.as_("node")
    assert await node.work.submit(item.lease, sha256=item.sha256, units=item.units) == item.lease.lease.key.hash
    with pytest.raises(TransactionReverted, match="was submitted before"):
        await node.work.submit(item.lease, sha256=item.sha256, units=item.units)


async def test_unknown_work_is_returned_as_none(world: World) -> None:
    assert await (await world.as_("owner")).work.get(Digest("0x" + "11" * 32)) is None


async def test_checkpoint_announcements_only_move_forward(world: World) -> None:
    publisher, run = await world.as_("publisher"), run_id("main")
    assert await publisher.checkpoints.latest(POOL, run) is None
    one, two = Digest("0x" + "01" * 32), Digest("0x" + "02" * 32)
    await publisher.checkpoints.announce(pool_id=POOL, run=run, version=1, attempt=0, digest=one)
    await publisher.checkpoints.announce(pool_id=POOL, run=run, version=2, attempt=0, digest=one)
    await publisher.checkpoints.announce(pool_id=POOL, run=run, version=2, attempt=1, digest=two)
    latest = await publisher.checkpoints.latest(POOL, run)
    assert latest is not None
    assert (latest.version, latest.attempt, latest.digest) == (2, 1, two)
    with pytest.raises(TransactionReverted, match="version 2, attempt 1 is announced already"):
        await publisher.checkpoints.announce(pool_id=POOL, run=run, version=1, attempt=9, digest=two)
    found = await publisher.checkpoints.get(POOL, run, 1)
    assert found is not None
    assert found.digest == one
    assert await publisher.checkpoints.get(POOL, run, 3) is None
    (first, *_) = await publisher.history(CheckpointAnnounced, pool_id=POOL)
    assert (first.version, first.log.block_number) == (1, found.block)


async def test_an_audit_secret_is_committed_before_its_epoch_and_revealed_after_it(world: World) -> None:
    validator = await world.as_("validator")
    secret, me = b"\x07" * 32, validator.address
    commitment = commitment_of(pool_id=POOL, validator=me, epoch=1, secret=secret)
    await validator.audits.commit(pool_id=POOL, epoch=1, commitment=commitment)
    with pytest.raises(TransactionReverted, match="EpochNotOver"):
        await validator.audits.reveal(pool_id=POOL, epoch=1, secret=secret)
    await validator.audits.commit(pool_id=POOL, epoch=2, commitment=commitment)
    with pytest.raises(TransactionReverted, match="WrongSecret"):
        await validator.audits.reveal(pool_id=POOL, epoch=1, secret=b"\x08" * 32)
    await validator.audits.reveal(pool_id=POOL, epoch=1, secret=secret)
    found = await validator.audits.get(pool_id=POOL, validator=me, epoch=1)
    assert found is not None
    assert found.secret == Digest("0x" + secret.hex())
    assert [event.epoch for event in await validator.history(SecretRevealed, pool_id=POOL)] == [1]
    assert await validator.audits.get(pool_id=POOL, validator=ZERO_ADDRESS, epoch=1) is None


async def test_versions_are_needed_while_their_work_can_still_be_judged_or_disputed(world: World) -> None:
    await world.member()
    clock, run = ManualClock(), run_id("main")
    validator, publisher = await world.as_("validator"), await world.as_("publisher")
    needs = VersionNeeds(validator, pool_id=POOL, run=run, clock=clock)
    others = VersionNeeds(validator, pool_id=POOL, run=run_id("other"), clock=clock)

    async def work() -> set[int]:
        return set((await needs.read([1, 2])).work)

    first = await needs.read([1, 2])
    assert first.work == set()
    assert first.leases >= TERMS.notice_period
    assert first.at == clock.now().timestamp()
    await publisher.checkpoints.announce(pool_id=POOL, run=run, version=1, attempt=0, digest=AUDIT)
    judged, unjudged, disputed = [await world.submitted(index=index) for index in range(3)]
    assert await work() == {1}
    assert (await others.read([1])).work == set()
    verdicts = [await verdict_on(validator, key, Outcome.REJECTED) for key in (judged, disputed)]
    assert await validator.work.judge(verdicts) == []
    await (await world.as_("provider")).work.dispute(disputed, ZERO_DIGEST)
    await world.warp(TERMS.challenge_period + SECOND)
    await validator.work.finalize([judged])
    await validator.work.expire([unjudged])
    assert await work() == {1}  # the dispute
    again = VersionNeeds(validator, pool_id=POOL, run=run, clock=clock)
    assert (await again.read([1, 2])).work == {1}
    assert (await VersionNeeds(validator, pool_id=POOL, run=run, clock=clock).read([2])).work == set()
    second = await world.as_("second")
    assert await second.work.judge([await verdict_on(second, disputed, Outcome.REJECTED, decisive=True)]) == []
    assert await work() == set()
    # The other reader does not learn of the change: the last period ends all the same.
    again._next = 1 << 40
    await clock.turn(TERMS.judge_period + TERMS.challenge_period + TERMS.dispute_period + CLOCKS_DIFFER + SECOND)
    assert (await again.read([1, 2])).work == set()


async def test_work_under_former_terms_keeps_its_version_for_those_terms_periods(world: World) -> None:
    await world.member()
    clock, owner, publisher = ManualClock(), await world.as_("owner"), await world.as_("publisher")
    await publisher.checkpoints.announce(pool_id=POOL, run=run_id("main"), version=1, attempt=0, digest=AUDIT)
    await world.submitted()
    minute = timedelta(minutes=1)
    shorter = replace(TERMS, judge_period=minute, challenge_period=minute, dispute_period=minute)
    await owner.pools.set_terms(POOL, shorter)
    await world.warp(TERMS.notice_period + SECOND)
    assert await owner.pools.terms(POOL) == shorter
    needs = VersionNeeds(owner, pool_id=POOL, run=run_id("main"), clock=clock)
    assert (await needs.read([1])).work == {1}
    await clock.turn(TERMS.judge_period + TERMS.challenge_period)
    assert (await needs.read([1])).work == {1}
