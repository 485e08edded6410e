"""Submission: under a lease, once, by the node or by the sender of its signature."""

from __future__ import annotations

from typing import Any

import pytest
from eth_account.signers.local import LocalAccount

from tests.kit.contract_client import ZERO, error_name, malleable
from tests.kit.contract_world import (
    DIGEST,
    FEES,
    FORGED,
    POOLS,
    RUN,
    SALT,
    SHA256,
    STAKE,
    SUBMITTED,
    TERMS,
    WORK,
    World,
)


def test_submitted_work_reserves_its_reward_and_penalty(world: World) -> None:
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
        "beaconBlock": 1,
        "salt": SALT,
        "groups": 4,
        "maxUnits": 100,
        "sha256Hash": SHA256,
        "units": 40,
    }
    now = world.chain.now()
    assert world.work(key) == {
        "node": world.node.address,
        "provider": world.provider.address,
        "poolId": world.pool,
        "units": 40,
        "maxUnits": 100,
        "sha256Hash": SHA256,
        "status": SUBMITTED,
        "outcome": 0,
        "reason": 0,
        "judge": ZERO,
        "looker": ZERO,
        "disputer": ZERO,
        "juror": ZERO,
        "opinion": 0,
        "since": now,
        "deadline": now + TERMS["judgePeriod"],
        "reward": 400,
        "penalty": 9_000,
    }
    assert world.escrow().reserved == 400 + FEES
    assert world.stake().workLock == 9_000, "the penalty is for all units of the lease, even if fewer are claimed"


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
        ("another salt than signed", "NotOrchestrator"),
        ("another beacon than signed", "NotOrchestrator"),
        ("no signature of the node", "NodeNotWilling"),
        ("another's signature", "NodeNotWilling"),
        ("a signature of other units", "NodeNotWilling"),
        ("a signature of another file", "NodeNotWilling"),
        ("a signature in another form", "NodeNotWilling"),
        ("a pool that does not exist", "WrongStatus"),
    ],
)
def test_an_invalid_submission_is_refused(world: World, flaw: str, error: str) -> None:
    flaws: dict[str, dict[str, Any]] = {
        "an expired lease": {"expiry": world.chain.now() - 1},
        "more units than fit": {"maxUnits": 2**40},
        "a pool that does not exist": {"poolId": 2**40},
        "a lease of another node": {"node": "node2"},
    }
    units = {"no units": 0, "more units than leased": 101, "more units than fit": 100}.get(flaw, 100)
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
    unsigned: dict[str, dict[str, Any]] = {
        "a lease with more units than signed": {"maxUnits": 1_000},
        "another salt than signed": {"salt": DIGEST},
        "another beacon than signed": {"beaconBlock": 2},
    }
    if flaw in unsigned:
        item["lease"] = item["lease"] | unsigned[flaw]
        sender = world.node
    assert world.chain.refusal(WORK, "submitWork", *item.values(), sender=sender) == error


def test_a_slot_can_be_submitted_only_once_even_under_another_lease(world: World) -> None:
    world.submit()
    again = world.submission(world.lease(version=9, maxUnits=5), units=5)
    assert world.chain.refusal(WORK, "submitWork", *again.values()) == "WorkExists"
    world.submit(index=1)
    world.submit(step=4)


def test_a_lease_of_a_replaced_orchestrator_is_valid_until_the_grace_period_ends(world: World) -> None:
    item = world.submission(world.lease())
    world.chain.send(POOLS, "setOrchestrator", world.pool, world.node2.address, 0, sender=world.owner)
    assert world.chain.refusal(WORK, "submitWork", *item.values()) == "NotOrchestrator"


ENDS: dict[str, tuple[str, str, tuple[Any, ...]]] = {
    "it left": ("node", "leavePool", (0, b"")),
    "it was removed": ("orchestrator", "remove", ("silent",)),
    "it was evicted": ("manager", "evict", ("slow",)),
    "it was banned": ("manager", "ban", ("slow",)),
    "its provider was banned": ("manager", "banProvider", ("slow",)),
    "the pool ended": ("owner", "end", ()),
}


