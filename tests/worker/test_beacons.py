"""Checks that a node makes on a real chain before it generates anything under a lease."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ledger.client import Ledger
from ledger.errors import ChainUnavailable
from protocol.identifiers import Digest, run_id
from protocol.leases import Lease
from tests.kit.world import POOL, TERMS, World
from worker.chain.ledger_chain import LedgerChain

VERSION = Digest("0x" + "ab" * 32)
OTHER = Digest("0x" + "cd" * 32)


@pytest.fixture
async def chain(world: World) -> AsyncIterator[LedgerChain]:
    """Returns the chain from the node's point of view."""
    chain = LedgerChain(rpc=world.url, deployment=world.deployment, key=world.keys["node"], pool_id=POOL)
    yield chain
    await chain.close()


async def announced(world: World, *, version: int = 0, attempt: int = 0, digest: Digest = VERSION) -> int:
    """Announces a version on the ledger; returns the number of the block."""
    publisher = await world.as_("publisher")
    receipt = await publisher.checkpoints.announce(
        pool_id=POOL, run=run_id("main"), version=version, attempt=attempt, digest=digest
    )
    return receipt.block_number


async def joined(world: World) -> int:
    """Returns the number of the block in which the node joined last."""
    found = await (await world.as_("owner")).pools.membership(POOL, world.keys["node"].address)
    assert found is not None
    return found.joined_block


NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + TERMS.notice_period


def lease(world: World, *, block: int) -> Lease:
    return Lease(
        pool_id=POOL,
        run=run_id("main"),
        step=0,
        index=0,
        node=world.keys["node"].address,
        version=0,
        digest=VERSION,
        beacon_block=block,
        salt=OTHER,
        groups=1,
        max_units=10,
        expiry=int(NOW.timestamp()) + 600,
    )


async def test_a_dishonest_orchestrator_cannot_give_a_node_another_seed(world: World, chain: LedgerChain) -> None:
    await world.member()
    block = await announced(world)
    ledger, granted = await world.as_("owner"), lease(world, block=block)
    real, earlier = await ledger.block_hash(block), await ledger.block_hash(await joined(world))
    assert await chain.fault_of(granted, real) == ""
    assert f"block {block} has the hash {real}" in await chain.fault_of(granted, OTHER)
    before = replace(granted, beacon_block=await joined(world))
    assert f"announcement and joining require {block}" in await chain.fault_of(before, earlier)
    for other in (replace(granted, digest=OTHER), replace(granted, version=1), replace(granted, run=run_id("other"))):
        assert "is not announced" in await chain.fault_of(other, real)
    stranger = replace(granted, node=world.keys["third"].address)
    assert "never joined" in await chain.fault_of(stranger, real)


async def test_a_node_that_joined_again_may_use_either_beacon_that_a_validator_accepts(
    world: World, chain: LedgerChain
) -> None:
    await world.member()
    first = await announced(world)
    await (await world.as_("node")).pools.leave(POOL, world.keys["node"].address)
    await world.join(nonce=2)
    ledger, again = await world.as_("owner"), await joined(world)
    for block in (first, again):
        assert await chain.fault_of(lease(world, block=block), await ledger.block_hash(block)) == ""
    await announced(world, attempt=1, digest=OTHER)
    newer = await joined(world)
    old = lease(world, block=newer)
    assert await chain.fault_of(old, await ledger.block_hash(newer)) == "", "an older attempt's lease"


async def test_the_chain_is_read_once_per_version_and_a_missing_block_is_waited_for(
    world: World, chain: LedgerChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.member()
    block = await announced(world)
    real, granted = await (await world.as_("owner")).block_hash(block), lease(world, block=block)
    with pytest.raises(ChainUnavailable, match="does not have block"):
        await chain.fault_of(replace(granted, beacon_block=block + 1000), real)
    assert await chain.fault_of(granted, real) == ""

    async def down(*_: object) -> Digest:
        raise ChainUnavailable("the chain is down")

    monkeypatch.setattr(Ledger, "block_hash", down)
    assert await chain.fault_of(replace(granted, step=1, index=5), real) == ""
    with pytest.raises(ChainUnavailable):
        await chain.fault_of(granted, OTHER)


async def test_a_lease_longer_than_the_notice_period_is_refused_by_the_node(world: World, chain: LedgerChain) -> None:
    await world.member()
    block = await announced(world)
    granted = lease(world, block=block)
    longest = int(LATER.timestamp())
    assert await chain.pay_fault_of(replace(granted, expiry=longest), NOW) == ""
    assert await chain.pay_fault_of(replace(granted, expiry=longest + 60), NOW) == "", "clocks may differ by a minute"
    said = await chain.pay_fault_of(replace(granted, expiry=longest + 61), NOW)
    assert "lasts 14461 s" in said
    assert "only for the notice period of 14400 s" in said
    assert "notice period" in await chain.pay_fault_of(replace(granted, expiry=2**62), NOW)


async def test_a_lease_that_the_escrow_may_not_cover_is_refused(
    world: World, chain: LedgerChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An announced withdrawal reduces the escrow at once.

    The owner may make it at any moment when the notice period is over.
    """
    monkeypatch.setattr("worker.chain.ledger_chain.ESCROW_CACHE_TTL", timedelta())
    await world.member()
    block = await announced(world)
    owner = await world.as_("owner")
    granted = lease(world, block=block)
    costs = granted.max_units * TERMS.price_per_unit + TERMS.reserved_fees
    free = (await owner.pools.escrow(POOL)).free
    await owner.pools.announce_withdrawal(POOL, free - costs)
    assert await chain.pay_fault_of(granted, NOW) == ""
    await owner.pools.announce_withdrawal(POOL, free - costs + 1)
    assert "neither reserved for open work nor announced for withdrawal" in await chain.pay_fault_of(granted, NOW)
    await world.warp(2 * TERMS.notice_period + timedelta(seconds=1))
    assert await chain.pay_fault_of(granted, NOW) == "", "a lapsed announcement withdraws nothing"


@pytest.mark.parametrize(
    ("change", "refused"),
    [({"price_per_unit": 1}, True), ({"penalty_per_unit": 10**18}, True), ({"max_nodes": 11}, False)],
    ids=["pays less", "costs more", "neither"],
)
async def test_a_lease_that_may_be_settled_under_worse_terms_is_refused(
    world: World, chain: LedgerChain, change: dict[str, int], refused: bool
) -> None:
    await world.member()
    block = await announced(world)
    owner = await world.as_("owner")
    await owner.pools.set_terms(POOL, replace(TERMS, **change))  # type: ignore[arg-type]  # all of these are integers
    binds = int((await owner.now() + TERMS.notice_period).timestamp())
    now = datetime.fromtimestamp(binds, UTC) - timedelta(seconds=60)
    before, after = (replace(lease(world, block=block), expiry=binds + late) for late in (-30, 30))
    assert await chain.pay_fault_of(before, now) == ""
    assert ("when worse terms" in await chain.pay_fault_of(after, now)) is refused
