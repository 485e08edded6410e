"""Invites: stored until their node fetches them, long polls on any instance, validation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from redis.asyncio import Redis

from protocol.errors import Conflict, Forbidden, InvalidInput, MusterError, NotFound
from protocol.identifiers import Address, address
from protocol.identity.keys import Key
from protocol.identity.signing import sign_request
from protocol.identity.typed_data import SigningDomain
from protocol.wire.invites import SignedInvite
from protocol.wire.mailbox import MAX_INVITES
from tests.kit.discovery import (
    MANAGER,
    NODE,
    ORCHESTRATOR,
    OTHER_NODE,
    POOL,
    POOLS,
    SERVICE,
    STRANGER,
    Opening,
    Place,
    invite,
    registration,
)

PATIENCE_S = 60


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - the awaited condition sends no notification
            await asyncio.sleep(0.005)


async def test_an_invite_is_delivered_until_its_node_acknowledges_it(place: Place) -> None:
    node = place.client(NODE)
    await node.register(registration())
    posted = invite(place.clock.now())
    await place.client(ORCHESTRATOR).invite(posted)
    assert await node.invites(wait=timedelta()) == (posted,)
    assert await node.invites(wait=timedelta()) == (posted,)  # so a node that crashes here loses no invite
    await node.acknowledge(posted)
    assert await node.invites(wait=timedelta()) == ()


async def test_an_expired_invite_is_not_delivered(place: Place) -> None:
    node = place.client(NODE)
    await node.register(registration())
    await place.client(ORCHESTRATOR).invite(invite(place.clock.now(), lasts=timedelta(seconds=60)))
    await place.clock.turn(timedelta(seconds=61))
    assert await node.invites(wait=timedelta()) == ()


async def test_a_poll_ends_when_an_invite_arrives_through_another_instance(open_place: Opening) -> None:
    async with open_place() as here, open_place() as there:
        await here.client(NODE).register(registration())
        waiting = asyncio.create_task(here.client(NODE).invites())
        await until(lambda: NODE.address in here.app.state.directory.mailbox._notifier._waiting)
        posted = invite(there.clock.now())
        await there.client(ORCHESTRATOR).invite(posted)
        async with asyncio.timeout(PATIENCE_S):
            assert await waiting == (posted,)


async def test_a_poll_without_an_invite_ends_after_its_wait(place: Place) -> None:
    await place.client(NODE).register(registration())
    waiting = asyncio.create_task(place.client(NODE).invites(wait=timedelta(seconds=20)))
    # The service reads Redis before it begins to wait; a clock that is turned earlier never ends the wait.
    await until(lambda: any(16 <= due <= 20 for due, *_ in place.clock._sleepers))
    await place.clock.turn(timedelta(seconds=15))
    assert not waiting.done()
    await place.clock.turn(timedelta(seconds=6))
    async with asyncio.timeout(PATIENCE_S):
        assert await waiting == ()


async def test_a_poll_of_an_unregistered_node_is_refused_at_once(place: Place) -> None:
    """Without the refusal, 58 such polls per second used up 1,024 descriptors in 18 s."""
    with pytest.raises(NotFound, match="not registered here"):
        await place.client(NODE).invites(wait=timedelta(seconds=30))
    await place.client(NODE).register(registration())
    await place.clock.turn(timedelta(seconds=301))  # the record expires
    with pytest.raises(NotFound, match="not registered here"):
        await place.client(NODE).invites(wait=timedelta(seconds=30))
    assert len(place.app.state.directory.polls) == 0


async def test_the_number_of_waiting_polls_per_address_is_limited(open_place: Opening) -> None:
    async with open_place(nodes_per_ip=1) as place:
        keys = [Key.generate() for _ in range(3)]
        for number, key in enumerate(keys):
            await place.client(key, ip=f"192.0.2.{number}").register(registration())
        polls = place.app.state.directory.polls
        waiting = [asyncio.create_task(place.client(key).invites()) for key in keys[:2]]
        await until(lambda: len(polls) == 2)
        assert await poll(place, keys[2]) == (429, "too-many-polls")
        elsewhere = asyncio.create_task(place.client(keys[2], ip="192.0.2.9").invites())
        await until(lambda: len(polls) == 3)
        assert "muster_discovery_polls 3.0" in (await place.http().get("/metrics")).text
        place.app.state.directory.mailbox._notifier.notify(keys[0].address)
        assert await waiting[0] == ()
        assert (await poll(place, keys[0], wait=0))[0] == 200
        place.app.state.stopping.set()
        assert [await waiting[1], await elsewhere] == [(), ()]
        assert (len(polls), polls._waiting) == (0, {})


async def test_the_total_number_of_waiting_polls_is_limited(place: Place) -> None:
    """A quarter of the connections is reserved for other requests."""
    place.app.state.serving.guard.fit(4)
    keys = [Key.generate() for _ in range(4)]
    for key in keys:
        await place.client(key).register(registration())
    waiting = [asyncio.create_task(place.client(key).invites()) for key in keys[:3]]
    await until(lambda: len(place.app.state.directory.polls) == 3)
    assert await poll(place, keys[3]) == (429, "too-many-polls")
    place.app.state.stopping.set()
    assert await asyncio.gather(*waiting) == [()] * 3


async def poll(place: Place, key: Key, *, wait: int = 30) -> tuple[int, str]:
    """Returns status and code of one poll without the client's retries."""
    target = f"/v1/nodes/{key.address}/invites?wait={wait}"
    stamp = sign_request(key, audience=SERVICE.address, method="GET", target=target, at=place.clock.now())
    answer = await place.http().get(target, headers=stamp.headers())
    return answer.status_code, answer.json().get("code", "")


