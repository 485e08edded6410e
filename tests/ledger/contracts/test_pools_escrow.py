"""Escrow: anybody funds, open work reserves, the owner takes back what is free."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ledger.contracts.harness import ZERO
from tests.ledger.contracts.world import FAR, MUSTER, POOLS, STAKE, World


def test_anybody_funds_a_pool(world: World) -> None:
    world.chain.send(POOLS, "fund", world.pool, 500, sender=world.stranger)
    assert world.escrow() == {"balance": 100_500, "reserved": 0}


def test_funding_needs_a_pool_an_amount_and_the_tokens(world: World) -> None:
    assert world.chain.refusal(POOLS, "fund", 99, 5, sender=world.owner) == "NoSuchPool"
    assert world.chain.refusal(POOLS, "fund", world.pool, 0, sender=world.owner) == "NothingAsked"
    assert world.chain.refusal(POOLS, "fund", world.pool, 5, sender=world.node) == "ERC20InsufficientAllowance"
    too_much = (world.pool, 2**128)
    assert world.chain.refusal(POOLS, "fund", *too_much, sender=world.owner) == "SafeCastOverflowedUintDowncast"


@pytest.mark.parametrize("carried", [False, True])
def test_funding_under_a_permit_needs_no_approval_even_if_somebody_carried_it(world: World, carried: bool) -> None:
    where = world.chain.address(POOLS)
    world.chain.send(MUSTER, "approve", where, 0, sender=world.owner)
    permit = world.permit("owner", where, 60)
    if carried:
        arguments = (world.owner.address, where, 60, FAR, *permit)
        world.chain.send(MUSTER, "permit", *arguments, sender=world.stranger)
    world.chain.send(POOLS, "fundWithPermit", world.pool, 60, FAR, *permit, sender=world.owner)
    assert world.escrow().balance == 100_060


def test_a_wrong_permit_funds_nothing(world: World) -> None:
    where = world.chain.address(POOLS)
    world.chain.send(MUSTER, "approve", where, 0, sender=world.owner)
    arguments = (world.pool, 60, FAR, *world.permit("provider", where, 60))
    assert world.chain.refusal(POOLS, "fundWithPermit", *arguments, sender=world.owner) == (
        "ERC20InsufficientAllowance"
    )


def test_the_owner_takes_back_all_that_nothing_reserves_and_no_more(world: World) -> None:
    world.submit()
    too_much = (world.pool, 99_001, world.node2.address)
    refused = world.chain.refused(POOLS, "withdrawEscrow", *too_much, sender=world.owner)
    assert (refused.name, refused.values) == ("EscrowTooLow", (world.pool, 99_000, 99_001))
    world.chain.send(POOLS, "withdrawEscrow", world.pool, 99_000, world.node2.address, sender=world.owner)
    assert world.balance("node2") == 99_000
    assert world.escrow() == {"balance": 1_000, "reserved": 1_000}
    none = (world.pool, 0, world.node2.address)
    assert world.chain.refusal(POOLS, "withdrawEscrow", *none, sender=world.owner) == "NothingAsked"


def test_the_owner_takes_free_money_out_of_an_ended_pool_too(world: World) -> None:
    world.chain.send(POOLS, "end", world.pool, sender=world.owner)
    world.chain.send(POOLS, "withdrawEscrow", world.pool, 100_000, world.node2.address, sender=world.owner)
    assert world.balance("node2") == 100_000


@pytest.mark.parametrize(
    ("function", "arguments"),
    [("openWork", (ZERO, ZERO, 1)), ("release", (1,)), ("settle", (1,)), ("expel", (ZERO,))],
)
def test_only_the_work_ledger_moves_reserved_money_and_expels(
    world: World, function: str, arguments: tuple[Any, ...]
) -> None:
    for caller in (world.owner.address, world.governor.address, world.chain.address(STAKE)):
        assert world.chain.refusal(POOLS, function, world.pool, *arguments, sender=caller) == "NotAllowed"
