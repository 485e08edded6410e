"""Token, stake, domains and pools through the typed client on a real chain."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from ledger.amounts import UNIT
from ledger.client import Ledger
from ledger.client.contract import ReadOnly
from ledger.client.pools import PoolStatus, Role, Terms
from ledger.errors import TransactionReverted
from protocol.errors import InvalidInput
from protocol.identifiers import ZERO_ADDRESS
from tests.kit.world import POOL, TERMS, UNBONDING, World


async def test_a_client_without_a_key_can_read_and_cannot_write(world: World) -> None:
    async with Ledger.connect(world.url, world.deployment) as ledger:
        assert await ledger.token.balance_of(world.keys["provider"].address) == 1_000 * UNIT
        with pytest.raises(ReadOnly):
            await ledger.token.transfer(ZERO_ADDRESS, 1)


async def test_tokens_can_be_transferred_and_only_the_governor_mints(world: World) -> None:
    provider, owner = await world.as_("provider"), world.keys["owner"].address
    before = await provider.token.balance_of(owner)
    await provider.token.transfer(owner, 5 * UNIT)
    assert await provider.token.balance_of(owner) == before + 5 * UNIT
    assert await provider.token.governor() == world.keys["governor"].address
    with pytest.raises(TransactionReverted, match="is not the governor") as caught:
        await provider.token.mint(owner, 1)
    assert caught.value.hint == "use the governor's key"


async def test_stake_is_added_unbonded_matured_and_withdrawn(world: World) -> None:
    provider = await world.as_("provider")
    await provider.stake.add(100 * UNIT)
    await provider.stake.unbond(40 * UNIT)
    await provider.stake.unbond(10 * UNIT)
    stake = await provider.stake.of(provider.address)
    assert (stake.active, stake.unbonding, stake.free) == (50 * UNIT, 50 * UNIT, 50 * UNIT)
    first, second = await provider.stake.unbonds_of(provider.address)
    assert (first.amount, second.amount) == (40 * UNIT, 10 * UNIT)
    with pytest.raises(TransactionReverted, match="no unbond has matured yet"):
        await provider.stake.withdraw()
    await provider.stake.cancel_unbond(second.id)
    await world.warp(UNBONDING)
    assert await provider.stake.withdraw(world.keys["owner"].address) == 40 * UNIT
    assert await provider.stake.unbonds_of(provider.address) == []
    assert await provider.stake.unbonding_period() == UNBONDING


async def test_a_number_out_of_a_contracts_range_is_refused(world: World) -> None:
    provider = await world.as_("provider")
    for asked in (provider.stake.unbond(2**128), provider.pools.get(2**256), provider.stake.cancel_unbond(-1)):
        with pytest.raises(InvalidInput, match="out of range"):
            await asked


async def test_a_third_party_can_add_stake(world: World) -> None:
    owner = await world.as_("owner")
    await owner.stake.add_for(world.keys["provider"].address, 3 * UNIT)
    assert (await owner.stake.of(world.keys["provider"].address)).active == 3 * UNIT


async def test_a_stake_request_above_the_free_amount_is_refused_with_both_amounts(world: World) -> None:
    provider = await world.as_("provider")
    await provider.stake.add(UNIT)
    with pytest.raises(TransactionReverted, match=r"2 MUST of the stake .* only 1 MUST is free"):
        await provider.stake.unbond(2 * UNIT)


async def test_the_governor_creates_changes_closes_and_opens_domains(world: World) -> None:
    governor = await world.as_("governor")
    reserve = world.keys["manager"].address
    domain = await governor.domains.create(name="code", uri="ipfs://x", reserve=reserve)
    found = await governor.domains.get(domain)
    assert (found.name, found.uri, found.reserve, found.active) == ("code", "ipfs://x", reserve, True)
    await governor.domains.update(
        domain, name="math", uri="", validation_hash=found.validation_hash, reserve=ZERO_ADDRESS
    )
    await governor.domains.set_active(domain, active=False)
    found = await governor.domains.get(domain)
    assert (found.name, found.active) == ("math", False)
    assert await governor.domains.count() == 2


async def test_a_new_pool_has_the_values_it_was_created_with(world: World) -> None:
    owner = await world.as_("owner")
    pool = await owner.pools.get(POOL)
    assert (pool.owner, pool.status, pool.domain_id, pool.data_uri) == (
        owner.address,
        PoolStatus.ACTIVE,
        1,
        "ipfs://pool",
    )
    assert await owner.pools.terms(POOL) == TERMS
    assert await owner.pools.pending_terms(POOL) is None
    assert await owner.pools.count() == 1
    assert await owner.pools.validators(POOL) == [world.keys[name].address for name in ("validator", "second", "third")]


async def test_escrow_is_funded_and_its_free_part_can_be_withdrawn(world: World) -> None:
    owner = await world.as_("owner")
    with pytest.raises(TransactionReverted, match="0 MUST was announced, from"):
        await owner.pools.withdraw_escrow(POOL, 30 * UNIT, world.keys["manager"].address)
    await owner.pools.announce_withdrawal(POOL, 200 * UNIT)
    announced = await owner.pools.withdrawal(POOL)
    assert announced.amount == 200 * UNIT
    assert announced.ready_at == await owner.now() + TERMS.notice_period
    await world.warp(TERMS.notice_period)
    await owner.pools.withdraw_escrow(POOL, 30 * UNIT, world.keys["manager"].address)
    escrow = await owner.pools.escrow(POOL)
    assert (escrow.balance, escrow.free) == (70 * UNIT, 70 * UNIT)
    assert await owner.token.balance_of(world.keys["manager"].address) == 30 * UNIT
    with pytest.raises(TransactionReverted, match="70 MUST free, and 71 MUST is needed"):
        await owner.pools.withdraw_escrow(POOL, 71 * UNIT, owner.address)


async def test_new_terms_take_effect_after_the_notice_period(world: World) -> None:
    owner = await world.as_("owner")
    cheaper = Terms.deterring(replace(TERMS, price_per_unit=1))
    await owner.pools.set_terms(POOL, cheaper)
    pending = await owner.pools.pending_terms(POOL)
    assert pending is not None
    assert pending[0] == cheaper
    assert await owner.pools.terms(POOL) == TERMS
    await world.warp(TERMS.notice_period + timedelta(seconds=1))
    assert await owner.pools.terms(POOL) == cheaper


async def test_terms_with_too_low_a_penalty_are_refused(world: World) -> None:
    owner = await world.as_("owner")
    with pytest.raises(TransactionReverted, match=r"does not deter .* least is 0.01 MUST"):
        await owner.pools.set_terms(POOL, replace(TERMS, penalty_per_unit=TERMS.least_penalty - 1))


async def test_a_former_role_key_stays_valid_until_its_stated_time(world: World) -> None:
    owner, new = await world.as_("owner"), world.keys["second"].address
    old = world.keys["orchestrator"].address
    until = await owner.now() + timedelta(hours=1)
    await owner.pools.set_role(POOL, Role.ORCHESTRATOR, new, previous_until=until)
    assert await owner.pools.is_orchestrator(POOL, new)
    assert await owner.pools.is_orchestrator(POOL, old)
    current = await owner.pools.role_holder(POOL, Role.ORCHESTRATOR)
    assert (current.holder, current.previous) == (new, old)
    await world.warp(timedelta(hours=1))
    assert not await owner.pools.is_orchestrator(POOL, old)
    assert await owner.pools.is_manager(POOL, world.keys["manager"].address)
    assert await owner.pools.is_publisher(POOL, world.keys["publisher"].address)


async def test_validators_are_added_and_removed(world: World) -> None:
    owner, third = await world.as_("owner"), world.keys["third"].address
    await owner.pools.remove_validator(POOL, third, until=await owner.now())
    assert third not in await owner.pools.validators(POOL)


async def test_a_pool_changes_hands_only_when_the_new_owner_accepts(world: World) -> None:
    owner, manager = await world.as_("owner"), await world.as_("manager")
    with pytest.raises(TransactionReverted):
        await manager.pools.accept(POOL)
    await owner.pools.transfer(POOL, manager.address)
    assert (await owner.pools.get(POOL)).owner == owner.address
    await manager.pools.accept(POOL)
    assert (await owner.pools.get(POOL)).owner == manager.address
    await manager.pools.set_data_uri(POOL, "ipfs://new")
    await manager.pools.end(POOL)
    assert (await owner.pools.get(POOL)).status is PoolStatus.ENDED
