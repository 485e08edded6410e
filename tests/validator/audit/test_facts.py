"""The facts of submissions, read from a real chain."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from ledger.client import Ledger
from ledger.client.pools import Role
from ledger.events.types import CheckpointAnnounced
from protocol.identifiers import Address
from protocol.identity.keys import Key
from tests.kit.world import POOL, World
from tests.validator.audit.works import CHECKPOINT, RUN, SALT, announced, carried, leased, submitted
from validator.chain.reorgs import ReorgTracker
from validator.chain.submission_facts import FactFinder, UnknownCheckpoint, WrongBeacon
from validator.domain.submissions import SubmittedWork, WorkFacts


class Finder:
    """A fact finder that reads the newest block before each query, as a validator does."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._reorgs = ReorgTracker(ledger)
        self._finder = FactFinder(ledger, pool_id=POOL, reorgs=self._reorgs)

    async def facts(self, work: SubmittedWork) -> WorkFacts:
        return await (await self._looked()).facts(work)

    async def provider_of(self, node: Address) -> Address | None:
        return await (await self._looked()).provider_of(node)

    async def announcement(self, work: SubmittedWork) -> CheckpointAnnounced:
        return await (await self._looked()).announcement(work)

    async def publisher_of(self, announced: CheckpointAnnounced) -> Address:
        return await (await self._looked()).publisher_of(announced)

    async def _looked(self) -> FactFinder:
        await self._reorgs.observe(await self._ledger.newest())
        return self._finder


async def test_the_lease_is_read_from_the_event_and_the_beacon_from_the_chain(world: World) -> None:
    await world.member()
    block = await announced(world)
    item = await leased(world)
    (work,) = await carried(world, [item])
    lease = item.lease
    assert (work.beacon_block, work.salt, work.groups, work.max_units) == (block, SALT, lease.groups, lease.max_units)
    ledger = await world.as_("validator")
    finder = Finder(ledger)
    for _ in range(2):  # the second read returns the cached value
        facts = await finder.facts(work)
        expected = WorkFacts(
            work=work,
            chain_id=world.deployment.chain_id,
            work_ledger=ledger.work.domain.contract,
            beacon=await ledger.block_hash(block),
        )
        assert facts == expected


async def test_a_nodes_provider_is_cached_and_an_unknown_node_has_none(world: World) -> None:
    await world.member()
    finder = Finder(await world.as_("validator"))
    for _ in range(2):
        assert await finder.provider_of(world.keys["node"].address) == world.keys["provider"].address
    assert await finder.provider_of(Key.generate().address) is None


async def test_a_version_belongs_to_its_announcing_publisher_after_any_rotations(world: World) -> None:
    await world.member()
    await announced(world)
    finder = Finder(await world.as_("validator"))
    (early,) = await carried(world, [await leased(world, index=0)])
    first, second = world.keys["publisher"].address, world.keys["second"]
    assert await finder.publisher_of(await finder.announcement(early)) == first
    owner = await world.as_("owner")
    until = await owner.now() + timedelta(hours=1)
    await owner.pools.set_role(POOL, Role.PUBLISHER, second.address, previous_until=until)
    assert await finder.publisher_of(await finder.announcement(early)) == first
    await announced(world, attempt=1)  # by the former key, which is valid for another hour
    (between,) = await carried(world, [await leased(world, index=1)])
    assert await finder.publisher_of(await finder.announcement(between)) == first
    successor = (await world.as_("second")).checkpoints
    await successor.announce(pool_id=POOL, run=RUN, version=1, attempt=2, digest=CHECKPOINT)
    (late,) = await carried(world, [await leased(world, index=2)])
    await world.warp(timedelta(hours=2))
    for work, publisher in ((early, first), (between, first), (late, second.address)):
        assert await finder.publisher_of(await finder.announcement(work)) == publisher


