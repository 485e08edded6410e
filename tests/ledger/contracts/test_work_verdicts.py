"""Verdicts, disputes and the final state of work."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.contract_client import ZERO, Receipt, error_name
from tests.kit.contract_world import (
    ACCEPTED,
    DIGEST,
    DISPUTED,
    DOMAINS,
    EVICTED,
    EXPIRED,
    FAR,
    FEES,
    FINAL,
    FORGED,
    MUSTER,
    POOLS,
    PROVISIONAL,
    REGISTRY,
    REJECTED,
    SHA256,
    STAKE,
    SUBMITTED,
    TERMS,
    WORK,
    World,
)

FEE = TERMS["verdictFee"]
JUDGE, CHALLENGE, DISPUTE = (TERMS[name] for name in ("judgePeriod", "challengePeriod", "disputePeriod"))


def settled(world: World) -> bool:
    """Returns whether nothing is reserved any more."""
    return bool(world.escrow().reserved == 0 and world.stake().workLock == 0)


def accrued(world: World) -> int:
    return world.earned("provider")


def refusals(receipt: Receipt) -> list[str]:
    return [error_name(event.args["reason"]) for event in receipt.events if event.name == "VerdictRefused"]


def test_accepted_work_is_paid_after_the_challenge_window(world: World) -> None:
    key = world.submit()
    verdict = world.judge(key).only("VerdictGiven")
    assert (verdict["outcome"], verdict["reason"], verdict["auditHash"]) == (ACCEPTED, 7, DIGEST)
    assert verdict["decisive"] is False
    work = world.work(key)
    assert (work.status, work.judge, work.deadline) == (PROVISIONAL, world.validator.address, work.since + CHALLENGE)
    world.chain.at(work.deadline)
    assert world.finalize(key).names() == []
    world.chain.at(work.deadline + 1)
    final = world.finalize(key).only("WorkFinal")
    assert (final["outcome"], final["paid"], final["slashed"]) == (ACCEPTED, 1_000, 0)
    assert (accrued(world), settled(world), world.escrow().balance) == (1_000, True, 99_000 - FEE)
    assert world.earned("validator") == FEE
    assert world.finalize(key).names() == []


def test_rejected_work_is_unpaid_and_costs_nothing(world: World) -> None:
    key = world.submit()
    world.judge(key, outcome=REJECTED)
    world.chain.warp(CHALLENGE + 1)
    final = world.finalize(key).only("WorkFinal")
    assert (final["outcome"], final["paid"], final["slashed"]) == (REJECTED, 0, 0)
    assert (accrued(world), settled(world), world.escrow().balance) == (0, True, 100_000 - FEE)
    assert world.stake().active == 100_000
    assert world.member("node")


def test_forged_work_costs_stake_and_membership_and_the_reserve_receives_the_penalty(world: World) -> None:
    key = world.submit()
    world.judge(key, outcome=FORGED)
    world.chain.warp(CHALLENGE + 1)
    receipt = world.finalize(key)
    final, left = receipt.only("WorkFinal"), receipt.only("MemberLeft")
    assert (final["outcome"], final["paid"], final["slashed"]) == (FORGED, 0, 9_000)
    assert (left["cause"], left["reason"]) == (EVICTED, "forged work")
    assert (accrued(world), settled(world), world.stake().active) == (0, True, 91_000)
    assert world.balance("reserve") == 9_000
    assert not world.member("node")


def test_after_a_forgery_the_provider_joins_no_node_until_all_its_open_work_is_decided(world: World) -> None:
    world.register("provider", "node2")
    world.finish(world.submit(), FORGED)
    until = world.chain.now() + JUDGE + CHALLENGE + DISPUTE
    for name in ("node", "node2"):
        refused = world.chain.refused(POOLS, "join", *world.joining(name).values())
        assert (refused.name, refused.values) == ("TooSoon", (world.pool, world.provider.address, until))
    world.chain.at(until)
    world.join("node")
    world.join("node2")


def test_claiming_one_unit_does_not_reduce_the_penalty_of_the_lease(world: World) -> None:
    item = world.submission(world.lease(), units=1)
    key = world.chain.send(WORK, "submitWork", *item.values(), sender=world.stranger).only("WorkSubmitted")["key"]
    assert (world.work(key).reward, world.work(key).penalty) == (10, 9_000)
    world.chain.send(WORK, "judge", [world.verdict(key, FORGED, units=1)], sender=world.validator)
    world.chain.warp(CHALLENGE + 1)
    assert world.finalize(key).only("WorkFinal")["slashed"] == 9_000


def test_a_domain_without_a_reserve_burns_penalties(world: World) -> None:
    world.chain.send(DOMAINS, "updateDomain", world.domain, "n", "", DIGEST, ZERO, sender=world.governor)
    supply = world.chain.call(MUSTER, "totalSupply")
    key = world.submit()
    world.judge(key, outcome=FORGED)
    world.chain.warp(CHALLENGE + 1)
    world.finalize(key)
    assert world.chain.call(MUSTER, "totalSupply") == supply - 9_000


def test_forged_work_of_a_node_that_left_is_still_slashed(world: World) -> None:
    key = world.submit()
    world.leave("node")
    world.chain.send(REGISTRY, "retireNode", world.node.address, sender=world.provider)
    world.judge(key, outcome=FORGED)
    world.chain.warp(CHALLENGE + 1)
    receipt = world.finalize(key)
    assert receipt.only("WorkFinal")["slashed"] == 9_000
    assert "MemberLeft" not in receipt.names()


def test_work_in_an_ended_pool_is_still_judged_and_paid(world: World) -> None:
    key = world.submit()
    world.chain.send(POOLS, "end", world.pool, sender=world.owner)
    world.judge(key)
    world.chain.warp(CHALLENGE + 1)
    world.finalize(key)
    assert accrued(world) == 1_000


def test_work_keeps_the_terms_of_its_submission(world: World) -> None:
    key = world.submit()
    cheap = TERMS | {"pricePerUnit": 1, "penaltyPerUnit": 9, "challengePeriod": 10, "judgePeriod": 40_000}
    world.chain.send(POOLS, "setTerms", world.pool, cheap, sender=world.owner)
    world.judge(key)
    world.chain.warp(CHALLENGE)
    world.chain.send(POOLS, "setTerms", world.pool, cheap, sender=world.owner)
    assert world.finalize(key).names() == []
    world.chain.warp(TERMS["noticePeriod"])
    world.finalize(key)
    assert accrued(world) == 1_000
    assert world.work(world.submit(index=1)).reward == 100


def test_work_cannot_be_judged_after_the_deadline_and_expires_without_blame(world: World) -> None:
    key, later = world.submit(), world.submit(index=1)
    deadline = world.work(key).deadline
    world.chain.at(deadline)
    assert world.chain.send(WORK, "expire", [key], sender=world.stranger).names() == []
    world.chain.at(deadline + 1)
    assert refusals(world.judge(key)) == ["TooLate"]
    expired = world.chain.send(WORK, "expire", [DIGEST, key, key], sender=world.stranger)
    assert expired.names() == ["WorkExpired"]
    assert (world.work(key).status, world.work(later).status) == (EXPIRED, SUBMITTED)
    assert (world.escrow().reserved, world.stake().workLock) == (1_000 + FEES, 9_000)
    world.chain.warp(JUDGE)
    world.chain.send(WORK, "expire", [later], sender=world.stranger)
    assert (accrued(world), settled(world), world.stake().active) == (0, True, 100_000)
    assert refusals(world.judge(key)) == ["WrongStatus"]
    assert world.finalize(key).names() == []


def test_a_verdict_in_the_last_second_is_valid(world: World) -> None:
    key = world.submit()
    world.chain.at(world.work(key).deadline)
    assert world.judge(key).names() == ["VerdictGiven"]
    assert world.chain.send(WORK, "expire", [key], sender=world.stranger).names() == []


def test_one_refused_verdict_does_not_stop_a_batch(world: World) -> None:
    first, last = world.submit(), world.submit(index=1)
    verdicts = [world.verdict(first), world.verdict(DIGEST), world.verdict(last, 0)]
    verdicts += [world.verdict(first, FORGED), world.verdict(last, REJECTED)]
    receipt = world.chain.send(WORK, "judge", verdicts, sender=world.validator)
    assert refusals(receipt) == ["WrongStatus", "NoOutcome", "WrongStatus"]
    assert (world.work(first).outcome, world.work(last).outcome) == (ACCEPTED, REJECTED)


def test_a_batch_over_several_pools_applies_each_pools_seats_and_terms(world: World) -> None:
    second = world.create_pool(world.domain, pricePerUnit=3, penaltyPerUnit=27, challengePeriod=5_000)
    world.join("node", poolId=second)
    here, there = [world.submit(index=1), world.submit(index=2)], world.submit(poolId=second)
    world.chain.send(POOLS, "removeValidator", second, world.validator.address, 0, sender=world.owner)
    assert refusals(world.judge(here[0], there, here[1])) == ["NotValidator"]
    assert refusals(world.judge(there, here[0], by="validator2")) == ["WrongStatus"]
    world.chain.warp(CHALLENGE + 1)
    first = world.finalize(here[0], there, here[1])
    assert [event.args["paid"] for event in first.events if event.name == "WorkFinal"] == [1_000, 1_000]
    world.chain.warp(5_000)
    assert world.finalize(there).only("WorkFinal")["paid"] == 300
    assert settled(world)


@pytest.mark.parametrize("who", ["owner", "manager", "orchestrator", "governor", "stranger", "validator3"])
def test_only_the_pools_validators_judge(world: World, who: str) -> None:
    key = world.submit()
    assert refusals(world.judge(key, by=who)) == ["NotValidator"]
    assert world.work(key).status == SUBMITTED


@pytest.mark.parametrize("who", ["node", "provider"])
def test_a_validator_cannot_judge_its_own_work(world: World, who: str) -> None:
    key = world.submit()
    world.chain.send(POOLS, "addValidator", world.pool, world.people[who].address, sender=world.owner)
    assert refusals(world.judge(key, by=who)) == ["ConflictOfInterest"]


@pytest.mark.parametrize("first", [ACCEPTED, REJECTED, FORGED])
@pytest.mark.parametrize("second", [ACCEPTED, REJECTED, FORGED])
def test_a_second_verdict_decides_a_dispute_at_once(world: World, first: int, second: int) -> None:
    key = world.submit()
    world.judge(key, outcome=first)
    disputed = world.dispute(key).only("WorkDisputed")
    disputer = world.validator3.address if first == ACCEPTED else world.provider.address
    assert (disputed["disputer"], disputed["evidenceHash"]) == (disputer, SHA256)
    work = world.work(key)
    assert (work.status, work.disputer, work.deadline) == (DISPUTED, disputer, work.since + DISPUTE)
    world.chain.at(work.deadline)
    receipt = world.judge(key, outcome=second, by="validator2", decisive=True)
    assert receipt.only("VerdictGiven")["decisive"] is True
    final = receipt.only("WorkFinal")
    assert (final["outcome"], final["paid"], final["slashed"]) == (
        second,
        1_000 if second == ACCEPTED else 0,
        9_000 if second == FORGED else 0,
    )
    assert ("DisputeLost" in receipt.names()) is (first == second == REJECTED)
    assert (world.work(key).status, settled(world)) == (FINAL, True)
    assert refusals(world.judge(key, outcome=first, by="validator2", decisive=True)) == ["WrongStatus"]


@pytest.mark.parametrize("outcome", [ACCEPTED, REJECTED, FORGED])
def test_a_first_verdict_never_decides_a_dispute(world: World, outcome: int) -> None:
    key, other = world.submit(), world.submit(index=1)
    world.judge(key, outcome=FORGED)
    world.dispute(key)
    before = world.work(key)
    receipt = world.judge(key, other, outcome=outcome, by="validator2")
    assert (refusals(receipt), receipt.names().count("VerdictGiven")) == (["WrongStatus"], 1)
    assert world.work(key) == before, "the dispute is still open"
    assert world.work(other).status == PROVISIONAL


def test_a_decisive_verdict_needs_a_dispute(world: World) -> None:
    key = world.submit()
    assert refusals(world.judge(key, decisive=True)) == ["WrongStatus"]
    assert world.work(key).status == SUBMITTED
    world.judge(key)
    assert refusals(world.judge(key, by="validator2", decisive=True)) == ["WrongStatus"]
    assert (world.work(key).status, world.work(key).judge) == (PROVISIONAL, world.validator.address)


@pytest.mark.parametrize("decisive", [False, True], ids=["first", "decisive"])
@pytest.mark.parametrize("wrong", [{"sha256": DIGEST}, {"units": 99}, {"units": 0}, {"units": 100 + 2**40}], ids=str)
def test_a_verdict_on_another_file_or_other_units_is_refused(world: World, wrong: Any, decisive: bool) -> None:
    """Such verdicts come from a validator that judged work which a reorg has since replaced."""
    key = world.submit()
    if decisive:
        world.judge(key)
        world.dispute(key)
    before = world.work(key)
    stale = world.verdict(key, FORGED, decisive=decisive, **wrong)
    by = world.validator2
    assert refusals(world.chain.send(WORK, "judge", [stale], sender=by)) == ["OtherSubmission"]
    assert world.work(key) == before
    right = world.verdict(key, FORGED, decisive=decisive)
    assert "VerdictGiven" in world.chain.send(WORK, "judge", [stale, right, stale], sender=by).names()


@pytest.mark.parametrize(("first", "last"), [(ACCEPTED, ACCEPTED), (REJECTED, REJECTED), (FORGED, REJECTED)])
def test_an_undecided_dispute_removes_the_penalty(world: World, first: int, last: int) -> None:
    key = world.submit()
    world.judge(key, outcome=first)
    world.dispute(key)
    deadline = world.work(key).deadline
    world.chain.at(deadline)
    assert world.finalize(key).names() == []
    world.chain.at(deadline + 1)
    assert refusals(world.judge(key, outcome=FORGED, by="validator2", decisive=True)) == ["TooLate"]
    final = world.finalize(key).only("WorkFinal")
    assert (final["outcome"], final["slashed"]) == (last, 0)
    assert (settled(world), world.stake().active, world.member("node")) == (True, 100_000, True)
    assert accrued(world) == (1_000 if last == ACCEPTED else 0)


def test_the_first_judge_and_the_disputing_validator_cannot_decide(world: World) -> None:
    world.add_validators(3)
    key = world.submit()
    world.judge(key)
    world.dispute(key, by="validator2")
    assert refusals(world.judge(key, by="validator", decisive=True)) == ["ConflictOfInterest"]
    assert refusals(world.judge(key, by="validator2", decisive=True)) == ["ConflictOfInterest"]
    decided = world.judge(key, outcome=FORGED, by="validator3", decisive=True)
    assert decided.only("WorkFinal")["outcome"] == FORGED


@pytest.mark.parametrize("who", ["node", "provider", "validator2"])
def test_node_provider_and_other_validators_can_dispute(world: World, who: str) -> None:
    key = world.submit()
    world.judge(key, outcome=FORGED)
    world.dispute(key, by=who)
    assert world.work(key).disputer == world.people[who].address


@pytest.mark.parametrize("who", ["node", "provider"])
def test_a_node_cannot_dispute_its_own_accepted_work(world: World, who: str) -> None:
    """A dispute has the whole file recomputed for a second fee, at no cost to the node."""
    key = world.submit()
    world.judge(key)
    carried = (key, SHA256, FAR, world.sign_dispute(key))
    assert world.chain.refusal(WORK, "dispute", *carried) == "NotDisputant"
    alone = (key, SHA256, 0, b"")
    assert world.chain.refusal(WORK, "dispute", *alone, sender=world.people[who]) == "NotDisputant"


@pytest.mark.parametrize("who", ["validator", "owner", "manager", "stranger"])
def test_other_parties_and_the_judge_cannot_dispute(world: World, who: str) -> None:
    key = world.submit()
    world.judge(key)
    arguments = (key, SHA256, 0, b"")
    assert world.chain.refusal(WORK, "dispute", *arguments, sender=world.people[who]) == "NotDisputant"


def test_anyone_can_submit_a_dispute_that_the_node_signed(world: World) -> None:
    key = world.submit()
    world.judge(key, outcome=REJECTED)
    signature = world.sign_dispute(key)
    assert world.chain.refusal(WORK, "dispute", key, SHA256, FAR - 1, signature) == "NodeNotWilling"
    assert world.chain.refusal(WORK, "dispute", key, DIGEST, FAR, signature) == "NodeNotWilling"
    assert world.chain.refusal(WORK, "dispute", key, SHA256, FAR, world.sign_dispute(key, by="provider")) == (
        "NodeNotWilling"
    )
    assert world.chain.refusal(WORK, "dispute", key, SHA256, 1, world.sign_dispute(key, deadline=1)) == (
        "SignatureExpired"
    )
    world.chain.send(WORK, "dispute", key, SHA256, FAR, signature, sender=world.stranger)
    assert world.work(key).disputer == world.node.address


def test_work_can_be_disputed_once_and_only_within_the_challenge_window(world: World) -> None:
    key, other = world.submit(), world.submit(index=1)
    arguments = (key, SHA256, 0, b"")
    assert world.chain.refusal(WORK, "dispute", *arguments, sender=world.node) == "WrongStatus"
    world.judge(key, other, outcome=FORGED)
    world.chain.at(world.work(key).deadline)
    world.dispute(key)
    assert world.chain.refusal(WORK, "dispute", *arguments, sender=world.node) == "WrongStatus"
    world.chain.warp(1)
    late = (other, SHA256, 0, b"")
    assert world.chain.refusal(WORK, "dispute", *late, sender=world.node) == "TooLate"


def test_a_provider_claims_its_rewards_in_the_pools_it_names(world: World) -> None:
    second = world.create_pool(world.domain)
    world.join("node", poolId=second)
    keys = [world.submit(), world.submit(index=1), world.submit(poolId=second)]
    world.judge(*keys)
    world.chain.warp(CHALLENGE + 1)
    world.finalize(*keys)
    assert world.chain.call(WORK, "totalsOf", world.pool) == {"accrued": 2_000 + 2 * FEE, "paid": 0}
    pools = [world.pool, second, world.pool, 99]
    receipt = world.chain.send(WORK, "claim", pools, world.node2.address, sender=world.provider)
    assert receipt.names().count("RewardsClaimed") == 2
    assert (world.balance("node2"), accrued(world)) == (3_000, 0)
    assert world.chain.call(WORK, "totalsOf", world.pool) == {"accrued": 2_000 + 2 * FEE, "paid": 2_000}
    world.chain.send(WORK, "claim", pools, world.validator.address, sender=world.validator)
    assert world.balance("validator") == 3 * FEE
    assert world.chain.call(MUSTER, "balanceOf", world.chain.address(WORK)) == 0
    assert world.chain.refusal(WORK, "claim", pools, world.node2.address, sender=world.provider) == "NothingToClaim"


def test_only_the_provider_claims_its_rewards_and_not_to_the_zero_address(world: World) -> None:
    key = world.submit()
    world.judge(key)
    world.chain.warp(CHALLENGE + 1)
    world.finalize(key)
    for name in ("node", "stranger", "owner"):
        caller = world.people[name]
        assert world.chain.refusal(WORK, "claim", [world.pool], caller.address, sender=caller) == "NothingToClaim"
    assert world.chain.refusal(WORK, "claim", [world.pool], ZERO, sender=world.provider) == "NoRecipient"


def test_twenty_works_are_submitted_judged_and_finalised_in_batches(world: World) -> None:
    world.chain.send(STAKE, "stake", 900_000, sender=world.provider)
    items = [world.submission(world.lease(index=index)) for index in range(20)]
    submitted = world.chain.send(WORK, "submitBatch", items, sender=world.stranger)
    keys = [event.args["key"] for event in submitted.events if event.name == "WorkSubmitted"]
    assert len(keys) == 20
    world.judge(*keys)
    world.chain.warp(CHALLENGE + 1)
    assert world.finalize(*keys).names().count("WorkFinal") == 20
    assert (accrued(world), settled(world)) == (20_000, True)