async def test_simultaneous_polls_end_at_spread_times_and_query_redis_once_each(place: Place) -> None:
    """Without the spread, 10,000 nodes that reconnected together overloaded Redis."""
    keys = [Key.generate() for _ in range(20)]
    for number, key in enumerate(keys):
        await place.client(key, ip=f"192.0.2.{number}").register(registration())
    mailbox = place.app.state.directory.mailbox
    looked = 0
    look = mailbox.invites

    async def counted(node: Address) -> tuple[SignedInvite, ...]:
        nonlocal looked
        looked += 1
        found: tuple[SignedInvite, ...] = await look(node)
        return found

    mailbox.invites = counted
    waiting = [asyncio.create_task(place.client(key).invites(wait=timedelta(seconds=30))) for key in keys]
    await until(lambda: len(place.app.state.directory.polls) == 20 and looked == 20)
    await asyncio.sleep(0.05)  # by now the last poll usually waits; if not, it ends later
    await place.clock.turn(timedelta(seconds=23))
    assert len(place.app.state.directory.polls) == 20
    between = set()
    for _ in range(80):
        await place.clock.turn(timedelta(seconds=0.1))
        between.add(len(place.app.state.directory.polls))
    assert len(between) > 5
    assert await asyncio.gather(*waiting) == [()] * 20
    assert looked == 20


async def test_a_second_poll_of_a_node_ends_the_first_one(place: Place) -> None:
    await place.client(NODE).register(registration())
    notifier = place.app.state.directory.mailbox._notifier
    first = asyncio.create_task(place.client(NODE).invites())
    await until(lambda: NODE.address in notifier._waiting)
    second = asyncio.create_task(place.client(NODE).invites())
    async with asyncio.timeout(PATIENCE_S):
        assert await first == ()
    assert not second.done()
    place.app.state.stopping.set()
    async with asyncio.timeout(PATIENCE_S):
        assert await second == ()


async def test_stopping_the_service_ends_waiting_polls(place: Place) -> None:
    await place.client(NODE).register(registration())
    waiting = asyncio.create_task(place.client(NODE).invites())
    await until(lambda: NODE.address in place.app.state.directory.mailbox._notifier._waiting)
    place.app.state.stopping.set()
    async with asyncio.timeout(PATIENCE_S):
        assert await waiting == ()


async def test_waiting_polls_are_woken_after_a_lost_subscription(place: Place, redis: Redis) -> None:
    await place.client(NODE).register(registration())
    notifier = place.app.state.directory.mailbox._notifier
    waiting = asyncio.create_task(place.client(NODE).invites())
    await until(lambda: NODE.address in notifier._waiting)
    await redis.client_kill_filter(_type="pubsub")
    box = "muster:{discovery}:invites:" + NODE.address
    posted = invite(place.clock.now())
    await redis.zadd(box, {posted.model_dump_json(): posted.expiry})  # without a notification

    async with asyncio.timeout(PATIENCE_S):
        for _ in range(40):
            await place.clock.turn(timedelta(milliseconds=100))  # a crashed loop pauses before its restart
            await asyncio.sleep(0.02)
            if waiting.done():
                break
    assert await waiting == (posted,)


async def test_a_mailbox_is_bounded_and_drops_the_invite_that_expires_first(place: Place) -> None:
    await place.client(NODE).register(registration())
    posted = [invite(place.clock.now(), lasts=timedelta(minutes=5 + i)) for i in range(MAX_INVITES + 2)]
    for one in posted:
        await place.client(ORCHESTRATOR).invite(one)
    waiting = await place.client(NODE).invites(wait=timedelta())
    assert waiting == tuple(reversed(posted[2:]))


