"""Submission: under a lease, once, by the node or whoever carries its signature."""

from __future__ import annotations

from typing import Any

import pytest
from eth_account.signers.local import LocalAccount

from tests.ledger.contracts.harness import ZERO, error_name, malleable
from tests.ledger.contracts.world import DIGEST, POOLS, RUN, SHA256, STAKE, SUBMITTED, TERMS, WORK, World


def test_submitted_work_is_kept_with_its_reward_and_penalty_set_aside(world: World) -> None:
    lease = world.lease()
    item = world.submission(lease, units=40)
    receipt = world.chain.send(WORK, "submitWork", *item.values(), sender=world.stranger)
    key = receipt.only("WorkSubmitted")["key"]
    assert key == world.chain.call(WORK, "workKey", world.pool, RUN, world.node.address, 3, 0)
    assert receipt.only("WorkSubmitted") == {
        "poolId": world.pool,
        "node": world.node.address,
        "key": key,
        "run": RUN,
        "step": 3,
        "index": 0,
        "version": 2,
        "digest": DIGEST,
        "sha256Hash": SHA256,
        "units": 40,
    }
    now = world.chain.now()
    assert world.work(key) == {
        "node": world.node.address,
        "provider": world.provider.address,
        "poolId": world.pool,
        "units": 40,
        "sha256Hash": SHA256,
        "status": SUBMITTED,
        "outcome": 0,
        "reason": 0,
        "judge": ZERO,
        "disputer": ZERO,
        "since": now,
        "deadline": now + TERMS["judgePeriod"],
        "reward": 400,
        "penalty": 3_600,
    }
    assert world.escrow().reserved == 400
    assert world.stake().workLock == 3_600


def test_a_node_that_calls_itself_needs_no_signature(world: World) -> None:
    item = world.submission(world.lease()) | {"nodeSignature": b""}
    world.chain.send(WORK, "submitWork", *item.values(), sender=world.node)


@pytest.mark.parametrize(
    ("flaw", "error"),
    [
        ("a lease of the owner's", "NotOrchestrator"),
        ("a lease without signature", "NotOrchestrator"),
        ("a lease with more units than signed", "NotOrchestrator"),
        ("a lease of another node", "NotMember"),
        ("an expired lease", "LeaseExpired"),
        ("no units", "UnitsOutOfRange"),
        ("more units than leased", "UnitsOutOfRange"),
        ("more units than fit", "UnitsOutOfRange"),
        ("no signature of the node", "NodeNotWilling"),
        ("another's signature", "NodeNotWilling"),
        ("a signature of other units", "NodeNotWilling"),
        ("a signature of another file", "NodeNotWilling"),
        ("a signature in another form", "NodeNotWilling"),
        ("a pool that does not exist", "WrongStatus"),
    ],
)
def test_work_is_refused_that_comes_with(world: World, flaw: str, error: str) -> None:
    flaws: dict[str, dict[str, Any]] = {
        "an expired lease": {"expiry": world.chain.now() - 1},
        "more units than fit": {"maxUnits": 2**64 - 1},
        "a pool that does not exist": {"poolId": 2**40},
        "a lease of another node": {"node": "node2"},
    }
    units = {"no units": 0, "more units than leased": 101, "more units than fit": 2**56}.get(flaw, 100)
    by = {"another's signature": "provider", "a lease of another node": "node2"}.get(flaw, "node")
    leased_by = "owner" if flaw == "a lease of the owner's" else "orchestrator"
    item = world.submission(world.lease(**flaws.get(flaw, {})), units=units, by=by, leased_by=leased_by)
    alterations: dict[str, dict[str, Any]] = {
        "a lease without signature": {"leaseSignature": b""},
        "no signature of the node": {"nodeSignature": b""},
        "a signature of other units": {"units": 99},
        "a signature of another file": {"sha256Hash": DIGEST},
        "a signature in another form": {"nodeSignature": malleable(item["nodeSignature"])},
    }
    item |= alterations.get(flaw, {})
    sender: LocalAccount = world.stranger
    if flaw == "a lease with more units than signed":
        item["lease"] = item["lease"] | {"maxUnits": 1_000}
        sender = world.node
    assert world.chain.refusal(WORK, "submitWork", *item.values(), sender=sender) == error


def test_a_slot_is_submitted_once_whatever_the_lease_says(world: World) -> None:
    world.submit()
    again = world.submission(world.lease(version=9, maxUnits=5), units=5)
    assert world.chain.refusal(WORK, "submitWork", *again.values()) == "WorkExists"
    world.submit(index=1)
    world.submit(step=4)


def test_a_lease_of_a_replaced_orchestrator_ends_with_its_grace(world: World) -> None:
    item = world.submission(world.lease())
    world.chain.send(POOLS, "setOrchestrator", world.pool, world.node2.address, 0, sender=world.owner)
    assert world.chain.refusal(WORK, "submitWork", *item.values()) == "NotOrchestrator"


def test_one_who_left_or_whose_pool_ended_submits_no_more(world: World) -> None:
    item = world.submission(world.lease())
    with world.chain.restored():
        world.leave("node")
        assert world.chain.refusal(WORK, "submitWork", *item.values()) == "NotMember"
    world.chain.send(POOLS, "end", world.pool, sender=world.owner)
    assert world.chain.refusal(WORK, "submitWork", *item.values()) == "WrongStatus"


def test_work_stops_when_the_escrow_can_not_cover_it(world: World) -> None:
    world.chain.send(POOLS, "withdrawEscrow", world.pool, 99_001, world.owner.address, sender=world.owner)
    item = world.submission(world.lease())
    assert world.chain.refusal(WORK, "submitWork", *item.values()) == "EscrowTooLow"
    world.chain.send(POOLS, "fund", world.pool, 1, sender=world.stranger)
    world.submit()


def test_work_stops_when_the_stake_can_not_cover_it(world: World) -> None:
    world.chain.send(STAKE, "beginUnbond", 90_000 - 8_999, sender=world.provider)
    item = world.submission(world.lease())
    assert world.chain.refusal(WORK, "submitWork", *item.values()) == "StakeTooLow"
    world.chain.send(STAKE, "stakeFor", world.provider.address, 1, sender=world.stranger)
    world.submit()


def test_one_bad_submission_does_not_stop_a_batch(world: World) -> None:
    first = world.submission(world.lease(index=1))
    stale = world.submission(world.lease(index=2, expiry=1))
    last = world.submission(world.lease(index=3))
    receipt = world.chain.send(WORK, "submitBatch", [first, first, stale, last], sender=world.stranger)
    submitted = [event.args["index"] for event in receipt.events if event.name == "WorkSubmitted"]
    refused = [error_name(event.args["reason"]) for event in receipt.events if event.name == "WorkRefused"]
    assert (submitted, refused) == ([1, 3], ["WorkExists", "LeaseExpired"])
    assert world.escrow().reserved == 2_000


def test_a_batch_is_bounded(world: World) -> None:
    item = world.submission(world.lease())
    assert world.chain.refusal(WORK, "submitBatch", [item] * 257) == "BatchTooLong"
    assert world.chain.refusal(WORK, "judge", [world.verdict(DIGEST)] * 257) == "BatchTooLong"
    assert world.chain.refusal(WORK, "finalize", [DIGEST] * 257) == "BatchTooLong"
    assert world.chain.refusal(WORK, "expire", [DIGEST] * 257) == "BatchTooLong"


def test_work_that_was_never_submitted_is_nothing(world: World) -> None:
    assert world.work(DIGEST).status == 0
    assert world.work(DIGEST).deadline == 0
