"""Escrow: any account can fund, open work reserves, and the owner withdraws the free part."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.contract_client import ZERO
from tests.kit.contract_world import ACCEPTED, FAR, FEES, MUSTER, POOLS, STAKE, TERMS, WORK, World


def test_anyone_can_fund_a_pool(world: World) -> None:
    world.chain.send(POOLS, "fund", world.pool, 500, sender=world.stranger)
    assert world.escrow() == {"balance": 100_500, "reserved": 0}


def test_funding_needs_an_existing_pool_a_positive_amount_and_the_tokens(world: World) -> None:
    assert world.chain.refusal(POOLS, "fund", 99, 5, sender=world.owner) == "NoSuchPool"
    assert world.chain.refusal(POOLS, "fund", world.pool, 0, sender=world.owner) == "NothingAsked"
    assert world.chain.refusal(POOLS, "fund", world.pool, 5, sender=world.node) == "ERC20InsufficientAllowance"
    too_much = (world.pool, 2**128)
    assert world.chain.refusal(POOLS, "fund", *too_much, sender=world.owner) == "SafeCastOverflowedUintDowncast"


@pytest.mark.parametrize("carried", [False, True])
def test_funding_by_permit_needs_no_approval_even_if_the_permit_was_already_submitted(
    world: World, carried: bool
) -> None:
    where = world.chain.address(POOLS)
    world.chain.send(MUSTER, "approve", where, 0, sender=world.owner)
    permit = world.permit("owner", where, 60)
    if carried:
        arguments = (world.owner.address, where, 60, FAR, *permit)
        world.chain.send(MUSTER, "permit", *arguments, sender=world.stranger)
    world.chain.send(POOLS, "fundWithPermit", world.pool, 60, FAR, *permit, sender=world.owner)
    assert world.escrow().balance == 100_060


def test_a_permit_of_another_signer_funds_nothing(world: World) -> None:
    where = world.chain.address(POOLS)
    world.chain.send(MUSTER, "approve", where, 0, sender=world.owner)
    arguments = (world.pool, 60, FAR, *world.permit("provider", where, 60))
    assert world.chain.refusal(POOLS, "fundWithPermit", *arguments, sender=world.owner) == (
        "ERC20InsufficientAllowance"
    )


def test_the_owner_withdraws_unreserved_escrow_after_the_notice_period(world: World) -> None:
    world.submit()
    free = 99_000 - FEES
    announced = world.chain.send(POOLS, "announceWithdrawal", world.pool, 200_000, sender=world.owner)
    ready = world.chain.now() + TERMS["noticePeriod"]
    assert announced.only("WithdrawalAnnounced") == {
        "poolId": world.pool,
        "amount": 200_000,
        "readyAt": ready,
        "lapsesAt": ready + TERMS["noticePeriod"],
    }
    assert world.chain.call(POOLS, "withdrawalOf", world.pool) == {
        "amount": 200_000,
        "readyAt": ready,
        "lapsesAt": ready + TERMS["noticePeriod"],
    }
    early = (world.pool, free, world.node2.address)
    refused = world.chain.refused(POOLS, "withdrawEscrow", *early, sender=world.owner)
    assert (refused.name, refused.values) == (
        "NotAnnounced",
        (world.pool, free, 200_000, ready, ready + TERMS["noticePeriod"]),
    )
    world.chain.warp(TERMS["noticePeriod"])
    too_much = (world.pool, free + 1, world.node2.address)
    refused = world.chain.refused(POOLS, "withdrawEscrow", *too_much, sender=world.owner)
    assert (refused.name, refused.values) == ("EscrowTooLow", (world.pool, free, free + 1))
    world.chain.send(POOLS, "withdrawEscrow", world.pool, free, world.node2.address, sender=world.owner)
    assert world.balance("node2") == free
    assert world.escrow() == {"balance": 1_000 + FEES, "reserved": 1_000 + FEES}
    assert world.chain.call(POOLS, "withdrawalOf", world.pool).amount == 200_000 - free
    none = (world.pool, 0, world.node2.address)
    assert world.chain.refusal(POOLS, "withdrawEscrow", *none, sender=world.owner) == "NothingAsked"


def test_only_the_owner_announces_and_a_new_announcement_replaces_the_former(world: World) -> None:
    for name in ("manager", "stranger"):
        arguments = (world.pool, 5)
        assert world.chain.refusal(POOLS, "announceWithdrawal", *arguments, sender=world.people[name]) == "NotOwner"
    world.chain.send(POOLS, "announceWithdrawal", world.pool, 500, sender=world.owner)
    world.chain.warp(TERMS["noticePeriod"])
    world.chain.send(POOLS, "announceWithdrawal", world.pool, 600, sender=world.owner)
    taken = (world.pool, 500, world.owner.address)
    assert world.chain.refusal(POOLS, "withdrawEscrow", *taken, sender=world.owner) == "NotAnnounced"
    world.chain.send(POOLS, "announceWithdrawal", world.pool, 0, sender=world.owner)
    world.chain.warp(TERMS["noticePeriod"])
    assert world.chain.refusal(POOLS, "withdrawEscrow", *taken, sender=world.owner) == "NotAnnounced"


def test_an_announced_withdrawal_lapses(world: World) -> None:
    taken = (world.pool, 500, world.owner.address)
    world.chain.send(POOLS, "announceWithdrawal", world.pool, 500, sender=world.owner)
    world.chain.warp(2 * TERMS["noticePeriod"])
    with world.chain.restored():
        world.chain.send(POOLS, "withdrawEscrow", *taken, sender=world.owner)
    world.chain.warp(1)
    assert world.chain.refusal(POOLS, "withdrawEscrow", *taken, sender=world.owner) == "NotAnnounced"


def test_an_announcement_made_while_the_pool_was_pending_is_void_once_it_is_active(world: World) -> None:
    pool = world.create_pool(world.domain, active=False, funds=700)
    world.chain.send(POOLS, "announceWithdrawal", pool, 700, sender=world.owner)
    world.chain.send(POOLS, "activate", pool, sender=world.owner)
    taken = (pool, 700, world.owner.address)
    assert world.chain.refusal(POOLS, "withdrawEscrow", *taken, sender=world.owner) == "NotAnnounced"


def test_work_under_a_lease_that_ends_within_the_notice_period_is_still_paid(world: World) -> None:
    """The owner announces a withdrawal and ends the pool between the lease and its work, in either order."""
    item = world.submission(world.lease(expiry=world.chain.now() + TERMS["noticePeriod"]))
    steps: list[tuple[str, tuple[int, ...]]] = [("announceWithdrawal", (world.pool, 100_000)), ("end", (world.pool,))]
    for order in (steps, steps[::-1]):
        with world.chain.restored():
            for name, arguments in order:
                world.chain.send(POOLS, name, *arguments, sender=world.owner)
            taken = (world.pool, 1, world.owner.address)
            assert world.chain.refusal(POOLS, "withdrawEscrow", *taken, sender=world.owner) == "NotAnnounced"
            submitted = world.chain.send(WORK, "submitWork", *item.values(), sender=world.stranger)
            world.finish(submitted.only("WorkSubmitted")["key"], ACCEPTED)
            assert world.earned("provider") == 1_000


def test_an_ended_or_never_activated_pool_pays_its_whole_escrow_to_the_owner_at_once(world: World) -> None:
    pending = world.create_pool(world.domain, active=False, funds=700)
    world.chain.send(POOLS, "withdrawEscrow", pending, 700, world.node2.address, sender=world.owner)
    world.chain.send(POOLS, "end", world.pool, sender=world.owner)
    before = world.balance("owner")
    world.withdraw(100_000)
    assert (world.balance("node2"), world.balance("owner") - before) == (700, 100_000)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("openWork", ((1, ZERO, ZERO, 1, 1, 1),)),
        ("settle", (1, 1, 1)),
        ("expel", (1, ZERO, ZERO)),
    ],
)
def test_only_the_work_ledger_moves_reserved_escrow_and_expels_members(
    world: World, function: str, arguments: tuple[Any, ...]
) -> None:
    for caller in (world.owner.address, world.governor.address, world.chain.address(STAKE)):
        assert world.chain.refusal(POOLS, function, *arguments, sender=caller) == "NotAllowed"