async def test_a_mailbox_lasts_as_long_as_its_longest_invite(place: Place, redis: Redis) -> None:
    await place.client(NODE).register(registration())
    for lasts in (timedelta(days=7), timedelta(minutes=1)):
        await place.client(ORCHESTRATOR).invite(invite(place.clock.now(), lasts=lasts))
    kept_s = await redis.ttl(f"muster:{{discovery}}:invites:{NODE.address}")
    assert timedelta(days=7) < timedelta(seconds=kept_s) < timedelta(days=7, hours=2)


async def test_posting_the_same_invite_twice_stores_it_once(place: Place) -> None:
    await place.client(NODE).register(registration())
    posted = invite(place.clock.now())
    for _ in range(2):
        await place.client(ORCHESTRATOR).invite(posted)
    assert await place.client(NODE).invites(wait=timedelta()) == (posted,)


async def test_a_node_that_switches_pools_loses_the_invites_of_the_former_pool(place: Place) -> None:
    await place.learn(pools={POOL: True, POOL + 1: True})
    await place.client(NODE).register(registration())
    await place.client(ORCHESTRATOR).invite(invite(place.clock.now()))
    await place.client(NODE).register(registration(pool_id=POOL + 1))
    assert await place.client(NODE).invites(wait=timedelta()) == ()


async def test_another_node_can_neither_fetch_nor_acknowledge_an_invite(place: Place) -> None:
    other = place.client(OTHER_NODE)
    for method, path in (("GET", "/invites"), ("DELETE", "/invites/1")):
        with pytest.raises(Forbidden):
            await other.call(method, f"/v1/nodes/{NODE.address}{path}")


ELSEWHERE = SigningDomain(POOLS.chain_id, address("0x" + "22" * 20))


def altered(made: SignedInvite) -> SignedInvite:
    return made.model_copy(update={"url": "https://evil.example"})


@pytest.mark.parametrize(
    ("what", "make", "poster", "kind", "code"),
    [
        ("expired", lambda now: invite(now, lasts=timedelta(seconds=-1)), ORCHESTRATOR, InvalidInput, "bad-invite"),
        ("too long", lambda now: invite(now, lasts=timedelta(days=8)), ORCHESTRATOR, InvalidInput, "bad-invite"),
        ("another ledger's", lambda now: invite(now, domain=ELSEWHERE), ORCHESTRATOR, InvalidInput, "bad-invite"),
        ("altered", lambda now: altered(invite(now)), ORCHESTRATOR, Forbidden, "role"),
        ("signed by a stranger", lambda now: invite(now, signer=STRANGER), ORCHESTRATOR, Forbidden, "role"),
        ("signed by the manager", lambda now: invite(now, signer=MANAGER), ORCHESTRATOR, Forbidden, "role"),
        ("posted by a stranger", invite, STRANGER, Forbidden, "role"),
        ("posted by the manager", invite, MANAGER, Forbidden, "role"),
        ("posted by the node itself", invite, NODE, Forbidden, "role"),
        ("of an unknown pool", lambda now: invite(now, pool_id=POOL + 1), ORCHESTRATOR, NotFound, "unknown-pool"),
        ("for an unknown node", lambda now: invite(now, node=OTHER_NODE.address), ORCHESTRATOR, NotFound, None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_inconsistent_invite_is_refused(
    place: Place,
    what: str,
    make: Callable[[datetime], SignedInvite],
    poster: Key,
    kind: type[MusterError],
    code: str | None,
) -> None:
    await place.client(NODE).register(registration())
    with pytest.raises(kind) as refused:
        await place.client(poster).invite(make(place.clock.now()))
    assert code in {None, refused.value.code}
    assert await place.client(NODE).invites(wait=timedelta()) == ()


async def test_an_invite_for_another_nodes_mailbox_is_refused(place: Place) -> None:
    await place.client(OTHER_NODE).register(registration())
    service = place.client(ORCHESTRATOR)
    with pytest.raises(InvalidInput) as refused:
        await service.call("POST", f"/v1/nodes/{OTHER_NODE.address}/invites", body=invite(place.clock.now()))
    assert refused.value.code == "bad-invite"


async def test_a_node_that_registered_for_another_pool_cannot_be_invited(place: Place) -> None:
    await place.learn(pools={POOL: True, POOL + 1: True})
    await place.client(NODE).register(registration(pool_id=POOL + 1))
    with pytest.raises(Conflict) as refused:
        await place.client(ORCHESTRATOR).invite(invite(place.clock.now()))
    assert refused.value.code == "other-pool"
