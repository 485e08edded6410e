"""Disputes: the deciding validators and their turns, the combined outcome, and fees for second looks."""

from __future__ import annotations

import itertools

import pytest
from eth_abi.abi import encode
from eth_utils.crypto import keccak

from tests.kit.contract_client import Receipt, error_name
from tests.kit.contract_world import (
    ACCEPTED,
    DIGEST,
    DISPUTED,
    FAR,
    FEES,
    FINAL,
    FORGED,
    MUSTER,
    POOLS,
    REJECTED,
    SHA256,
    STAKE,
    TERMS,
    UNBONDING,
    WORK,
    World,
)

FEE = TERMS["verdictFee"]
LOST = 900
"""A tenth of the penalty for the 100 units of a lease: the cost of a dispute in which the rejection is upheld."""
CHALLENGE, DISPUTE = TERMS["challengePeriod"], TERMS["disputePeriod"]


def refusals(receipt: Receipt) -> list[str]:
    return [error_name(event.args["reason"]) for event in receipt.events if event.name == "VerdictRefused"]


def disputed(world: World, *, first: int, by: str = "") -> bytes:
    """Returns work whose first verdict is disputed."""
    key = world.submit()
    world.judge(key, outcome=first)
    world.dispute(key, by=by)
    return key


def jury(world: World, key: bytes, names: list[str]) -> list[str]:
    """Returns the validators that may decide, in the order of their turns."""
    turns = {name: world.turn(key, name) for name in names}
    return sorted((name for name in names if turns[name]), key=lambda name: turns[name])


def decide(world: World, key: bytes, by: str, outcome: int) -> Receipt:
    return world.judge(key, outcome=outcome, by=by, decisive=True)


# Turns


def test_the_order_of_deciding_validators_comes_from_a_block_hash_after_the_dispute(world: World) -> None:
    names = world.add_validators(5)
    key = disputed(world, first=FORGED)
    since, block = world.work(key).since, world.chain.block() - 2
    digest = bytes.fromhex(world.chain.rpc("eth_getBlockByNumber", hex(block + 1), False)["hash"][2:])
    seed = int.from_bytes(digest, "big") % 2**56 | 1
    others = names[1:]
    weights = {
        name: keccak(encode(["bytes32", "uint256", "address"], [key, seed, world.people[name].address]))
        for name in others
    }
    expected = sorted(others, key=lambda name: weights[name])
    assert jury(world, key, names) == expected
    turn = DISPUTE // 5
    assert [world.turn(key, name) for name in expected] == [since + rank * turn for rank in range(4)]
    assert world.turn(key, "validator") == 0, "the first judge has no turn"
    assert world.turn(key, "stranger") == 0


def test_a_verdict_out_of_turn_is_refused_until_the_validators_turn(world: World) -> None:
    names = world.add_validators(3)
    key = disputed(world, first=FORGED)
    first, second = jury(world, key, names)
    opens = world.turn(key, second)
    world.chain.at(opens - 1)
    assert refusals(decide(world, key, second, ACCEPTED)) == ["NotYourTurn"]
    assert world.work(key).status == DISPUTED
    world.chain.at(opens)
    assert decide(world, key, second, ACCEPTED).only("WorkFinal")["outcome"] == ACCEPTED
    assert refusals(decide(world, key, first, FORGED)) == ["WrongStatus"]


def test_no_validator_can_decide_before_the_ordering_block_is_mined(world: World) -> None:
    key = world.submit()
    world.judge(key, outcome=FORGED)
    world.chain.send(WORK, "dispute", key, DIGEST, 0, b"", sender=world.provider)
    assert world.turn(key, "validator2") == 0
    assert refusals(decide(world, key, "validator2", ACCEPTED)) == ["NotYourTurn"]
    world.next_block()
    assert world.turn(key, "validator2") == world.work(key).since
    assert decide(world, key, "validator2", ACCEPTED).only("WorkFinal")["outcome"] == ACCEPTED


