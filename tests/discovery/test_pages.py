"""A pool's owner and roles list its nodes in pages; other callers learn no node's address."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta

import pytest

from discovery.chain.roles import PoolRole
from protocol.errors import Forbidden, InvalidInput, NotFound, RateLimited, Unavailable, Unprocessable
from protocol.http.lookups import LookupLimits
from protocol.identity.keys import Key
from tests.kit.discovery import (
    MANAGER,
    NODE,
    ORCHESTRATOR,
    OWNER,
    POOL,
    PROVIDER,
    STRANGER,
    VALIDATOR,
    Opening,
    Place,
    registration,
)


@pytest.mark.parametrize("key", [OWNER, MANAGER, ORCHESTRATOR, VALIDATOR], ids=["owner", "manager", "orch", "val"])
async def test_the_pools_owner_and_roles_can_list_its_nodes(place: Place, key: Key) -> None:
    await place.client(NODE, ip="192.0.2.77").register(registration())
    await place.learn(providers={NODE.address: PROVIDER.address}, stakes={PROVIDER.address: 12})
    page = await place.client(key).page(POOL)
    assert [(node.ip, node.stake) for node in page.nodes] == [("192.0.2.77", "12")]
    assert page.next_cursor is None


@pytest.mark.parametrize("key", [STRANGER, NODE, PROVIDER], ids=["stranger", "node", "provider"])
async def test_callers_without_a_role_cannot_list_the_pools_nodes(place: Place, key: Key) -> None:
    await place.client(NODE).register(registration())
    with pytest.raises(Forbidden) as refused:
        await place.client(key).page(POOL)
    assert refused.value.code == "role"


async def test_roles_of_one_pool_cannot_list_nodes_of_another(place: Place) -> None:
    with pytest.raises(NotFound):
        await place.client(OWNER).page(POOL + 1)


async def test_pages_hold_every_node_once_in_order(open_place: Opening) -> None:
    async with open_place(nodes_per_ip=100) as place:
        keys = [Key.generate() for _ in range(25)]
        for key in keys:
            await place.client(key).register(registration())
        seen = [node.address async for node in place.client(ORCHESTRATOR).nodes(POOL, page_size=10)]
        assert seen == sorted(key.address for key in keys)


async def test_a_page_omits_expired_records_and_nodes_that_moved_to_another_pool(place: Place) -> None:
    moving, staying = Key.generate(), Key.generate()
    await place.learn(pools={POOL: True, POOL + 1: True})
    await place.client(NODE).register(registration())
    await place.clock.turn(timedelta(seconds=200))
    for key in (moving, staying):
        await place.client(key).register(registration())
    await place.client(moving).register(registration(pool_id=POOL + 1))
    await place.clock.turn(timedelta(seconds=101))
    assert [node.address for node in (await place.client(OWNER).page(POOL)).nodes] == [staying.address]


@pytest.mark.parametrize(
    ("query", "kind"),
    [
        ({"cursor": "nonsense"}, InvalidInput),
        ({"cursor": "x" * 65}, Unprocessable),
        ({"limit": 0}, Unprocessable),
        ({"limit": 201}, Unprocessable),
        ({"limit": "many"}, Unprocessable),
    ],
)
async def test_an_invalid_page_request_is_refused(
    place: Place, query: dict[str, str | int], kind: type[Exception]
) -> None:
    service = place.client(OWNER)
    with pytest.raises(kind):
        await service.call("GET", f"/v1/pools/{POOL}/nodes", query=query)


async def test_roles_are_cached_for_a_while(place: Place) -> None:
    client = place.client(OWNER)
    for _ in range(5):
        await client.page(POOL)
    assert place.ledger.asked == 1
    await place.clock.turn(timedelta(seconds=16))
    await client.page(POOL)
    assert place.ledger.asked == 2


async def test_a_revoked_role_ends_within_seconds(place: Place) -> None:
    client = place.client(MANAGER)
    await client.page(POOL)
    del place.ledger.roles_of[MANAGER.address]
    await place.clock.turn(timedelta(seconds=16))
    with pytest.raises(Forbidden):
        await client.page(POOL)


async def test_cached_roles_are_used_while_the_chain_is_down(place: Place) -> None:
    await place.client(NODE).register(registration())
    known = place.client(ORCHESTRATOR)
    await known.page(POOL)
    place.ledger.is_down = True
    await place.clock.turn(timedelta(seconds=100))
    assert len((await known.page(POOL)).nodes) == 1
    await place.client(NODE).register(registration())
    owner = place.client(OWNER)
    with pytest.raises(Unavailable):  # not Forbidden: the roles of this pool were never read
        await owner.call("GET", f"/v1/pools/{POOL + 1}/nodes", call_timeout=timedelta(milliseconds=1))
    await place.clock.turn(timedelta(seconds=600))
    with pytest.raises(Unavailable):
        await known.call("GET", f"/v1/pools/{POOL}/nodes", call_timeout=timedelta(milliseconds=1))


async def test_a_stalled_chain_does_not_delay_callers_with_cached_roles(place: Place) -> None:
    await place.client(NODE).register(registration())
    known = place.client(ORCHESTRATOR)
    await known.page(POOL)
    place.ledger.is_stalled = True
    await place.clock.turn(timedelta(seconds=16))
    waiting = asyncio.create_task(known.page(POOL))
    while not waiting.done():
        await place.clock.turn(timedelta(milliseconds=100))
        await asyncio.sleep(0.005)
    assert len((await waiting).nodes) == 1
    before = place.ledger.asked
    for _ in range(5):
        assert len((await known.page(POOL)).nodes) == 1
    assert place.ledger.asked == before  # reads of an unresponsive chain are paused, and no caller waits for it


async def test_unknown_keys_cause_no_read_of_the_chain(place: Place) -> None:
    await place.client(ORCHESTRATOR).page(POOL)
    before = place.ledger.asked
    for _ in range(20):
        with pytest.raises(Forbidden):
            await place.client(Key.generate()).page(POOL)
    assert place.ledger.asked == before


async def test_unknown_pools_cause_one_chain_read_each_and_evict_no_known_pool(place: Place) -> None:
    access = place.app.state.directory.access
    await access.roles(POOL, OWNER.address)
    place.ledger.pools |= set(range(POOL + 1, POOL + 1200))
    for pool_id in range(POOL + 1, POOL + 1200):
        assert await access.roles(pool_id, STRANGER.address) == frozenset()
    asked = place.ledger.asked
    assert await access.roles(POOL, OWNER.address) == {PoolRole.OWNER}
    assert place.ledger.asked == asked
    for _ in range(5):
        with pytest.raises(NotFound):
            await access.roles(POOL + 5000, STRANGER.address)
    assert place.ledger.asked == asked + 1


async def test_requests_for_unknown_pools_do_not_block_a_known_pool(place: Place) -> None:
    access, limits = place.app.state.directory.access, LookupLimits()
    assert await access.roles(POOL, ORCHESTRATOR.address) == {PoolRole.ORCHESTRATOR}
    await place.clock.turn(timedelta(seconds=16))
    place.ledger.unknown_stalls = True
    crowd = [asyncio.create_task(access.roles(POOL + 1 + i, STRANGER.address)) for i in range(limits.waiting)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert place.ledger.asked == 1 + limits.at_once
    with pytest.raises(RateLimited):
        await access.roles(POOL + 10_000, OWNER.address)
    assert await access.roles(POOL, OWNER.address) == {PoolRole.OWNER}
    assert place.ledger.asked == 2 + limits.at_once
    for stranger in crowd:
        stranger.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)
    place.ledger.unstall.set()


async def test_a_failed_role_read_pauses_reads_of_that_pool_only(place: Place) -> None:
    access = place.app.state.directory.access
    for pool_id in (POOL, POOL + 1):
        place.ledger.pools.add(pool_id)
        await access.roles(pool_id, OWNER.address)
    await place.clock.turn(timedelta(seconds=700))
    place.ledger.broken.add(POOL + 1)
    for _ in range(2):
        with pytest.raises(Unavailable):
            await access.roles(POOL + 1, OWNER.address)
    assert await access.roles(POOL, OWNER.address) == {PoolRole.OWNER}


async def test_readiness_does_not_depend_on_the_chain(place: Place) -> None:
    place.ledger.is_down = True
    await place.clock.turn(timedelta(seconds=120))
    answer = await place.http().get("/readyz")
    assert (answer.status_code, answer.json()["ready"]) == (200, True)
    http, age = place.http(), 0.0
    async with asyncio.timeout(20):  # real time, because the loop that sets the gauge waits for Redis
        while age <= 60:
            await place.clock.turn(timedelta(seconds=5))
            found = re.search(
                r"^muster_discovery_facts_age_seconds (\S+)$", (await http.get("/metrics")).text, re.MULTILINE
            )
            assert found is not None
            age = float(found[1])
