"""The token: only the governor mints, every holder may burn, and a permit allows a transfer."""

from __future__ import annotations

import pytest

from ledger.artifacts import Contract
from tests.kit.contract_world import DOMAINS, FAR, MUSTER, World


def test_minting_by_the_governor_increases_the_supply(world: World) -> None:
    before = world.chain.call(MUSTER, "totalSupply")
    world.chain.send(MUSTER, "mint", world.node2.address, 5, sender=world.governor)
    assert world.chain.call(MUSTER, "totalSupply") == before + 5
    assert world.balance("node2") == 5


def test_only_the_governor_mints(world: World) -> None:
    refusal = world.chain.refusal(MUSTER, "mint", world.owner.address, 5, sender=world.owner)
    assert refusal == "OwnableUnauthorizedAccount"


def test_a_holder_burns_only_its_own_tokens(world: World) -> None:
    before = world.chain.call(MUSTER, "totalSupply")
    world.chain.send(MUSTER, "burn", 7, sender=world.stranger)
    assert world.chain.call(MUSTER, "totalSupply") == before - 7
    assert world.chain.refusal(MUSTER, "burn", 1, sender=world.node2) == "ERC20InsufficientBalance"


def test_a_permit_grants_an_allowance_once_and_only_if_the_holder_signed_it(world: World) -> None:
    holder, spender = world.owner, world.stranger.address
    v, r, s = world.permit("owner", spender, 9)
    forged = world.permit("provider", spender, 9)
    arguments = (holder.address, spender, 9, FAR)
    assert world.chain.refusal(MUSTER, "permit", *arguments, *forged) == "ERC2612InvalidSigner"
    assert world.chain.refusal(MUSTER, "permit", holder.address, spender, 9, 1, v, r, s) == "ERC2612ExpiredSignature"
    world.chain.send(MUSTER, "permit", *arguments, v, r, s, sender=world.stranger)
    assert world.chain.call(MUSTER, "allowance", holder.address, spender) == 9
    assert world.chain.refusal(MUSTER, "permit", *arguments, v, r, s) == "ERC2612InvalidSigner"


@pytest.mark.parametrize("contract", [MUSTER, DOMAINS])
def test_the_governor_role_is_transferred_in_two_steps(world: World, contract: Contract) -> None:
    world.chain.send(contract, "transferOwnership", world.owner.address, sender=world.governor)
    assert world.chain.call(contract, "owner") == world.governor.address
    refusal = world.chain.refusal(contract, "acceptOwnership", sender=world.stranger)
    assert refusal == "OwnableUnauthorizedAccount"
    world.chain.send(contract, "acceptOwnership", sender=world.owner)
    assert world.chain.call(contract, "owner") == world.owner.address