@pytest.mark.parametrize("end", list(ENDS))
def test_a_lease_signed_before_a_departure_ban_or_pool_end_still_counts(world: World, end: str) -> None:
    """The lease expires within the notice period, counted from the end; a longer one is refused."""
    who, function, arguments = ENDS[end]
    subject: tuple[Any, ...] = (world.node.address,)
    subject = {"remove": ([world.node.address],), "banProvider": (world.provider.address,), "end": ()}.get(
        function, subject
    )
    held = world.chain.now() + TERMS["noticePeriod"]
    good, longer = (
        world.submission(world.lease(index=index, expiry=held + extra)) for index, extra in ((0, 0), (1, 9))
    )
    world.chain.at(held - TERMS["noticePeriod"] + 2)
    world.chain.send(POOLS, function, world.pool, *subject, *arguments, sender=world.people[who])
    expected = {"banProvider": "Banned", "end": "WrongStatus"}.get(function, "NotMember")
    assert world.chain.refusal(WORK, "submitWork", *longer.values()) == expected
    world.chain.at(held)
    world.chain.send(WORK, "submitWork", *good.values(), sender=world.stranger)
    assert world.stake().workLock == 9_000


def test_a_node_evicted_for_forged_work_cannot_submit(world: World) -> None:
    forged = world.submit()
    world.judge(forged, outcome=FORGED)
    world.chain.warp(TERMS["challengePeriod"] + 1)
    item = world.submission(world.lease(index=1, expiry=world.chain.now() + 60))
    world.finalize(forged)
    assert world.chain.refusal(WORK, "submitWork", *item.values()) == "NotMember"


def test_a_submission_is_refused_if_the_escrow_cannot_cover_it(world: World) -> None:
    world.withdraw(99_001 - FEES)
    item = world.submission(world.lease())
    assert world.chain.refusal(WORK, "submitWork", *item.values()) == "EscrowTooLow"
    world.chain.send(POOLS, "fund", world.pool, 1, sender=world.stranger)
    world.submit()


def test_a_submission_is_refused_if_the_stake_cannot_cover_it(world: World) -> None:
    world.chain.send(STAKE, "beginUnbond", 90_000 - 8_999, sender=world.provider)
    item = world.submission(world.lease())
    assert world.chain.refusal(WORK, "submitWork", *item.values()) == "StakeTooLow"
    world.chain.send(STAKE, "stakeFor", world.provider.address, 1, sender=world.stranger)
    world.submit()


def test_one_refused_submission_does_not_stop_a_batch(world: World) -> None:
    first = world.submission(world.lease(index=1))
    stale = world.submission(world.lease(index=2, expiry=1))
    last = world.submission(world.lease(index=3))
    receipt = world.chain.send(WORK, "submitBatch", [first, first, stale, last], sender=world.stranger)
    submitted = [event.args["index"] for event in receipt.events if event.name == "WorkSubmitted"]
    refused = [error_name(event.args["reason"]) for event in receipt.events if event.name == "WorkRefused"]
    assert (submitted, refused) == ([1, 3], ["WorkExists", "LeaseExpired"])
    assert world.escrow().reserved == 2 * (1_000 + FEES)


def test_the_size_of_a_batch_is_limited(world: World) -> None:
    item = world.submission(world.lease())
    assert world.chain.refusal(WORK, "submitBatch", [item] * 257) == "BatchTooLong"
    assert world.chain.refusal(WORK, "judge", [world.verdict(DIGEST)] * 257) == "BatchTooLong"
    assert world.chain.refusal(WORK, "finalize", [DIGEST] * 257) == "BatchTooLong"
    assert world.chain.refusal(WORK, "expire", [DIGEST] * 257) == "BatchTooLong"


def test_work_that_was_never_submitted_has_an_empty_record(world: World) -> None:
    assert world.work(DIGEST).status == 0
    assert world.work(DIGEST).deadline == 0