def test_an_order_that_was_not_recorded_in_time_is_drawn_again(world: World) -> None:
    key, recorded = world.submit(), world.submit(index=1)
    world.judge(key, recorded, outcome=FORGED)
    world.dispute(key)
    world.dispute(recorded)
    world.chain.send(WORK, "drawJuries", [recorded, DIGEST, recorded], sender=world.stranger)
    for _ in range(257):
        world.next_block()
    assert world.turn(key, "validator2") == 0
    assert world.turn(recorded, "validator2") != 0
    assert refusals(decide(world, key, "validator2", ACCEPTED)) == ["NotYourTurn"]
    world.next_block()
    world.next_block()
    assert world.turn(key, "validator2") != 0
    assert decide(world, key, "validator2", ACCEPTED).only("WorkFinal")["outcome"] == ACCEPTED
    assert decide(world, recorded, "validator2", ACCEPTED).only("WorkFinal")["outcome"] == ACCEPTED


def test_the_last_turn_lasts_at_least_one_share_of_the_dispute_period(world: World) -> None:
    names = world.add_validators(5)
    key = disputed(world, first=FORGED)
    last = jury(world, key, names)[-1]
    assert world.work(key).deadline - world.turn(key, last) >= DISPUTE // 5


# Contradictions


@pytest.mark.parametrize(("count", "final"), [(2, True), (3, True), (4, False), (5, False)])
def test_with_four_or_more_validators_one_vote_does_not_overturn_a_verdict(
    world: World, count: int, final: bool
) -> None:
    names = world.add_validators(count)
    key = disputed(world, first=FORGED)
    receipt = decide(world, key, jury(world, key, names)[0], ACCEPTED)
    assert ("WorkFinal" in receipt.names()) is final
    if not final:
        said = receipt.only("VerdictContradicted")
        assert (said["outcome"], said["auditHash"]) == (ACCEPTED, DIGEST)
        work = world.work(key)
        assert (work.status, work.outcome, work.opinion, work.juror) == (
            DISPUTED,
            FORGED,
            ACCEPTED,
            said["validator"],
        )


def test_one_vote_that_agrees_with_the_first_verdict_ends_the_dispute(world: World) -> None:
    names = world.add_validators(4)
    key = disputed(world, first=FORGED)
    assert decide(world, key, jury(world, key, names)[0], FORGED).only("WorkFinal")["outcome"] == FORGED


@pytest.mark.parametrize(
    ("first", "second", "third"),
    [each for each in itertools.product((ACCEPTED, REJECTED, FORGED), repeat=3) if each[0] != each[1]],
)
def test_a_contradicted_verdict_ends_in_the_median_of_three(world: World, first: int, second: int, third: int) -> None:
    names = world.add_validators(4)
    key = disputed(world, first=first)
    one, other = jury(world, key, names)[:2]
    decide(world, key, one, second)
    assert refusals(decide(world, key, one, second)) == ["ConflictOfInterest"]
    assert world.turn(key, other) == world.work(key).since, "the next validator need not wait any longer"
    final = decide(world, key, other, third).only("WorkFinal")
    median = sorted((first, second, third))[1]
    assert (final["outcome"], world.work(key).status) == (median, FINAL)
    assert final["paid"] == (1_000 if median == ACCEPTED else 0)
    lost = LOST if first == median == REJECTED else 0
    assert final["slashed"] == (9_000 if median == FORGED else 0)
    assert world.stake().active == 100_000 - final["slashed"] - lost
    paid = {name: found for name, found in (("validator", first), (one, second), (other, third)) if found == median}
    if (first, median) in {(ACCEPTED, REJECTED), (ACCEPTED, FORGED)}:
        paid["validator3"] = median  # its dispute was successful
    assert {name: world.earned(name) for name in names if world.earned(name)} == dict.fromkeys(paid, FEE)
    assert world.escrow().reserved == 0


