"""The facts of submissions, read from a real chain."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from ledger.client import Ledger
from ledger.client.pools import Role
from ledger.client.work import Submission
from ledger.errors import ChainUnavailable
from ledger.events import CheckpointAnnounced
from protocol.identifiers import Address, Digest
from tests.ledger.client.conftest import POOL, World
from tests.validator.audit.works import CHECKPOINT, RUN, announced, carried, leased, submitted, with_lease
from validator.facts import FactFinder, UnknownCheckpoint, UnknownLease
from validator.footing import Footing
from validator.submissions import SubmittedWork, WorkFacts


class Finder:
    """Looks at the newest block before it finds anything, as a validator does."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._footing = Footing(ledger)
        self._finder = FactFinder(ledger, pool_id=POOL, footing=self._footing)

    async def facts(self, work: SubmittedWork, *, hinted_beacon_block: int | None = None) -> WorkFacts:
        return await (await self._looked()).facts(work, hinted_beacon_block=hinted_beacon_block)

    async def announcement(self, work: SubmittedWork) -> CheckpointAnnounced:
        return await (await self._looked()).announcement(work)

    async def publisher_of(self, announced: CheckpointAnnounced) -> Address:
        return await (await self._looked()).publisher_of(announced)

    async def _looked(self) -> FactFinder:
        await self._footing.look(await self._ledger.newest())
        return self._finder


async def test_lease_and_beacon_come_from_the_chain(world: World) -> None:
    await world.member()
    block = await announced(world)
    item = await leased(world)
    (work,) = await carried(world, [item])
    ledger = await world.as_("validator")
    finder = Finder(ledger)
    for _ in range(2):  # what is remembered is the same
        facts = await finder.facts(work)
        assert facts.lease == item.lease
        assert facts.beacons == ((block, await ledger.block_hash(block)),)


async def test_of_a_batch_the_lease_counts_that_the_ledger_took(world: World) -> None:
    """A node may put leases for its slot into a batch that the contract refuses; none of them may pass for the real."""
    await world.member()
    await announced(world)
    real = await leased(world)
    others = [
        with_lease(real, world, signer="manager", groups=9),
        with_lease(real, world, groups=9, max_units=real.units - 1),
        with_lease(real, world, groups=9, expiry=1),
        replace(with_lease(real, world, groups=9), node_signature=real.node_signature),
        replace(with_lease(real, world, groups=9), lease_signature=b"\x01" * 65),
    ]
    (work,) = await carried(world, [*others, real])
    facts = await Finder(await world.as_("validator")).facts(work)
    assert facts.lease == real.lease


async def test_a_lease_by_a_key_that_was_rotated_out_since_still_counts_and_one_from_after_does_not(
    world: World,
) -> None:
    await world.member()
    await announced(world)
    finder = Finder(await world.as_("validator"))
    before = await leased(world, index=0)
    (early,) = await carried(world, [before])
    owner = await world.as_("owner")
    now = await owner.now()
    await owner.pools.set_role(POOL, Role.ORCHESTRATOR, world.keys["second"].address, previous_until=now)
    assert (await finder.facts(early)).lease == before.lease
    real = await leased(world, index=1, signer="second")
    old = with_lease(real, world, groups=9)
    (late,) = await carried(world, [old, real])
    assert (await finder.facts(late)).lease == real.lease


async def test_a_key_counts_beside_its_successor_for_as_long_as_the_ledger_says(world: World) -> None:
    await world.member()
    await announced(world)
    owner = await world.as_("owner")
    until = await owner.now() + timedelta(hours=1)
    await owner.pools.set_role(POOL, Role.ORCHESTRATOR, world.keys["second"].address, previous_until=until)
    item = await leased(world)
    (work,) = await carried(world, [item])
    await world.warp(timedelta(hours=2))  # over now; at the submission it was not
    assert (await Finder(await world.as_("validator")).facts(work)).lease == item.lease


async def test_a_version_is_its_publishers_however_often_the_role_was_given_on_since(world: World) -> None:
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
    await announced(world, attempt=1)  # by the former key, which counts for another hour
    (between,) = await carried(world, [await leased(world, index=1)])
    assert await finder.publisher_of(await finder.announcement(between)) == first
    successor = (await world.as_("second")).checkpoints
    await successor.announce(pool_id=POOL, run=RUN, version=1, attempt=2, digest=CHECKPOINT)
    (late,) = await carried(world, [await leased(world, index=2)])
    await world.warp(timedelta(hours=2))
    for work, publisher in ((early, first), (between, first), (late, second.address)):
        assert await finder.publisher_of(await finder.announcement(work)) == publisher


