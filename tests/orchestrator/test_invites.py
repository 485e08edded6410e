"""Nodes that the pool invites, and the reasons for not inviting others.

A list stands in for the discovery service here; test_process.py has a real one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest

from ledger.amounts import UNIT
from orchestrator.chain.interface import MemberEvent
from orchestrator.loops.invites import FIRST_HEARTBEAT_WITHIN, Inviter
from orchestrator.settings import Requirements
from protocol.clients.discovery import DiscoveryClient
from protocol.errors import NotFound, Unavailable
from protocol.http.location import ServiceLocation
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.redis.leader_lease import LeaderLease
from protocol.wire.invites import SignedInvite
from protocol.wire.nodes import NodePage, NodeRecord, NodeState, Registration
from tests.kit.memory_ledger import HARDWARE, POOL, SOFTWARE, PoolUnderTest
from tests.kit.orchestrator import MakePool

S = NodeState


@dataclass
class Listing:
    """The nodes that one discovery service lists, and the invites posted there."""

    nodes: list[Address] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    invites: list[SignedInvite] = field(default_factory=list)
    gone: set[Address] = field(default_factory=set)
    down: bool = False
    location: ServiceLocation = field(default_factory=lambda: ServiceLocation("https://discovery.example"))

    async def page(self, pool_id: int, *, cursor: str | None = None, limit: int = 100) -> NodePage:
        if self.down:
            raise Unavailable("discovery is down")
        start = int(cursor or 0)
        records = tuple(
            NodeRecord(
                address=node,
                registration=Registration(pool_id=POOL, hardware=HARDWARE, software=SOFTWARE, labels=self.labels),
                ip="192.0.2.1",
                first_seen_ms=1,
                last_seen_ms=1,
                expires_at_ms=2,
                provider=None,
                stake="0",
                banned=False,
            )
            for node in self.nodes[start : start + limit]
        )
        more = start + limit < len(self.nodes)
        return NodePage(nodes=records, next_cursor=str(start + limit) if more else None)

    async def invite(self, invite: SignedInvite) -> None:
        if invite.node in self.gone:
            raise NotFound("the node's record expired")
        self.invites.append(invite)


def inviter(pool: PoolUnderTest, listing: Listing, *, name: str = "invites-0") -> Inviter:
    lease = LeaderLease(pool.dependencies.database, name, lifetime=timedelta(seconds=10))
    return Inviter(pool.dependencies, client=cast("DiscoveryClient", listing), lease=lease)


async def row(pool: PoolUnderTest, node: Address) -> tuple[NodeState, str]:
    found = await pool.dependencies.nodes.get(node)
    return found.state, found.reason


async def test_a_registered_node_with_stake_gets_one_signed_invite_for_itself(pool: PoolUnderTest) -> None:
    node = Key.generate().address
    pool.ledger.register(node)
    listing = Listing([node])
    loop = inviter(pool, listing)
    assert await loop.round() == 1
    invite = listing.invites[0]
    assert invite.signer() == pool.dependencies.key.address
    assert (invite.node, invite.pool_id, invite.domain) == (node, POOL, pool.ledger.domain)
    assert invite.url == pool.dependencies.settings.public_url
    assert invite.expiry == int(pool.clock.now().timestamp()) + 300
    assert (await row(pool, node))[0] is S.INVITED
    assert await loop.round() == 0


async def test_a_member_known_to_discovery_but_silent_here_is_sent_the_orchestrators_url(
    make_pool: MakePool,
) -> None:
    before = make_pool()
    heard, silent = await before.member(), await before.member()
    pool = make_pool(public_url="http://127.0.0.1:9")
    await pool.liveness.tick()
    for _ in range(8):
        await pool.clock.turn(timedelta(seconds=4))
        await pool.beat(heard)
        await pool.liveness.tick()
    assert (await row(pool, silent.address))[0] is S.UNHEALTHY
    listing = Listing([heard.address, silent.address])
    loop = inviter(pool, listing)
    assert [await loop.round() for _ in range(3)] == [1, 0, 0]
    invite = listing.invites[0]
    assert (invite.node, invite.url) == (silent.address, "http://127.0.0.1:9")
    assert invite.signer() == pool.dependencies.key.address
    assert (await row(pool, silent.address))[0] is S.UNHEALTHY
    await pool.clock.turn(timedelta(seconds=301))
    assert await loop.round() == 1
    assert listing.invites[1].expiry > invite.expiry


async def test_a_new_member_is_not_sent_the_url_before_its_first_heartbeat_is_due(pool: PoolUnderTest) -> None:
    node = Key.generate().address
    pool.ledger.register(node, member=True)
    pool.ledger.happen(node, MemberEvent.JOINED)
    await pool.sync.round()
    loop = inviter(pool, Listing([node]))
    assert await loop.round() == 0
    await pool.clock.turn(FIRST_HEARTBEAT_WITHIN)
    assert await loop.round() == 1


async def test_an_expired_invite_is_replaced_by_one_with_a_new_nonce(pool: PoolUnderTest) -> None:
    node = Key.generate().address
    pool.ledger.register(node)
    listing = Listing([node])
    loop = inviter(pool, listing)
    await loop.round()
    await pool.liveness.tick()
    for _ in range(700):
        await pool.clock.turn(timedelta(seconds=0.5))
        await pool.liveness.tick()
    assert (await row(pool, node))[0] is S.DISCOVERED
    assert await loop.round() == 1
    assert len({invite.nonce for invite in listing.invites}) == 2


@pytest.mark.parametrize(
    ("ledger", "requirements", "reason"),
    [
        (None, {}, "no provider has registered it"),
        ({"stake": 99}, {}, "has 99 MUST of free stake, and joining takes 100 MUST"),
        ({"banned": True}, {}, "is banned"),
        ({"capacity": 0}, {}, "capacity on the ledger is 0"),
        ({}, {"min_gpus": 1}, "0 of fitting GPUs and the pool asks for 1"),
        ({}, {"min_memory_bytes": 16 << 30}, "8 GiB of memory and the pool asks for 16 GiB"),
        ({}, {"labels": {"zone": "eu"}}, "lacks the label zone=eu"),
        ({"pool": "pending"}, {}, "not active"),
    ],
)
async def test_an_ineligible_node_is_listed_with_the_reason(
    make_pool: MakePool, ledger: dict[str, Any] | None, requirements: dict[str, Any], reason: str
) -> None:
    pool = make_pool(requirements=Requirements(**requirements))
    node = Key.generate().address
    if ledger is not None:
        ledger = dict(ledger)
        pool.ledger.active = ledger.pop("pool", None) is None
        pool.ledger.register(node, stake=ledger.pop("stake", 100) * UNIT)
        pool.ledger.happen(node, MemberEvent.REVERTED, **ledger)
    listing = Listing([node])
    assert await inviter(pool, listing).round() == 0
    state, said = await row(pool, node)
    assert state is S.DISCOVERED
    assert reason in said
    assert (await pool.owner("GET", f"/v1/nodes/{node}"))["reason"] == said


async def test_many_ineligible_nodes_fill_a_bounded_list_and_exclude_no_eligible_node(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.loops.invites.MAX_INELIGIBLE", 10)
    strangers = [Key.generate().address for _ in range(40)]
    honest = Key.generate().address
    pool.ledger.register(honest)
    assert await inviter(pool, Listing([*strangers, honest])).round() == 1
    assert await pool.dependencies.nodes.count() <= 10 + 8 + 1  # nodes checked together may pass the limit together
    assert (await row(pool, honest))[0] is S.INVITED


async def test_a_node_is_invited_once_it_has_enough_stake(pool: PoolUnderTest) -> None:
    node = Key.generate().address
    pool.ledger.register(node, stake=0)
    listing = Listing([node])
    loop = inviter(pool, listing)
    assert await loop.round() == 0
    pool.ledger.register(node, stake=100 * UNIT)
    await pool.clock.turn(timedelta(seconds=5))
    assert await loop.round() == 1


async def test_a_node_that_cannot_be_invited_does_not_delay_others(pool: PoolUnderTest) -> None:
    nodes = [Key.generate().address for _ in range(5)]
    for node in nodes:
        pool.ledger.register(node)
    listing = Listing(nodes, gone={nodes[0]})
    assert await inviter(pool, listing).round() == 4
    assert (await row(pool, nodes[0]))[0] is S.DISCOVERED


async def test_a_discovery_service_that_is_down_does_not_delay_another(pool: PoolUnderTest) -> None:
    node = Key.generate().address
    pool.ledger.register(node)
    down, up = Listing([node], down=True), Listing([node])
    with pytest.raises(Unavailable):
        await inviter(pool, down).round()
    assert await inviter(pool, up, name="invites-1").round() == 1


async def test_the_rate_of_invites_is_limited(make_pool: MakePool) -> None:
    pool = make_pool(invites_per_minute=3)
    nodes = [Key.generate().address for _ in range(5)]
    for node in nodes:
        pool.ledger.register(node)
    listing = Listing(nodes)
    loop = inviter(pool, listing)
    assert await loop.round() == 3
    assert await loop.round() == 0
    await pool.clock.turn(timedelta(seconds=20))
    assert await loop.round() == 1


async def test_a_rate_below_one_a_minute_still_invites(make_pool: MakePool) -> None:
    pool = make_pool(invites_per_minute=0.5)
    nodes = [Key.generate().address for _ in range(2)]
    for node in nodes:
        pool.ledger.register(node)
    loop = inviter(pool, Listing(nodes))
    assert [await loop.round() for _ in range(2)] == [1, 0]
    await pool.clock.turn(timedelta(minutes=2))
    assert await loop.round() == 1


async def test_invites_for_silent_members_do_not_use_up_those_for_new_nodes(make_pool: MakePool) -> None:
    pool = make_pool(invites_per_minute=3)
    silent = [(await pool.member()).address for _ in range(6)]
    for _ in range(8):
        await pool.clock.turn(timedelta(seconds=4))
        await pool.liveness.tick()
    newcomer = Key.generate().address
    pool.ledger.register(newcomer)
    listing = Listing([*silent, newcomer])
    assert await inviter(pool, listing).round() == 4
    assert [invite.node for invite in listing.invites].count(newcomer) == 1


async def test_a_silent_member_is_sent_the_url_with_growing_pauses(pool: PoolUnderTest) -> None:
    node = await pool.member()
    for _ in range(8):
        await pool.clock.turn(timedelta(seconds=4))
        await pool.liveness.tick()
    loop, told_at, started = inviter(pool, Listing([node.address])), [], pool.clock.monotonic()
    for _ in range(160):
        if await loop.round():
            told_at.append(round(pool.clock.monotonic() - started))
        await pool.clock.turn(timedelta(seconds=100))
    assert told_at == [0, 300, 900, 2100, 4500, 8100, 11700, 15300]
    await pool.beat(node)
    assert await loop.round() == 0, "the node is answering"
    for _ in range(8):
        await pool.clock.turn(timedelta(seconds=4))
        await pool.liveness.tick()
    assert await loop.round() == 1, "its first silence after the answer"


async def test_every_page_of_nodes_is_read(pool: PoolUnderTest) -> None:
    nodes = [Key.generate().address for _ in range(110)]
    for node in nodes:
        pool.ledger.register(node)
    listing = Listing(nodes)
    loop = inviter(pool, listing)
    assert await loop.round() == 110
    assert {invite.node for invite in listing.invites} == set(nodes)


async def test_members_and_banned_nodes_get_no_invite_and_evicted_nodes_not_for_a_while(pool: PoolUnderTest) -> None:
    member, banned, evicted = await pool.member(), await pool.member(), await pool.member()
    pool.ledger.happen(banned.address, MemberEvent.BANNED, member=False, banned=True)
    pool.ledger.happen(evicted.address, MemberEvent.EVICTED, member=False)
    await pool.sync.round()
    listing = Listing([member.address, banned.address, evicted.address], labels={"zone": "eu"})
    loop = inviter(pool, listing)
    assert await loop.round() == 0
    assert (await pool.dependencies.nodes.get(member.address)).machine.labels == {"zone": "eu"}
    await pool.clock.turn(timedelta(hours=1))
    assert await loop.round() == 1
    assert [invite.node for invite in listing.invites] == [evicted.address]


async def test_while_the_chain_is_down_no_node_is_invited_or_forgotten(pool: PoolUnderTest) -> None:
    node = Key.generate().address
    pool.ledger.register(node)
    pool.ledger.down = True
    listing = Listing([node])
    loop = inviter(pool, listing)
    with pytest.raises(Unavailable, match="chain"):
        await loop.round()
    pool.ledger.down = False
    await pool.clock.turn(timedelta(seconds=3))
    assert await loop.round() == 1