@pytest.mark.parametrize(
    ("first", "opinion", "last"),
    [(FORGED, ACCEPTED, REJECTED), (FORGED, REJECTED, REJECTED), (ACCEPTED, FORGED, ACCEPTED)],
)
def test_a_contradiction_without_a_second_vote_leaves_the_first_verdict_without_its_penalty(
    world: World, first: int, opinion: int, last: int
) -> None:
    names = world.add_validators(4)
    key = disputed(world, first=first)
    decide(world, key, jury(world, key, names)[0], opinion)
    world.chain.at(world.work(key).deadline + 1)
    final = world.finalize(key).only("WorkFinal")
    assert (final["outcome"], final["slashed"]) == (last, 0)
    assert world.escrow().reserved == 0


def test_a_validator_whose_dispute_overturns_a_verdict_is_paid_and_the_first_judge_is_not(world: World) -> None:
    names = world.add_validators(4)
    key = disputed(world, first=ACCEPTED, by="validator2")
    one, other = jury(world, key, names)
    decide(world, key, one, FORGED)
    decide(world, key, other, FORGED)
    assert {name: world.earned(name) for name in names} == {
        "validator": 0,
        "validator2": FEE,
        "validator3": FEE,
        "validator4": FEE,
    }


# Costs of a dispute


