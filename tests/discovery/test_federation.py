"""Discovery services exchange what nodes signed; a peer that lies costs bounded work and changes nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import cycle
from typing import Any

import httpx
import pytest
import redis as sync_redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from pydantic import ValidationError
from redis.asyncio import Redis
from structlog.testing import capture_logs

from discovery.app import build_discovery
from discovery.federation import puller
from discovery.federation.forwarding import InviteQueue
from discovery.federation.intake import PAGE_BYTES, StatementIntake
from discovery.federation.puller import ONE_ATTEMPT, PAGE_TIMEOUT, PeerPuller, refusals_on
from discovery.store.record_store import KEYS, RecordLimits, RecordStore
from protocol.clients.discovery import DiscoveryClient
from protocol.errors import Conflict, Forbidden, InvalidInput, NotFound, RateLimited
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.identity.signing import sign_request
from protocol.redis.connection import connect_redis
from protocol.redis.leader_lease import LeaderLease
from protocol.redis.script_call import ScriptRunner
from protocol.runtime.clock import ManualClock
from protocol.wire.federation import NodeStatement, NodeStatementPage, node_target
from protocol.wire.invites import SignedInvite
from protocol.wire.nodes import NodeRecord, Registration
from tests.kit.discovery import (
    NODE,
    ORCHESTRATOR,
    OTHER_NODE,
    OWNER,
    POOL,
    POOLS,
    PROVIDER,
    STRANGER,
    Place,
    SmallLedger,
    invite,
    registration,
)
from tests.kit.discovery import settings as discovery_settings

A, B, LIAR = Key(b"\x31" * 32), Key(b"\x32" * 32), Key(b"\x33" * 32)
PORTS = {A.address: 1001, B.address: 1002, LIAR.address: 1003}
LIFE = timedelta(seconds=300)
LIMITS = RecordLimits(life=LIFE, per_origin=1, per_pool=8, federated_records=1000, federated_bytes=1 << 20)
NOWHERE = Key.generate().address


def location(key: Key) -> str:
    return f"http://127.0.0.1:{PORTS[key.address]}#{key.address}"


class Network(httpx.AsyncBaseTransport):
    """Leads requests to applications in this process, by port."""

    def __init__(self) -> None:
        self.apps: dict[int, httpx.AsyncBaseTransport] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        app = self.apps.get(request.url.port or 0)
        if app is None:
            raise httpx.ConnectError("no process listens there")
        return await app.handle_async_request(request)


@dataclass
class Service:
    """A discovery service with its own Redis database and key."""

    place: Place
    key: Key
    redis: Redis
    network: Network
    metrics: CollectorRegistry = field(default_factory=CollectorRegistry)

    def client(self, key: Key, *, ip: str = "192.0.2.1") -> DiscoveryClient:
        app = httpx.ASGITransport(app=self.place.app, raise_app_exceptions=False, client=(ip, 1234))
        client = DiscoveryClient(location(self.key), key=key, clock=self.place.clock, transport=app)
        self.place._stack.push_async_callback(client.aclose)
        return client

    @property
    def records(self) -> RecordStore:
        records: RecordStore = self.place.app.state.directory.records
        return records

    def puller(self, peer: Key, *, at: str | None = None) -> PeerPuller:
        clock = self.place.clock
        client = DiscoveryClient(
            at or location(peer), key=self.key, clock=clock, backoff=ONE_ATTEMPT, transport=self.network
        )
        self.place._stack.push_async_callback(client.aclose)
        return PeerPuller(
            client,
            self.intake(source=client.location.url),
            own=self.key.address,
            pools=POOLS,
            lease=LeaderLease(ScriptRunner(self.redis, keys=KEYS), "test", lifetime=timedelta(seconds=30)),
            first_pause=timedelta(seconds=30),
            refusals=refusals_on(self.metrics),
            clock=clock,
        )

    def intake(self, *, source: str = "peer") -> StatementIntake:
        audiences, clock = {self.key.address, A.address, B.address}, self.place.clock
        directory = self.place.app.state.directory
        return StatementIntake(directory, audiences=audiences, source=source, life=LIFE, clock=clock)

    async def seen(self) -> dict[Address, NodeRecord]:
        return {record.address: record async for record in self.client(ORCHESTRATOR).nodes(POOL)}


Opening = Callable[..., Any]


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def open_service(redis_url: str, clock: ManualClock, network: Network) -> Opening:
    @asynccontextmanager
    async def opening(key: Key, *, peers: tuple[str, ...], database: int, **changes: Any) -> AsyncIterator[Service]:
        redis, ledger = connect_redis(f"{redis_url}?db={database}"), SmallLedger()
        app = build_discovery(
            discovery_settings(peers=peers, peer_seconds=86_400, **changes),
            key=key,
            pools=POOLS,
            redis=redis,
            ledger=ledger,
            clock=clock,
            transport=network,
        )
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(app.router.lifespan_context(app))
            place = Place(app, clock, ledger, stack)
            await place.learn(pools={POOL: True}, providers={NODE.address: PROVIDER.address})
            network.apps[PORTS[key.address]] = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            yield Service(place, key, redis, network)

    return opening


@pytest.fixture
async def two(open_service: Opening) -> AsyncIterator[tuple[Service, Service]]:
    """Services A and B, each a peer of the other."""
    async with (
        open_service(A, peers=(location(B),), database=0) as a,
        open_service(B, peers=(location(A),), database=1) as b,
    ):
        yield a, b


def signed(
    key: Key,
    at: datetime,
    *,
    audience: Address = A.address,
    body: Registration | str | None = None,
    target: str | None = None,
    nonce: str = "0" * 32,
) -> NodeStatement:
    """A statement of a node: a registration if there is a body, or a removal."""
    text = body.model_dump_json() if isinstance(body, Registration) else body
    stamp = sign_request(
        key,
        audience=audience,
        method="DELETE" if text is None else "PUT",
        target=target or node_target(key.address),
        body=(text or "").encode(),
        at=at,
        nonce=nonce,
    )
    return NodeStatement(
        node=key.address,
        audience=audience,
        timestamp_ms=stamp.timestamp_ms,
        nonce=nonce,
        signature="0x" + stamp.signature.hex(),
        body=text,
    )


def page_of(*statements: NodeStatement, cursor: str | None = None) -> NodeStatementPage:
    return NodeStatementPage(statements=tuple(sorted(statements, key=lambda each: each.node)), next_cursor=cursor)


async def test_a_node_is_found_and_invited_through_a_peer_of_its_service(two: tuple[Service, Service]) -> None:
    a, b = two
    clock, pull = a.place.clock, b.puller(A)
    await a.client(NODE, ip="198.51.100.7").register(registration(labels={"site": "attic"}))
    await pull.round()
    record = (await b.seen())[NODE.address]
    assert record.registration == registration(labels={"site": "attic"})
    assert (record.ip, record.signed_for, record.provider) == ("", A.address, PROVIDER.address)
    assert (await a.client(NODE).record()).ip == "198.51.100.7"

    # The orchestrator uses B only, and the node polls A only.
    posted = invite(clock.now())
    await b.client(ORCHESTRATOR).invite(posted)
    for _ in range(1000):
        if found := await a.client(NODE).invites(wait=timedelta()):
            break
        await asyncio.sleep(0.005)
    assert found == (posted,)

    # A dies: the record lasts as long as A's would have, and the node finds the invite at B.
    del a.network.apps[PORTS[A.address]]
    await clock.turn(LIFE / 2)
    await pull.round()
    assert await b.client(NODE).invites(wait=timedelta()) == (posted,)
    assert NODE.address in await b.seen()
    await clock.turn(LIFE / 2)
    assert await b.seen() == {}


async def test_a_node_that_left_stays_away(two: tuple[Service, Service]) -> None:
    a, b = two
    clock, pull = a.place.clock, b.puller(A)
    await a.client(NODE).register(registration())
    await pull.round()
    old = await a.records.statements(after=None, most=100)
    await clock.turn(timedelta(seconds=1))
    await a.client(NODE).sign_off()
    await pull.round()
    assert await b.seen() == {}

    # Replays of the registration, by a peer or by a peer of it, at any time.
    for pause in (timedelta(), LIFE - timedelta(seconds=2), timedelta(seconds=2), LIFE):
        await clock.turn(pause)
        await b.intake().take(old, peer=A.address, after=None)
        await a.intake().take(old, peer=B.address, after=None)
        assert (await a.seen(), await b.seen()) == ({}, {})
    assert await b.redis.zcard(KEYS.of("left")) == await b.redis.zcard(KEYS.of("signed")) == 0  # nothing stays for ever

    await b.client(NODE).register(registration())  # it comes back, through B
    await a.puller(B).round()
    assert NODE.address in await a.seen()


async def test_what_a_node_signed_last_counts_also_if_it_arrives_first(two: tuple[Service, Service]) -> None:
    a, b = two
    clock, now = a.place.clock, a.place.clock.now()
    later = signed(NODE, now + timedelta(seconds=30), body=registration(labels={"n": "2"}))
    await b.intake().take(page_of(later), peer=A.address, after=None)
    assert (await b.client(NODE).register(registration())).registration.labels == {"n": "2"}
    await b.client(NODE).sign_off()  # signed before the registration: a delayed copy
    assert NODE.address in await b.seen()

    gone = signed(NODE, now + timedelta(seconds=40))
    await b.intake().take(page_of(gone), peer=A.address, after=None)
    with pytest.raises(Conflict) as refused:
        await b.client(NODE).call(
            "PUT", node_target(NODE.address), body=registration(), call_timeout=timedelta(milliseconds=1)
        )
    assert (refused.value.code, refused.value.retryable) == ("older-registration", True)
    await clock.turn(timedelta(seconds=41))
    await b.client(NODE).register(registration())
    assert NODE.address in await b.seen()


async def test_a_removal_with_a_body_does_not_stop_the_exchange(two: tuple[Service, Service]) -> None:
    a, b = two
    stranger, clock = Key.generate(), a.place.clock
    for key in (NODE, OTHER_NODE):
        await a.client(key).register(registration())
    target = node_target(stranger.address)
    stamp = sign_request(stranger, audience=A.address, method="DELETE", target=target, body=b"x", at=clock.now())
    app = httpx.ASGITransport(app=a.place.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=app, base_url="http://127.0.0.1:1001") as http:
        assert (await http.request("DELETE", target, content=b"x", headers=stamp.headers())).status_code == 204
    await b.puller(A).round()
    assert len(await b.seen()) == 2


def test_a_body_is_limited_in_bytes() -> None:
    statement = NodeStatement(
        node=NOWHERE, audience=A.address, timestamp_ms=1, nonce="0" * 32, signature="0x" + "11" * 65, body="é" * 12_288
    )
    with pytest.raises(ValidationError, match="longer than 24576 bytes"):
        NodeStatement.model_validate(statement.model_dump() | {"body": "é" * 12_289})


async def test_only_peers_with_an_address_in_the_settings_read_statements(two: tuple[Service, Service]) -> None:
    a, b = two
    await a.client(NODE).register(registration())
    assert len((await a.client(B).statements(call_timeout=PAGE_TIMEOUT)).statements) == 1
    for key in (STRANGER, OWNER, ORCHESTRATOR, NODE, LIAR):
        with pytest.raises(Forbidden) as refused:
            await a.client(key).statements(call_timeout=PAGE_TIMEOUT)
        assert refused.value.code == "not-a-peer"
    with pytest.raises(Forbidden):  # a peer gets no IPs, and invites from it need the orchestrator's signature
        await a.client(B).page(POOL)
    with pytest.raises(Forbidden):
        await a.client(B).invite(invite(a.place.clock.now(), signer=B))
    with pytest.raises(InvalidInput, match="this service itself"):
        build_discovery(
            discovery_settings(peers=(location(A),)), key=A, pools=POOLS, redis=a.redis, ledger=SmallLedger()
        )
    await b.puller(A).round()
    body = (await b.client(A).statements(call_timeout=PAGE_TIMEOUT)).model_dump_json()
    assert "192.0.2" not in body


async def test_a_service_without_statements_of_an_older_release_or_in_other_form_passes_none_on(
    two: tuple[Service, Service],
) -> None:
    a, _ = two
    lower = node_target(NODE.address).lower()
    await a.client(NODE).call("PUT", lower, body=registration())  # other services could not check this path
    await a.client(OTHER_NODE).register(registration())
    assert set(await a.seen()) == {NODE.address, OTHER_NODE.address}
    # An instance of an older release refreshes the record: it writes these fields only.
    await a.redis.hset(KEYS.of("node", OTHER_NODE.address), mapping={"registration": "{}", "last": 1})
    assert (await a.records.statements(after=None, most=100)).statements == ()
    await a.place.clock.turn(timedelta(seconds=1))
    await a.client(OTHER_NODE).register(registration())
    assert len((await a.records.statements(after=None, most=100)).statements) == 1


async def test_a_peer_can_not_fill_a_pool_with_keys_that_are_not_on_the_ledger(open_service: Opening) -> None:
    async with open_service(B, peers=(location(A),), database=1, nodes_per_pool=8) as b:
        now, strangers = b.place.clock.now(), [Key.generate() for _ in range(6)]
        made = [signed(key, now, body=registration()) for key in (*strangers, NODE)]
        await b.intake().take(page_of(*made), peer=A.address, after=None)
        seen = set(await b.seen())
        assert NODE.address in seen
        assert len(seen) <= 3  # a quarter of 8, and the node on the ledger
        for key in (Key.generate(), Key.generate()):
            if len(await b.seen()) < 4:
                await b.client(key).register(registration())  # half of the room is for direct registrations
        gone = [signed(Key.generate(), now) for _ in range(6)]
        await b.intake().take(page_of(*gone), peer=A.address, after=None)
        assert await b.redis.zcard(KEYS.of("left")) == 2


async def test_all_records_of_a_peer_together_are_bounded_in_number_and_bytes(
    open_service: Opening, liar: Liar
) -> None:
    """Of two peers each has half; nodes that are not on the ledger have half of that."""
    url = location(LIAR).partition("#")[0]
    peers, limits = (location(A), "http://127.0.0.1:9"), {"federated_records": 8, "federated_bytes": 2 << 20}
    async with open_service(B, peers=peers, database=1, **limits) as b:
        clock, pull = b.place.clock, b.puller(LIAR)
        strangers = sorted((Key.generate() for _ in range(5)), key=lambda key: key.address)

        async def pulled(*keys: Key, **labels: str) -> tuple[int, int, list[str]]:
            """Number and bytes of the peer's records after a round that offers these nodes, and events of the log."""
            await clock.turn(timedelta(seconds=1))
            body = registration(labels=labels)
            made = [signed(key, clock.now(), body=body, audience=LIAR.address) for key in keys]
            liar.answers = iter([page_of(*sorted(made, key=lambda each: each.node))])
            with capture_logs() as logs:
                await pull.round()
            held = (await b.records.federated()).get(url)
            return (
                (0, 0, [])
                if held is None
                else (held.records, held.bytes, [line["event"] for line in logs if "limit" in line["event"]])
            )

        records, size, events = await pulled(*strangers)
        assert (records, events) == (2, ["peer-limit-reached"]), "half of the peer's half"
        refused = b.metrics.get_sample_value("muster_discovery_federated_refused_total", {"peer": url})
        assert refused == 3
        assert await pulled(*strangers) == (2, size, []), (
            "those that are held are refreshed, and nothing is logged again"
        )
        records, larger, events = await pulled(strangers[0], NODE, site="attic")
        assert (records, events) == (3, ["peer-within-limit-again"]), "there is room for a node on the ledger"
        assert larger > size
        await b.client(strangers[0]).register(registration())
        assert (await b.records.federated())[url].records == 2, "it came itself"
        left = page_of(*(signed(key, clock.now(), audience=LIAR.address) for key in strangers[2:]))
        await b.intake(source=url).take(left, peer=LIAR.address, after=None)
        assert (await b.records.federated())[url].records == 2, "marks count, too"
        other = page_of(signed(OTHER_NODE, clock.now(), body=registration()))
        await b.intake(source=location(A)).take(other, peer=A.address, after=None)
        assert OTHER_NODE.address in await b.seen(), "another peer has its own part"
        await clock.turn(2 * LIFE)
        await b.records.prune()
        assert {(each.records, each.bytes) for each in (await b.records.federated()).values()} == {(0, 0)}