async def test_only_the_later_block_of_announcement_and_joining_is_the_beacon(world: World) -> None:
    announcement = await announced(world)
    await world.member()
    ledger = await world.as_("validator")
    membership = await ledger.pools.membership(POOL, world.keys["node"].address)
    assert membership is not None
    joined = membership.joined_block
    assert joined > announcement
    finder = Finder(ledger)
    right = await submitted(world, beacon_block=joined)
    assert (await finder.facts(right)).beacon == await ledger.block_hash(joined)
    for index, wrong in enumerate([announcement, joined - 1, joined + 1, 0], start=1):
        work = await submitted(world, index=index, beacon_block=wrong)
        with pytest.raises(WrongBeacon, match=f"names beacon block {wrong}") as refused:
            await finder.facts(work)
        assert refused.value.retryable  # the orchestrator's error or a lagging RPC endpoint, never a verdict


async def test_of_several_joinings_the_lease_names_the_one_for_its_beacon(world: World) -> None:
    await world.member()
    ledger = await world.as_("validator")
    finder, node = Finder(ledger), world.keys["node"].address
    announcement = await announced(world)
    first = await submitted(world)
    await (await world.as_("node")).pools.leave(POOL, node)
    await world.join(nonce=2)
    membership = await ledger.pools.membership(POOL, node)
    assert membership is not None
    for index, block in enumerate([announcement, membership.joined_block], start=1):
        work = await submitted(world, index=index, beacon_block=block)
        assert (await finder.facts(work)).beacon == await ledger.block_hash(block)
    # A joining after the submission is never its beacon.
    with pytest.raises(WrongBeacon):
        await finder.facts(replace(first, beacon_block=membership.joined_block))


async def test_a_digest_announced_twice_may_use_either_block_as_beacon(world: World) -> None:
    await world.member()
    ledger = await world.as_("validator")
    finder = Finder(ledger)
    one = await announced(world)
    await finder.facts(await submitted(world))
    two = await announced(world, attempt=1)
    for index, block in enumerate([one, two], start=1):
        work = await submitted(world, index=index, beacon_block=block)
        assert (await finder.facts(work)).beacon == await ledger.block_hash(block)


@pytest.mark.parametrize("what", ["version", "joining"])
async def test_events_moved_by_a_reorg_are_read_at_their_new_place(world: World, what: str) -> None:
    """The later event decides the seed, so a stale block would accuse a node of a wrong beacon."""
    steps: dict[str, Callable[[], Awaitable[object]]] = {"joining": world.member, "version": lambda: announced(world)}
    last = steps.pop(what)
    for first in steps.values():
        await first()
    fork = await world.controls.snapshot()
    await last()
    ledger = await world.as_("validator")
    finder, before = Finder(ledger), await submitted(world)
    for _ in range(2):
        gone = (await finder.facts(before)).beacon
    await world.controls.revert(fork)
    await world.warp(timedelta(seconds=5))
    await last()
    after = await submitted(world)
    there = (await finder.facts(after)).beacon
    assert after.beacon_block > before.beacon_block
    assert (there, there != gone) == (await ledger.block_hash(after.beacon_block), True)


async def test_a_version_removed_by_a_reorg_is_unknown(world: World) -> None:
    await world.member()
    fork = await world.controls.snapshot()
    block = await announced(world)
    finder, work = Finder(await world.as_("validator")), await submitted(world)
    for _ in range(2):
        assert (await finder.announcement(work)).log.block_number == block
    await world.controls.revert(fork)
    await world.warp(timedelta(seconds=5))
    work = await submitted(world)
    with pytest.raises(UnknownCheckpoint):
        await finder.announcement(work)
    with pytest.raises(UnknownCheckpoint):
        await finder.facts(work)


async def test_an_unannounced_version_is_retryable_and_blames_no_node(world: World) -> None:
    await world.member()
    work = await submitted(world)
    finder = Finder(await world.as_("validator"))
    with pytest.raises(UnknownCheckpoint, match="not announced"):
        await finder.facts(work)
    await announced(world)
    with pytest.raises(UnknownCheckpoint, match=r"was not announced by then") as missing:  # too late for this work
        await finder.facts(work)
    assert missing.value.retryable
