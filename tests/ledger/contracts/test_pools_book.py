"""Pools: their owners, status, terms and keys."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.contract_client import ZERO
from tests.kit.contract_world import ACTIVE, DAY, ENDED, PENDING, POOLS, TERMS, World

WEEK = 7 * DAY


def test_the_creator_of_a_pool_owns_it_and_holds_no_other_role(world: World) -> None:
    pool = world.create_pool(world.domain, active=False)
    entry = world.chain.call(POOLS, "poolOf", pool)
    assert (entry.owner, entry.status, entry.domainId) == (world.owner.address, PENDING, world.domain)
    assert (entry.termsVersion, entry.memberCount, entry.dataUri) == (1, 0, "ipfs://pool")
    assert world.chain.call(POOLS, "domainOf", pool) == world.domain
    assert world.chain.call(POOLS, "poolCount") == pool
    for role, name in (("isManager", "manager"), ("isOrchestrator", "orchestrator"), ("isPublisher", "publisher")):
        assert world.chain.call(POOLS, role, pool, world.people[name].address)
        assert not world.chain.call(POOLS, role, pool, world.owner.address)
        assert not world.chain.call(POOLS, role, pool, ZERO)
    assert not world.chain.call(POOLS, "isValidator", pool, world.owner.address)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"auditFloorBps": 0}, "AuditFloorOutOfRange"),
        ({"auditFloorBps": 10_001}, "AuditFloorOutOfRange"),
        ({"penaltyPerUnit": 89}, "PenaltyTooLow"),
        ({"pricePerUnit": 1, "auditFloorBps": 3_000, "penaltyPerUnit": 2}, "PenaltyTooLow"),
        ({"judgePeriod": 0}, "PeriodMissing"),
        ({"challengePeriod": 0}, "PeriodMissing"),
        ({"disputePeriod": 0}, "PeriodMissing"),
        ({"noticePeriod": 0}, "PeriodMissing"),
        ({"judgePeriod": 7 * DAY - 1_200 - 1_800 - 3_600}, "PeriodsTooLong"),
        ({"noticePeriod": 2**32 - 1}, "PeriodsTooLong"),
    ],
)
def test_invalid_terms_are_refused(world: World, changes: dict[str, int], error: str) -> None:
    new = (world.domain, world.roles(), TERMS | changes, "")
    assert world.chain.refusal(POOLS, "createPool", *new, sender=world.owner) == error
    pending = world.create_pool(world.domain, active=False)
    assert world.chain.refusal(POOLS, "setTerms", pending, TERMS | changes, sender=world.owner) == error


@pytest.mark.parametrize(
    "changes",
    [
        {"auditFloorBps": 10_000, "penaltyPerUnit": 0},
        {"pricePerUnit": 1, "auditFloorBps": 3_000, "penaltyPerUnit": 3},
        {"pricePerUnit": 0, "auditFloorBps": 1, "penaltyPerUnit": 0},
        {"judgePeriod": 7 * DAY - 1_200 - 1_800 - 3_600 - 1},
    ],
)
def test_terms_at_the_limits_are_valid(world: World, changes: dict[str, int]) -> None:
    world.create_pool(world.domain, active=True, funds=0, **changes)


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"domain": 99}, "DomainClosed"), ({"uri": "u" * 513}, "TextTooLong"), ({"manager": ZERO}, "NoKey")],
)
def test_a_pool_needs_a_domain_role_keys_and_bounded_texts(world: World, changes: dict[str, Any], error: str) -> None:
    roles = world.roles() | {"manager": changes.get("manager", world.manager.address)}
    new = (changes.get("domain", world.domain), roles, TERMS, changes.get("uri", ""))
    assert world.chain.refusal(POOLS, "createPool", *new, sender=world.owner) == error


def test_a_pool_moves_from_pending_to_active_to_ended_and_never_back(world: World) -> None:
    pool = world.create_pool(world.domain, active=False)
    world.chain.send(POOLS, "activate", pool, sender=world.owner)
    assert world.chain.call(POOLS, "poolOf", pool).status == ACTIVE
    assert world.chain.refusal(POOLS, "activate", pool, sender=world.owner) == "WrongStatus"
    world.chain.send(POOLS, "end", pool, sender=world.owner)
    assert world.chain.call(POOLS, "poolOf", pool).status == ENDED
    for function in ("activate", "end"):
        assert world.chain.refusal(POOLS, function, pool, sender=world.owner) == "WrongStatus"
    assert world.chain.refusal(POOLS, "setTerms", pool, TERMS, sender=world.owner) == "WrongStatus"


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("activate", ()),
        ("end", ()),
        ("setDataUri", ("u",)),
        ("transferPool", (ZERO,)),
        ("setTerms", (TERMS,)),
        ("addValidator", (ZERO,)),
        ("removeValidator", (ZERO, 0)),
        ("withdrawEscrow", (1, ZERO)),
    ],
)
def test_owner_functions_are_refused_to_other_callers(world: World, function: str, arguments: tuple[Any, ...]) -> None:
    for name in ("manager", "orchestrator", "stranger", "governor"):
        caller = world.people[name]
        assert world.chain.refusal(POOLS, function, world.pool, *arguments, sender=caller) == "NotOwner"


def test_a_pools_description_can_be_updated(world: World) -> None:
    world.chain.send(POOLS, "setDataUri", world.pool, "ipfs://new", sender=world.owner)
    assert world.chain.call(POOLS, "poolOf", world.pool).dataUri == "ipfs://new"
    assert world.chain.refusal(POOLS, "setDataUri", world.pool, "u" * 513, sender=world.owner) == "TextTooLong"


def test_ownership_changes_when_the_new_owner_accepts(world: World) -> None:
    world.chain.send(POOLS, "transferPool", world.pool, world.provider2.address, sender=world.owner)
    assert world.chain.refusal(POOLS, "acceptPool", world.pool, sender=world.stranger) == "NotOffered"
    assert world.chain.call(POOLS, "poolOf", world.pool).owner == world.owner.address
    world.chain.send(POOLS, "acceptPool", world.pool, sender=world.provider2)
    assert world.chain.call(POOLS, "poolOf", world.pool).owner == world.provider2.address
    assert world.chain.refusal(POOLS, "end", world.pool, sender=world.owner) == "NotOwner"
    assert world.chain.refusal(POOLS, "acceptPool", world.pool, sender=world.provider2) == "NotOffered"


def test_an_ownership_offer_can_be_withdrawn(world: World) -> None:
    world.chain.send(POOLS, "transferPool", world.pool, world.provider2.address, sender=world.owner)
    world.chain.send(POOLS, "transferPool", world.pool, ZERO, sender=world.owner)
    assert world.chain.refusal(POOLS, "acceptPool", world.pool, sender=world.provider2) == "NotOffered"


def test_new_terms_take_effect_only_after_the_notice_period(world: World) -> None:
    receipt = world.chain.send(POOLS, "setTerms", world.pool, TERMS | {"pricePerUnit": 9}, sender=world.owner)
    due = receipt.only("TermsSet")["effectiveAt"]
    assert due == world.chain.now() + TERMS["noticePeriod"]
    assert world.chain.call(POOLS, "termsOf", world.pool).pricePerUnit == 10
    assert world.chain.call(POOLS, "pendingTermsOf", world.pool) == (TERMS | {"pricePerUnit": 9}, due)
    world.chain.at(due - 1)
    early = world.submit(index=1)
    world.chain.at(due)
    late = world.submit(index=2)
    assert (world.work(early).reward, world.work(late).reward) == (1_000, 900)
    assert world.chain.call(POOLS, "termsOf", world.pool).pricePerUnit == 9
    assert world.chain.call(POOLS, "pendingTermsOf", world.pool)[1] == 0
    assert world.chain.call(POOLS, "termsAt", world.pool, 1).pricePerUnit == 10
    assert world.chain.call(POOLS, "termsAt", world.pool, 2).pricePerUnit == 9


def test_terms_that_are_not_yet_in_force_are_replaced(world: World) -> None:
    for price in (9, 8):
        world.chain.send(POOLS, "setTerms", world.pool, TERMS | {"pricePerUnit": price}, sender=world.owner)
    world.chain.warp(TERMS["noticePeriod"])
    assert world.chain.call(POOLS, "termsOf", world.pool).pricePerUnit == 8
    world.chain.send(POOLS, "setTerms", world.pool, TERMS | {"pricePerUnit": 7}, sender=world.owner)
    assert world.chain.call(POOLS, "termsOf", world.pool).pricePerUnit == 8
    world.chain.warp(TERMS["noticePeriod"])
    assert world.chain.call(POOLS, "termsOf", world.pool).pricePerUnit == 7


def test_terms_of_a_pending_pool_change_immediately(world: World) -> None:
    pool = world.create_pool(world.domain, active=False)
    world.chain.send(POOLS, "setTerms", pool, TERMS | {"pricePerUnit": 9}, sender=world.owner)
    assert world.chain.call(POOLS, "termsOf", pool).pricePerUnit == 9


def test_an_unknown_pool_cannot_be_read(world: World) -> None:
    for function in ("poolOf", "termsOf"):
        assert world.chain.refusal(POOLS, function, 99) == "NoSuchPool"
    assert world.chain.call(POOLS, "domainOf", 99) == 0


@pytest.mark.parametrize(
    ("function", "check", "holder"),
    [
        ("setManager", "isManager", "manager"),
        ("setOrchestrator", "isOrchestrator", "orchestrator"),
        ("setPublisher", "isPublisher", "publisher"),
    ],
)
def test_a_replaced_key_stays_valid_until_its_stated_time(world: World, function: str, check: str, holder: str) -> None:
    def holds(who: str) -> bool:
        return bool(world.chain.call(POOLS, check, world.pool, who))

    old, new, third = world.people[holder].address, world.node2.address, world.reserve.address
    until = world.chain.now() + 100
    world.chain.send(POOLS, function, world.pool, new, until, sender=world.people[holder])
    assert (holds(old), holds(new)) == (True, True)
    world.chain.at(until - 1)
    world.chain.rpc("evm_mine")
    assert holds(old)
    world.chain.at(until)
    world.chain.rpc("evm_mine")
    assert (holds(old), holds(new)) == (False, True)
    assert world.chain.refusal(POOLS, function, world.pool, old, 0, sender=world.people[holder]) == "NotHolder"
    world.chain.send(POOLS, function, world.pool, third, 0, sender=world.owner)
    assert (holds(new), holds(third)) == (False, True)


@pytest.mark.parametrize("function", ["setManager", "setOrchestrator", "setPublisher"])
def test_owner_or_holder_rotate_a_key_within_limits(world: World, function: str) -> None:
    new = world.node2.address
    assert world.chain.refusal(POOLS, function, world.pool, new, 0, sender=world.stranger) == "NotHolder"
    assert world.chain.refusal(POOLS, function, 99, new, 0, sender=world.owner) == "NotHolder"
    assert world.chain.refusal(POOLS, function, world.pool, ZERO, 0, sender=world.owner) == "NoKey"
    late = world.chain.now() + WEEK + 60
    assert world.chain.refusal(POOLS, function, world.pool, new, late, sender=world.owner) == "GraceTooLong"


def test_a_second_rotation_ends_the_grace_period_of_the_first(world: World) -> None:
    until = world.chain.now() + WEEK - 60
    world.chain.send(POOLS, "setManager", world.pool, world.node2.address, until, sender=world.owner)
    world.chain.send(POOLS, "setManager", world.pool, world.reserve.address, until, sender=world.owner)
    assert not world.chain.call(POOLS, "isManager", world.pool, world.manager.address)
    assert world.chain.call(POOLS, "isManager", world.pool, world.node2.address)
    seat = world.chain.call(POOLS, "seatOf", world.pool, 0)
    assert seat == {"holder": world.reserve.address, "previous": world.node2.address, "previousUntil": until}


def test_validators_are_added_and_removed(world: World) -> None:
    who = world.validator3.address
    assert not world.chain.call(POOLS, "isValidator", world.pool, who)
    world.chain.send(POOLS, "addValidator", world.pool, who, sender=world.owner)
    assert world.chain.call(POOLS, "isValidator", world.pool, who)
    until = world.chain.now() + 100
    world.chain.send(POOLS, "removeValidator", world.pool, who, until, sender=world.owner)
    assert world.chain.call(POOLS, "isValidator", world.pool, who)
    world.chain.warp(100)
    assert not world.chain.call(POOLS, "isValidator", world.pool, who)
    world.chain.send(POOLS, "addValidator", world.pool, who, sender=world.owner)
    assert world.chain.call(POOLS, "isValidator", world.pool, who)


def test_only_added_addresses_are_validators(world: World) -> None:
    late = world.chain.now() + WEEK + 60
    pool, known, unknown = world.pool, world.validator.address, world.stranger.address
    assert world.chain.refusal(POOLS, "addValidator", pool, ZERO, sender=world.owner) == "NoKey"
    assert world.chain.refusal(POOLS, "removeValidator", pool, unknown, 0, sender=world.owner) == "NotValidator"
    assert world.chain.refusal(POOLS, "removeValidator", pool, known, late, sender=world.owner) == "GraceTooLong"


def test_the_notice_period_of_an_active_pool_never_becomes_shorter(world: World) -> None:
    """Otherwise an owner could shorten it first, and then withdraw or evict under leases signed earlier."""
    shorter = TERMS | {"noticePeriod": TERMS["noticePeriod"] - 1}
    refused = world.chain.refused(POOLS, "setTerms", world.pool, shorter, sender=world.owner)
    assert (refused.name, refused.values) == ("NoticeTooShort", (TERMS["noticePeriod"] - 1, TERMS["noticePeriod"]))
    pending = world.create_pool(world.domain, active=False)
    world.chain.send(POOLS, "setTerms", pending, shorter, sender=world.owner)
    longer = TERMS | {"noticePeriod": TERMS["noticePeriod"] + 1}
    world.chain.send(POOLS, "setTerms", world.pool, longer, sender=world.owner)
    # terms that are not in force have no effect
    world.chain.send(POOLS, "setTerms", world.pool, TERMS, sender=world.owner)
    world.chain.send(POOLS, "setTerms", world.pool, longer, sender=world.owner)
    world.chain.warp(TERMS["noticePeriod"])
    assert world.chain.refusal(POOLS, "setTerms", world.pool, TERMS, sender=world.owner) == "NoticeTooShort"