async def test_invites_of_one_pool_neither_displace_nor_delay_those_of_others() -> None:
    queue = InviteQueue(most=6, most_of_pool=4)
    made = [replace_pool(number, pool) for pool in (1, 2) for number in range(6)]
    dropped = [each.nonce for invite in made if (each := queue.put(invite)) is not None]
    assert dropped == ["0", "1", "2", "0", "1", "2"], "the oldest of the pool with the most"
    assert len(queue) == 6
    taken = [await queue.get() for _ in range(6)]
    assert [(each.pool_id, each.nonce) for each in taken] == [
        (pool, str(number)) for number in (3, 4, 5) for pool in (1, 2)
    ]


def replace_pool(number: int, pool: int) -> SignedInvite:
    return invite(datetime(2026, 1, 1, tzinfo=UTC)).model_copy(update={"pool_id": pool, "nonce": str(number)})


async def test_a_peer_may_pass_on_a_bounded_rate_of_invites_of_a_pool(
    two: tuple[Service, Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = two
    await a.client(NODE).register(registration())
    monkeypatch.setattr(a.place.app.state.directory.forwarded, "_tolerance", 0.0)
    posted = invite(a.place.clock.now())
    await a.client(B).invite(posted)
    with pytest.raises(RateLimited, match="passes on too many invites of pool"):
        await a.client(B).invite(posted, call_timeout=timedelta(seconds=0.1))
    await a.client(ORCHESTRATOR).invite(posted)


class Liar(httpx.AsyncBaseTransport):
    """A peer that answers what a test says; counts requests for statements."""

    def __init__(self) -> None:
        self.answers: Iterator[Any] = iter(())
        self.identity: dict[str, Any] = {
            "service": "discovery",
            "address": LIAR.address,
            "chain_id": POOLS.chain_id,
            "contract": POOLS.contract,
        }
        self.asked = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/identity":
            return httpx.Response(200, json=self.identity)
        self.asked += 1
        answer: Any = next(self.answers)
        if isinstance(answer, NodeStatementPage):
            return httpx.Response(200, content=answer.model_dump_json().encode())
        assert isinstance(answer, httpx.Response)
        return answer


Pages = list[Any]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def honest(now: datetime) -> list[NodeStatement]:
    nodes = sorted((NODE, OTHER_NODE), key=lambda key: key.address)
    return [signed(key, now, audience=LIAR.address, body=registration()) for key in nodes]


def altered(now: datetime, **changes: Any) -> Pages:
    first, second = honest(now)
    return [page_of(first, second.model_copy(update=changes))]


LIES: dict[str, Callable[[datetime], Pages]] = {
    "another node's name": lambda now: altered(now, node=max(NODE.address, OTHER_NODE.address)[:-2] + "ff"),
    "another body": lambda now: altered(now, body=registration(labels={"a": "b"}).model_dump_json()),
    "another time": lambda now: altered(now, timestamp_ms=int(now.timestamp() * 1000) + 1),
    "another nonce": lambda now: altered(now, nonce="1" * 32),
    "another service": lambda now: altered(now, audience=A.address),
    "a registration as a removal": lambda now: altered(now, body=None),
    "no signature": lambda now: altered(now, signature="0x" + "00" * 65),
    "signed path of another node": lambda now: [
        page_of(signed(NODE, now, audience=LIAR.address, body=registration(), target="/v1/nodes/other"))
    ],
    "not in order": lambda now: [NodeStatementPage(statements=tuple(honest(now)[::-1]), next_cursor=None)],
    "the same twice": lambda now: [NodeStatementPage(statements=(honest(now)[0],) * 2, next_cursor=None)],
    "the same page for ever": lambda now: cycle([page_of(honest(now)[0], cursor=honest(now)[0].node)]),  # type: ignore[dict-item, return-value]
    "a cursor that leads back": lambda now: [page_of(*honest(now), cursor="0x" + "0" * 40)],
    "a cursor that is none": lambda now: [page_of(cursor="x" * 64)],
    "too many": lambda now: [page_with(honest(now)[0], 101)],
    "too large": lambda _: [httpx.Response(200, content=b" " * (7 << 20))],
    "no JSON": lambda _: [httpx.Response(200, content=b"{" * 1000)],
    "an unknown field": lambda now: [raw({"statements": [honest(now)[0].model_dump() | {"ip": "1"}]})],
    "half a character": lambda now: [
        httpx.Response(200, content=page_of(*honest(now)).model_dump_json().replace("A CPU", "\\ud800").encode())
    ],
    "a redirect": lambda _: [httpx.Response(307, headers={"location": "http://127.0.0.1:1001/"})],
    "a refusal": lambda _: [httpx.Response(403)],
}


def raw(content: dict[str, Any]) -> httpx.Response:
    return httpx.Response(200, content=json.dumps({"next_cursor": None} | content).encode())


def page_with(statement: NodeStatement, number: int) -> httpx.Response:
    return raw({"statements": [statement.model_dump()] * number})


@pytest.fixture
def liar(network: Network) -> Liar:
    liar = Liar()
    network.apps[PORTS[LIAR.address]] = liar
    return liar


@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_changes_nothing_and_the_peer_is_left_alone(
    two: tuple[Service, Service], liar: Liar, lie: str
) -> None:
    _, b = two
    liar.answers = iter(LIES[lie](b.place.clock.now()))
    pull = b.puller(LIAR)
    liar.asked = 0
    with capture_logs() as logs:
        await pull.round()
        asked = liar.asked
        await pull.round()  # too early
    assert [each["event"] for each in logs if each["event"].startswith("peer-")] in (["peer-lied"], ["peer-failed"])
    assert asked == liar.asked <= 2
    assert len(await b.seen()) <= (1 if lie == "the same page for ever" else 0)

    # It is read again after a pause.
    await b.place.clock.turn(timedelta(seconds=31))
    liar.answers = iter([page_of(*honest(b.place.clock.now()))])
    await pull.round()
    assert set(await b.seen()) == {NODE.address, OTHER_NODE.address}


@pytest.mark.parametrize(
    ("identity", "reason"),
    [
        ({"address": B.address}, "is this service itself"),
        ({"contract": NOWHERE}, "peers serve the same ledger"),
        ({"chain_id": 1}, "peers serve the same ledger"),
        ({"service": "orchestrator"}, "peers serve the same ledger"),
    ],
)
async def test_another_service_at_a_peers_url_is_not_pulled_from(
    two: tuple[Service, Service], liar: Liar, identity: dict[str, Any], reason: str
) -> None:
    _, b = two
    liar.identity |= identity
    liar.asked = 0
    with capture_logs() as logs:
        await b.puller(LIAR, at=f"http://127.0.0.1:{PORTS[LIAR.address]}").round()
    assert liar.asked == 0
    assert reason in f"{logs[-1]['detail']} {logs[-1]['hint']}"


async def test_statements_that_do_not_count_are_skipped_without_blame(two: tuple[Service, Service], liar: Liar) -> None:
    _, b = two
    now = b.place.clock.now()
    keys = [Key.generate() for _ in range(6)]
    good, old, ahead, foreign, elsewhere, strange = keys
    liar.answers = iter(
        [
            page_of(
                signed(good, now, audience=LIAR.address, body=registration()),
                signed(old, now - LIFE, audience=LIAR.address, body=registration()),
                signed(ahead, now + timedelta(seconds=61), audience=LIAR.address, body=registration()),
                signed(foreign, now, audience=NOWHERE, body=registration()),
                signed(elsewhere, now, audience=LIAR.address, body=registration(pool_id=POOL + 1)),
                signed(strange, now, audience=LIAR.address, body='{"pool_id": 7}'),
            )
        ]
    )
    with capture_logs() as logs:
        await b.puller(LIAR).round()
    assert not logs
    assert set(await b.seen()) == {good.address}


async def test_endless_pages_end_a_round_and_the_next_continues(
    two: tuple[Service, Service], liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, b = two
    cursors = [f"0x{number:040x}" for number in range(16, 60)]
    liar.answers = iter([page_of(cursor=each) for each in cursors])
    monkeypatch.setattr(puller, "MOST_BYTES", 2 * PAGE_BYTES)
    pull = b.puller(LIAR)
    liar.asked = 0
    with capture_logs() as logs:
        for expected in (2, 4, 6):
            await pull.round()
            assert liar.asked == expected
    assert not logs
    monkeypatch.setattr(puller, "MOST_BYTES", 1 << 30)
    monkeypatch.setattr(puller, "MOST_CHECKED", 0)
    await pull.round()
    assert liar.asked == 7


async def test_a_peer_that_answers_slowly_holds_up_nothing(two: tuple[Service, Service], network: Network) -> None:
    _, b = two
    entered = asyncio.Event()

    class Slow(Liar):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path == "/v1/identity":
                return await super().handle_async_request(request)
            return httpx.Response(200, content=self.drops())

        async def drops(self) -> AsyncIterator[bytes]:
            yield b"{"
            entered.set()
            await asyncio.Event().wait()

    network.apps[PORTS[LIAR.address]] = Slow()
    pulling = asyncio.create_task(b.puller(LIAR).round())
    with capture_logs() as logs:
        async with asyncio.timeout(30):
            await entered.wait()
            while not pulling.done():
                await b.place.clock.turn(PAGE_TIMEOUT / 10)
                await asyncio.sleep(0)
    assert [each["event"] for each in logs if each["event"].startswith("peer-")] == ["peer-failed"]


KEYS_OF_NODES = [Key(bytes([number]) * 32) for number in (0x41, 0x42, 0x43)]
STATEMENTS = st.builds(
    lambda key, second, audience, label: signed(
        key,
        NOW + timedelta(seconds=second),
        audience=audience,
        body=None if label is None else registration(labels={"n": label}),
    ),
    st.sampled_from(KEYS_OF_NODES),
    st.integers(0, 3),
    st.sampled_from([A.address, B.address]),
    st.sampled_from([None, "x", "y"]),
)


@contextmanager
def empty(redis_server: str) -> Iterator[None]:
    with sync_redis.from_url(redis_server) as client:
        client.flushall()
        yield


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    made=st.lists(STATEMENTS, min_size=1, max_size=8),
    orders=st.data(),
)
def test_services_agree_whatever_the_order_of_statements(
    redis_server: str, made: list[NodeStatement], orders: st.DataObject
) -> None:
    """Any order, duplicates and partitions: after one exchange in each direction, both hold the newest of each node."""
    first = orders.draw(st.permutations([*made, *made[:3]]))
    second = orders.draw(st.permutations(made))
    cut = orders.draw(st.integers(0, len(made)))  # the second service is cut off before the rest arrives

    async def run() -> None:
        clock = ManualClock(NOW + timedelta(seconds=5))
        limits = replace(LIMITS, per_pool=100)
        clients = [connect_redis(f"{redis_server}?db={number}") for number in (2, 3)]
        stores = [RecordStore(each, limits=limits, clock=clock) for each in clients]

        async def give(store: RecordStore, statements: list[NodeStatement]) -> None:
            for each in statements:
                body = None if each.body is None else Registration.model_validate_json(each.body)
                made, gone = ([], [each]) if body is None else ([(each, body)], [])
                await store.merge(made, gone, on_ledger=frozenset(), source="peer")

        async def held(store: RecordStore) -> list[NodeStatement]:
            return list((await store.statements(after=None, most=100)).statements)

        await give(stores[0], list(first))
        await give(stores[1], list(second)[:cut])
        await give(stores[1], await held(stores[0]))
        await give(stores[0], await held(stores[1]))
        newest: dict[Address, NodeStatement] = {}
        for each in made:
            if each.node not in newest or each.order > newest[each.node].order:
                newest[each.node] = each
        expected = [newest[node] for node in sorted(newest)]
        assert await held(stores[0]) == await held(stores[1]) == expected
        listed = [await store.page(POOL, after=None, most=10) for store in stores]
        for page in listed:
            assert [record.address for record in page.records] == [each.node for each in expected if each.body]
        for client in clients:
            await client.aclose()

    with empty(redis_server):
        asyncio.run(run())


async def test_a_removal_that_is_not_found_any_more_is_no_record(two: tuple[Service, Service]) -> None:
    a, _ = two
    await a.client(NODE).register(registration())
    await a.client(NODE).sign_off()
    with pytest.raises(NotFound):
        await a.client(NODE).record()
    kept = replace(LIMITS, per_pool=100)
    assert (kept.room(on_ledger=True, direct=False), kept.room(on_ledger=False, direct=False)) == (100, 25)
