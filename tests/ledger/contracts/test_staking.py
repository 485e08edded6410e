"""Stake: how it is locked, unbonded and slashed."""

from __future__ import annotations

import pytest

from tests.kit.contract_client import ZERO, RevertedCall
from tests.kit.contract_world import FAR, MUSTER, POOLS, STAKE, TERMS, UNBONDING, WORK, World

STAKED = 100_000
MEMBERSHIP = 10_000


def test_staking_moves_tokens_into_active_stake(world: World) -> None:
    before = world.balance("provider")
    world.chain.send(STAKE, "stake", 500, sender=world.provider)
    assert world.stake() == {
        "active": STAKED + 500,
        "unbonding": 0,
        "membershipLock": MEMBERSHIP,
        "workLock": 0,
    }
    assert world.balance("provider") == before - 500


def test_zero_or_more_than_the_balance_cannot_be_staked(world: World) -> None:
    assert world.chain.refusal(STAKE, "stake", 0, sender=world.provider) == "NothingAsked"
    assert world.chain.refusal(STAKE, "stake", 5, sender=world.node) == "ERC20InsufficientAllowance"
    assert world.chain.refusal(STAKE, "stake", 2_000_000, sender=world.provider) == "ERC20InsufficientBalance"


def test_anyone_can_add_to_a_providers_stake(world: World) -> None:
    world.chain.send(STAKE, "stakeFor", world.provider2.address, 70, sender=world.stranger)
    assert world.stake("provider2").active == 70
    assert world.chain.refusal(STAKE, "stakeFor", ZERO, 70, sender=world.stranger) == "NoRecipient"


def test_staking_under_a_permit_needs_no_approval(world: World) -> None:
    world.chain.send(MUSTER, "approve", world.chain.address(STAKE), 0, sender=world.provider2)
    permit = world.permit("provider2", world.chain.address(STAKE), 60)
    world.chain.send(STAKE, "stakeWithPermit", 60, FAR, *permit, sender=world.provider2)
    assert world.stake("provider2").active == 60


def test_a_permit_that_was_already_submitted_does_not_stop_the_staking(world: World) -> None:
    world.chain.send(MUSTER, "approve", world.chain.address(STAKE), 0, sender=world.provider2)
    permit = world.permit("provider2", world.chain.address(STAKE), 60)
    arguments = (world.provider2.address, world.chain.address(STAKE), 60, FAR, *permit)
    world.chain.send(MUSTER, "permit", *arguments, sender=world.stranger)
    world.chain.send(STAKE, "stakeWithPermit", 60, FAR, *permit, sender=world.provider2)
    assert world.stake("provider2").active == 60


def test_a_permit_of_another_signer_stakes_nothing(world: World) -> None:
    world.chain.send(MUSTER, "approve", world.chain.address(STAKE), 0, sender=world.provider2)
    permit = world.permit("provider", world.chain.address(STAKE), 60)
    refusal = world.chain.refusal(STAKE, "stakeWithPermit", 60, FAR, *permit, sender=world.provider2)
    assert refusal == "ERC20InsufficientAllowance"


def test_unbonded_stake_can_be_withdrawn_only_after_the_period(world: World) -> None:
    before = world.balance("provider")
    receipt = world.chain.send(STAKE, "beginUnbond", 1_000, sender=world.provider)
    started = receipt.only("UnbondStarted")
    assert world.stake().unbonding == 1_000
    assert world.chain.call(STAKE, "unbondsOf", world.provider.address) == (
        0,
        [{"amount": 1_000, "maturesAt": started["maturesAt"]}],
    )
    assert world.chain.refusal(STAKE, "withdraw", sender=world.provider) == "NothingMatured"
    world.chain.at(started["maturesAt"])
    world.chain.send(STAKE, "withdraw", sender=world.provider)
    assert world.balance("provider") == before + 1_000
    assert world.stake().unbonding == 0
    assert world.chain.refusal(STAKE, "withdraw", sender=world.provider) == "NothingMatured"


def test_matured_stake_can_be_withdrawn_to_another_address_but_not_to_zero(world: World) -> None:
    world.chain.send(STAKE, "beginUnbond", 1_000, sender=world.provider)
    world.chain.warp(UNBONDING)
    assert world.chain.refusal(STAKE, "withdraw", ZERO, sender=world.provider) == "NoRecipient"
    world.chain.send(STAKE, "withdraw", world.node2.address, sender=world.provider)
    assert world.balance("node2") == 1_000


def test_stake_locked_by_a_membership_or_open_work_cannot_unbond(world: World) -> None:
    world.submit()
    free = STAKED - MEMBERSHIP - 100 * TERMS["penaltyPerUnit"]
    refused = world.chain.refused(STAKE, "beginUnbond", free + 1, sender=world.provider)
    assert (refused.name, refused.values[1:]) == ("StakeTooLow", (free, free + 1))
    world.chain.send(STAKE, "beginUnbond", free, sender=world.provider)
    assert world.chain.refusal(STAKE, "beginUnbond", 1, sender=world.provider) == "StakeTooLow"
    assert world.chain.refusal(STAKE, "beginUnbond", 0, sender=world.provider) == "NothingAsked"


