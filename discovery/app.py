"""Builds the discovery service's FastAPI application."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx
from fastapi import FastAPI
from redis.asyncio import Redis

from discovery.api.routes import REGISTRATION_LIMIT, router
from discovery.chain.ledger_cache import FactStore
from discovery.chain.link import LedgerSource
from discovery.chain.roles import Access
from discovery.directory import FORWARDED_RATE, NodeDirectory
from discovery.federation.forwarding import InviteForwarder
from discovery.federation.intake import StatementIntake
from discovery.federation.puller import LEASE_LIFETIME, ONE_ATTEMPT, PeerPuller, refusals_on
from discovery.loops import DirectoryGauges, add_loops, add_peer_loops
from discovery.mailbox.polls import WaitingPolls
from discovery.mailbox.store import Mailbox, MailboxNotifier
from discovery.settings import DiscoverySettings
from discovery.store.record_store import KEYS, SCHEMA, RecordLimits, RecordStore
from protocol.clients import DiscoveryClient
from protocol.errors import InvalidInput
from protocol.http.rates import CallerAddresses, IpRates, KeyedRates
from protocol.http.replay_guard import ReplayGuard
from protocol.http.serving.connections import ConnectionLimits
from protocol.http.serving.service import Lifespan, add_routes, create_service
from protocol.http.verification import RequestVerifier
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.redis.connection import check_redis, place_of
from protocol.redis.leader_lease import LeaderLease
from protocol.redis.schema import ensure_schema
from protocol.redis.script_call import ScriptRunner
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.loops import BackgroundLoops
from protocol.versions import release

DESCRIPTION = """Nodes register here, pools find nodes here, and invites wait here for their nodes.

Every request is signed. A node reads and writes its own record only. A pool's owner, manager, orchestrator and
validators list the pool's nodes. No other caller learns an IP. Other discovery services that the settings name read the
registrations as the nodes signed them, without IPs."""


def build_discovery(
    settings: DiscoverySettings,
    *,
    key: Key,
    pools: SigningDomain,
    redis: Redis,
    ledger: LedgerSource,
    clock: Clock | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> FastAPI:
    """Returns the application.

    Args:
        settings: Settings of the service.
        key: The service's key. It signs answers; clients name its address as the audience.
        pools: Signing domain of the contract that accepts invites.
        redis: Redis that all instances share; closed with the application.
        ledger: Source of roles and of facts about nodes; closed with the application.
        clock: The system's clock by default.
        transport: HTTP transport for peers that run in the same process; None: the network.

    Raises:
        InvalidInput: The URL or address of a peer is malformed, or the address is this service's own.
    """
    clock = SystemClock() if clock is None else clock
    peers = [
        DiscoveryClient(
            each,
            key=key,
            clock=clock,
            backoff=ONE_ATTEMPT,
            allow_plain_http=settings.allow_plain_http,
            transport=transport,
        )
        for each in settings.peers
    ]
    pinned = {each.location.address: each for each in peers if each.location.address is not None}
    if key.address in pinned:
        raise InvalidInput(
            f"peers: {pinned[key.address].location} has the address of this service itself",
            hint="name only other discovery services; each has a key of its own",
        )
    notifier = MailboxNotifier(redis)
    directory = NodeDirectory(
        records=RecordStore(
            redis,
            limits=RecordLimits(
                life=settings.record_life,
                per_origin=settings.nodes_per_ip,
                per_pool=settings.nodes_per_pool,
                federated_records=settings.federated_records // max(1, len(peers)),
                federated_bytes=settings.federated_bytes // max(1, len(peers)),
            ),
            clock=clock,
        ),
        facts=FactStore(redis),
        access=Access(
            ledger.roles,
            fresh=timedelta(seconds=settings.role_seconds),
            stale=timedelta(seconds=settings.stale_role_seconds),
            clock=clock,
        ),
        mailbox=Mailbox(redis, notifier=notifier, clock=clock),
        polls=WaitingPolls(
            most=lambda: app.state.serving.guard.most * 3 // 4,  # a quarter stays free for other requests
            per_ip=2 * settings.nodes_per_ip,  # two per node, because its previous poll may still be open
        ),
        pools=pools,
        facts_stale_after=timedelta(seconds=settings.stale_facts_seconds),
        clock=clock,
        peers=frozenset(pinned),
        forwarded=KeyedRates(FORWARDED_RATE, clock=clock),
    )
    forwarder = InviteForwarder(directory.records, pinned)
    loops = BackgroundLoops(clock=clock)
    app = create_service(
        "discovery",
        version=release(),
        description=DESCRIPTION,
        lifespan=_closing(redis, ledger, peers),
        checks={"redis": lambda: check_redis(redis)},
        loops=loops,
        clock=clock,
        body_limit=REGISTRATION_LIMIT,
        ip_rates=IpRates(settings.ip_rate, clock=clock),
        callers=CallerAddresses(settings.trusted_proxies),
        connections=ConnectionLimits(connections=settings.connections, per_address=settings.connections_per_ip),
        tags=({"name": "nodes"}, {"name": "pools"}, {"name": "invites"}, {"name": "federation"}),
    )
    app.state.key = key
    app.state.directory = directory
    app.state.forwarder = forwarder
    app.state.verifier = RequestVerifier(
        audience=key.address,
        admission=ReplayGuard(redis, keys=KEYS, rate=settings.address_rate, clock=clock),
        clock=clock,
        body_limit=REGISTRATION_LIMIT,
    )
    add_loops(
        loops,
        redis_place=place_of(redis),
        directory=directory,
        notifier=notifier,
        gauges=DirectoryGauges.on(app.state.registry, polls=directory.polls),
        read_ledger=lambda: ledger.read(directory.facts, directory.mailbox),
        poll=timedelta(seconds=settings.poll_seconds),
        clock=clock,
    )
    refusals = refusals_on(app.state.registry)
    pause = timedelta(seconds=settings.peer_seconds)
    add_peer_loops(
        loops,
        pullers=[
            PeerPuller(
                each,
                StatementIntake(
                    directory,
                    audiences={key.address, *pinned},
                    source=each.location.url,
                    life=settings.record_life,
                    clock=clock,
                ),
                own=key.address,
                pools=pools,
                lease=LeaderLease(ScriptRunner(redis, keys=KEYS), f"peer:{each.location.url}", lifetime=LEASE_LIFETIME),
                first_pause=pause,
                refusals=refusals,
                clock=clock,
            )
            for each in peers
        ],
        forwarder=forwarder,
        peers=list(pinned),
        redis_place=place_of(redis),
        every=pause,
    )
    add_routes(app, router)
    return app


def _closing(redis: Redis, ledger: LedgerSource, peers: Sequence[DiscoveryClient]) -> Lifespan:
    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            await ensure_schema(redis, KEYS, service="discovery", version=SCHEMA)
            yield
        finally:
            for peer in peers:
                await peer.aclose()
            await ledger.aclose()
            await redis.aclose()

    return lifespan