@pytest.mark.parametrize("burned", [True, False])
@pytest.mark.parametrize("by", ["node", "provider"])
def test_a_node_that_loses_a_dispute_of_a_rejection_loses_a_tenth_of_the_penalty(
    world: World, by: str, burned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if burned:
        monkeypatch.setattr(world, "domain", world.create_domain())
        monkeypatch.setattr(world, "pool", world.create_pool(world.domain))
        world.join("node")
    key = world.submit()
    world.judge(key, outcome=REJECTED)
    supply, reserve = world.chain.call(MUSTER, "totalSupply"), world.balance("reserve")
    if by == "node":
        world.chain.send(WORK, "dispute", key, SHA256, FAR, world.sign_dispute(key), sender=world.stranger)
        world.next_block()
        world.next_block()
    else:
        world.dispute(key, by=by)
    world.chain.at(world.work(key).deadline)
    receipt = decide(world, key, "validator2", REJECTED)
    final, slashed = receipt.only("WorkFinal"), receipt.only("Slashed")
    assert (final["outcome"], final["paid"], final["slashed"]) == (REJECTED, 0, 0)
    lost = receipt.only("DisputeLost")
    assert (lost["node"], lost["key"], lost["taken"]) == (world.node.address, key, LOST)
    assert (slashed["asked"], slashed["taken"]) == (LOST, LOST)
    assert (world.stake().active, world.stake().workLock) == (100_000 - LOST, 0)
    assert world.member("node"), "a lost dispute is no forgery"
    assert world.balance("reserve") - reserve == (0 if burned else LOST)
    assert supply - world.chain.call(MUSTER, "totalSupply") == (LOST if burned else 0)
    assert [world.earned(name) for name in ("validator", "validator2")] == [FEE, FEE], "no more than any verdict"


@pytest.mark.parametrize(
    ("case", "first", "decision", "slashed"),
    [
        ("the node is right", REJECTED, ACCEPTED, 0),
        ("the penalty is taken off", FORGED, REJECTED, 0),
        ("the forgery stands", FORGED, FORGED, 9_000),
        ("a validator disputes in vain", REJECTED, REJECTED, 0),
        ("nobody decides", REJECTED, None, 0),
    ],
)
def test_other_lost_disputes_cost_no_more_than_the_verdict(
    world: World, case: str, first: int, decision: int | None, slashed: int
) -> None:
    world.add_validators(3)
    key = disputed(world, first=first, by="validator3" if case == "a validator disputes in vain" else "provider")
    if decision is None:
        world.chain.at(world.work(key).deadline + 1)
        receipt = world.finalize(key)
    else:
        world.chain.at(world.work(key).deadline)
        receipt = decide(world, key, "validator2", decision)
    assert "DisputeLost" not in receipt.names()
    assert (receipt.only("WorkFinal")["slashed"], world.stake().active) == (slashed, 100_000 - slashed)


def test_the_stake_covers_every_lost_dispute_of_open_work(world: World) -> None:
    keys = [world.submit(index=index) for index in range(3)]
    free = world.stake().active - world.stake().membershipLock - world.stake().workLock
    world.chain.send(STAKE, "beginUnbond", free, sender=world.provider)
    world.judge(*keys, outcome=REJECTED)
    for key in keys:
        world.dispute(key)
    world.chain.at(world.work(keys[0]).deadline)
    before = world.stake()
    assert world.judge(*keys, outcome=REJECTED, by="validator2", decisive=True).names().count("WorkFinal") == 3
    after = world.stake()
    assert (before.active - after.active, after.unbonding, after.workLock) == (3 * LOST, free, 0)


# Paid second looks


def drawn(world: World, share: int, *, first: int = ACCEPTED) -> bytes:
    """Returns judged work of a pool that pays for second looks at a share of work, and the block that draws it."""
    world.chain.send(POOLS, "setTerms", world.pool, TERMS | {"lookBps": share}, sender=world.owner)
    world.chain.warp(TERMS["noticePeriod"])
    key = world.submit()
    world.judge(key, outcome=first)
    assert not world.chain.call(WORK, "lookWanted", key), "the block after the verdict draws it"
    world.next_block()
    world.next_block()
    return key


@pytest.mark.parametrize("outcome", [ACCEPTED, REJECTED, FORGED])
def test_a_confirming_second_look_is_paid_once_when_the_work_is_final(world: World, outcome: int) -> None:
    world.add_validators(3)
    key = drawn(world, 10_000, first=outcome)
    assert world.chain.call(WORK, "lookWanted", key)
    said = world.confirm(key, by="validator2", outcome=outcome).only("VerdictConfirmed")
    assert (said["validator"], said["auditHash"]) == (world.validator2.address, DIGEST)
    assert world.work(key).looker == world.validator2.address
    assert not world.chain.call(WORK, "lookWanted", key)
    assert refusals(world.confirm(key, by="validator3", outcome=outcome)) == ["NoLookWanted"]
    world.chain.warp(CHALLENGE + 1)
    world.finalize(key)
    assert [world.earned(name) for name in ("validator", "validator2", "validator3")] == [FEE, FEE, 0]
    assert world.escrow().reserved == 0


@pytest.mark.parametrize(
    ("case", "error"),
    [
        ("another outcome", "OutcomeDiffers"),
        ("another file", "OtherSubmission"),
        ("the judge itself", "ConflictOfInterest"),
        ("the provider as validator", "ConflictOfInterest"),
        ("no validator", "NotValidator"),
        ("after the challenge period", "TooLate"),
        ("after 256 blocks", "NoLookWanted"),
        ("disputed", "WrongStatus"),
    ],
)
def test_an_invalid_second_look_is_refused(world: World, case: str, error: str) -> None:
    key = drawn(world, 10_000)
    by = {"the judge itself": "validator", "no validator": "stranger", "the provider as validator": "provider"}
    if case == "the provider as validator":
        world.chain.send(POOLS, "addValidator", world.pool, world.provider.address, sender=world.owner)
    if case == "after the challenge period":
        world.chain.warp(CHALLENGE + 1)
    if case == "after 256 blocks":
        for _ in range(255):
            world.next_block()
    if case == "disputed":
        world.dispute(key)
    outcome = REJECTED if case == "another outcome" else ACCEPTED
    sha256 = {"sha256": DIGEST} if case == "another file" else {}
    assert refusals(world.confirm(key, by=by.get(case, "validator2"), outcome=outcome, **sha256)) == [error]


def test_the_share_of_paid_looks_is_that_of_the_terms(world: World) -> None:
    world.chain.send(POOLS, "setTerms", world.pool, TERMS | {"lookBps": 2_500}, sender=world.owner)
    world.chain.warp(TERMS["noticePeriod"])
    keys = []
    for index in range(10):
        keys.append(world.submit(index=index))
        world.judge(keys[-1])
    judged = world.chain.block()
    world.next_block()
    world.next_block()
    blocks = [judged - 2 * (9 - index) for index in range(10)]
    expected = []
    for key, block in zip(keys, blocks, strict=True):
        following = world.chain.rpc("eth_getBlockByNumber", hex(block + 1), False)["hash"]
        word = int.from_bytes(keccak(encode(["bytes32", "bytes32"], [key, bytes.fromhex(following[2:])])), "big")
        expected.append(word % 10_000 < 2_500)
    assert [world.chain.call(WORK, "lookWanted", key) for key in keys] == expected


def test_with_a_look_share_of_zero_no_look_is_paid(world: World) -> None:
    key = drawn(world, 0)
    assert refusals(world.confirm(key, by="validator2")) == ["NoLookWanted"]
    too_many = TERMS | {"lookBps": 10_001}
    assert world.chain.refusal(POOLS, "setTerms", world.pool, too_many, sender=world.owner) == "LookShareOutOfRange"


def test_a_validator_that_confirmed_cannot_decide_the_dispute_and_is_unpaid_if_overturned(world: World) -> None:
    names = world.add_validators(5)
    key = drawn(world, 10_000)
    world.confirm(key, by="validator2")
    world.dispute(key, by="validator3")
    assert world.turn(key, "validator2") == 0
    assert refusals(decide(world, key, "validator2", FORGED)) == ["ConflictOfInterest"]
    one, other = jury(world, key, names)
    assert {one, other} == {"validator4", "validator5"}
    decide(world, key, one, FORGED)
    decide(world, key, other, FORGED)
    paid = {name: world.earned(name) for name in names if world.earned(name)}
    assert paid == dict.fromkeys(("validator3", one, other), FEE)
    assert sum(paid.values()) <= FEES


# Seats


def test_a_removed_validators_seat_is_reused_only_when_no_open_work_can_name_it(world: World) -> None:
    key = world.submit()
    world.judge(key)
    world.chain.send(POOLS, "removeValidator", world.pool, world.validator.address, 1, sender=world.owner)
    world.chain.send(POOLS, "addValidator", world.pool, world.validator3.address, sender=world.owner)
    assert world.work(key).judge == world.validator.address
    assert [each.lower() for each in world.chain.call(POOLS, "validatorsOf", world.pool)] == [
        world.validator2.address.lower(),
        world.validator3.address.lower(),
    ]
    world.finalize(key)
    world.chain.warp(UNBONDING + 1)
    world.chain.send(POOLS, "addValidator", world.pool, world.stranger.address, sender=world.owner)
    assert world.chain.call(POOLS, "seatNumberOf", world.pool, world.stranger.address) == 1
    assert world.chain.call(POOLS, "seatNumberOf", world.pool, world.validator.address) == 0
    world.chain.send(POOLS, "addValidator", world.pool, world.validator.address, sender=world.owner)
    assert world.chain.call(POOLS, "seatNumberOf", world.pool, world.validator.address) == 4


def test_the_number_of_validator_seats_is_limited(world: World) -> None:
    for number in range(3, 65):
        who = "0x" + number.to_bytes(20, "big").hex()
        world.chain.send(POOLS, "addValidator", world.pool, who, sender=world.owner)
    one_more = (world.pool, world.validator3.address)
    assert world.chain.refusal(POOLS, "addValidator", *one_more, sender=world.owner) == "TooManyValidators"