def test_a_cancelled_unbonding_is_active_again_and_other_entries_stay(world: World) -> None:
    for amount in (1, 2, 3):
        world.chain.send(STAKE, "beginUnbond", amount, sender=world.provider)
    world.chain.send(STAKE, "cancelUnbond", 1, sender=world.provider)
    assert (world.stake().active, world.stake().unbonding) == (STAKED - 4, 4)
    assert world.chain.refusal(STAKE, "cancelUnbond", 1, sender=world.provider) == "NoSuchUnbond"
    assert world.chain.refusal(STAKE, "cancelUnbond", 0, sender=world.stranger) == "NoSuchUnbond"
    world.chain.warp(UNBONDING)
    receipt = world.chain.send(STAKE, "withdraw", sender=world.provider)
    assert receipt.only("Withdrawn")["amount"] == 4


def test_the_unbonding_queue_is_bounded_and_frees_places(world: World) -> None:
    for _ in range(32):
        world.chain.send(STAKE, "beginUnbond", 1, sender=world.provider)
    assert world.chain.refusal(STAKE, "beginUnbond", 1, sender=world.provider) == "TooManyUnbonds"
    world.chain.send(STAKE, "cancelUnbond", 31, sender=world.provider)
    world.chain.send(STAKE, "beginUnbond", 1, sender=world.provider)
    world.chain.warp(UNBONDING)
    assert world.chain.send(STAKE, "withdraw", sender=world.provider).only("Withdrawn")["amount"] == 32
    world.chain.send(STAKE, "beginUnbond", 1, sender=world.provider)


@pytest.mark.parametrize("function", ["lockMembership", "unlockMembership", "lockWork", "unlockWork"])
def test_only_the_pool_contracts_lock_and_unlock(world: World, function: str) -> None:
    mine, other = (POOLS, WORK) if "Membership" in function else (WORK, POOLS)
    arguments = (world.provider.address, 1)
    for caller in (world.governor.address, world.provider.address, world.chain.address(other)):
        assert world.chain.refusal(STAKE, function, *arguments, sender=caller) == "NotAllowed"
    if function.startswith("lock"):
        too_much = (world.provider.address, STAKED)
        assert world.chain.refusal(STAKE, function, *too_much, sender=world.chain.address(mine)) == "StakeTooLow"


def test_only_the_work_ledger_slashes(world: World) -> None:
    arguments = (world.provider.address, 1, ZERO)
    for caller in (world.governor.address, world.owner.address, world.chain.address(POOLS)):
        assert world.chain.refusal(STAKE, "slash", *arguments, sender=caller) == "NotAllowed"


def test_a_slash_takes_active_stake_then_the_queue_and_takes_less_if_there_is_less(world: World) -> None:
    with world.bare_stake_manager():
        world.chain.send(STAKE, "stakeFor", world.provider2.address, 100, sender=world.stranger)
        for amount in (30, 30):
            world.chain.send(STAKE, "beginUnbond", amount, sender=world.provider2)
        world.chain.warp(UNBONDING)
        assert world.slash(20, world.reserve.address) == 20
        assert (world.stake("provider2").active, world.stake("provider2").unbonding) == (20, 60)
        assert world.slash(60, world.reserve.address) == 60
        assert (world.stake("provider2").active, world.stake("provider2").unbonding) == (0, 20)
        assert world.balance("reserve") == 80
        supply = world.chain.call(MUSTER, "totalSupply")
        assert world.slash(50, ZERO) == 20
        assert world.chain.call(MUSTER, "totalSupply") == supply - 20
        assert world.slash(50, ZERO) == 0
        assert world.chain.refusal(STAKE, "withdraw", sender=world.provider2) == "NothingMatured"


def test_unbonding_stake_left_by_a_slash_can_be_withdrawn(world: World) -> None:
    with world.bare_stake_manager():
        world.chain.send(STAKE, "stakeFor", world.provider2.address, 60, sender=world.stranger)
        for amount in (30, 30):
            world.chain.send(STAKE, "beginUnbond", amount, sender=world.provider2)
        assert world.slash(45, ZERO) == 45
        world.chain.warp(UNBONDING)
        assert world.chain.send(STAKE, "withdraw", sender=world.provider2).only("Withdrawn")["amount"] == 15


def test_deployment_without_an_unbonding_period_is_refused(world: World) -> None:
    where = [world.chain.address(contract) for contract in (MUSTER, POOLS, WORK)]
    with pytest.raises(RevertedCall, match="NoUnbondingPeriod"):
        world.chain.simulate_create(STAKE, *where, 0)