async def test_a_node_that_sends_its_work_itself_need_not_sign(world: World) -> None:
    await world.member()
    await announced(world)
    item = await leased(world)
    node = await world.as_("node")
    await node.work.submit(Submission(item.lease, item.lease_signature, item.sha256, item.units, b""))
    (work,) = await carried(world, [item])  # refused: it is there; read back
    assert (await Finder(node).facts(work)).lease == item.lease


async def test_the_beacon_is_the_later_of_announcement_and_joining(world: World) -> None:
    announcement = await announced(world)
    await world.member()
    work = await submitted(world)
    ledger = await world.as_("validator")
    membership = await ledger.pools.membership(POOL, world.keys["node"].address)
    assert membership is not None
    facts = await Finder(ledger).facts(work)
    assert [block for block, _ in facts.beacons] == [membership.joined_block]
    assert membership.joined_block > announcement


async def test_of_several_joinings_the_orchestrator_names_one_that_is_possible(world: World) -> None:
    await world.member()
    ledger = await world.as_("validator")
    finder, node = Finder(ledger), world.keys["node"].address
    announcement = await announced(world)
    first = await submitted(world)
    assert [block for block, _ in (await finder.facts(first)).beacons] == [announcement]
    await (await world.as_("node")).pools.leave(POOL, node)
    await world.join(nonce=2)
    membership = await ledger.pools.membership(POOL, node)
    assert membership is not None
    joined = membership.joined_block
    work = await submitted(world, index=1)
    for hint, expected in [
        (None, [joined, announcement]),  # forgotten: both may be meant, the newest first
        (announcement, [announcement, joined]),  # named, and the other one slashes nobody
        (joined, [joined, announcement]),
        (joined + 1, [joined, announcement]),  # impossible: not believed
        (1, [joined, announcement]),
    ]:
        facts = await finder.facts(work, hinted_beacon_block=hint)
        assert [block for block, _ in facts.beacons] == expected
        assert facts.named is (hint in {announcement, joined})
    # A joining from after a submission is never its beacon.
    assert [block for block, _ in (await finder.facts(first, hinted_beacon_block=joined)).beacons] == [announcement]


async def test_a_digest_that_was_announced_again_may_stand_on_either_block(world: World) -> None:
    await world.member()
    finder = Finder(await world.as_("validator"))
    one = await announced(world)
    await finder.facts(await submitted(world))
    two = await announced(world, attempt=1)
    work = await submitted(world, index=1)
    assert [block for block, _ in (await finder.facts(work)).beacons] == [two, one]
    assert [block for block, _ in (await finder.facts(work, hinted_beacon_block=one)).beacons] == [one, two]


@pytest.mark.parametrize("what", ["version", "joining"])
async def test_what_a_reorganisation_moved_is_where_it_is_now(world: World, what: str) -> None:
    """The event that comes last decides the seed, so a node would be accused of a beacon that is gone."""
    steps: dict[str, Callable[[], Awaitable[object]]] = {"joining": world.member, "version": lambda: announced(world)}
    last = steps.pop(what)
    for first in steps.values():
        await first()
    fork = await world.controls.snapshot()
    await last()
    ledger = await world.as_("validator")
    finder, work = Finder(ledger), await submitted(world)
    for _ in range(2):
        [(before, gone)] = (await finder.facts(work)).beacons
    await world.controls.revert(fork)
    await world.warp(timedelta(seconds=5))
    await last()
    work = await submitted(world)
    [(after, there)] = (await finder.facts(work)).beacons
    assert after > before
    assert (there, there != gone) == (await ledger.block_hash(after), True)


async def test_a_version_that_a_reorganisation_took_back_is_known_no_longer(world: World) -> None:
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


async def test_what_the_ledger_does_not_hold_is_said_and_is_nobodys_guilt(world: World) -> None:
    await world.member()
    work = await submitted(world)
    finder = Finder(await world.as_("validator"))
    with pytest.raises(UnknownCheckpoint, match="not announced"):
        await finder.facts(work)
    await announced(world)
    with pytest.raises(UnknownCheckpoint, match=r"not announced before block"):  # too late for this work
        await finder.facts(work)
    late = await submitted(world, index=1)
    with pytest.raises(UnknownLease) as missing:
        await finder.facts(replace(late, sha256=Digest("0x" + "ee" * 32)))
    assert missing.value.retryable
    with pytest.raises(ChainUnavailable, match="does not know transaction"):
        await finder.facts(replace(late, transaction=Digest("0x" + "ee" * 32)))
