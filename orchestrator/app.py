"""Builds the orchestrator's FastAPI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
from fastapi import APIRouter, FastAPI, Request
from redis.asyncio import Redis

from orchestrator.api import (
    allowlist,
    assignments,
    checkpoint_relays,
    contributors,
    events,
    heartbeat,
    joining,
    logs,
    money,
    nodes,
    page,
    pool,
    public,
    runs,
    tasks,
    uploads,
    validators,
)
from orchestrator.chain.interface import PoolLedger
from orchestrator.chain.run_interface import RunLedger
from orchestrator.dependencies import build_dependencies, dependencies_of
from orchestrator.domain.keys import SCHEMA, pool_keys
from orchestrator.loops.background import add_loops
from orchestrator.metrics import MoneyGauges, PoolGauges, RetentionMetrics
from orchestrator.settings import OrchestratorSettings
from orchestrator.storage import ObjectStore
from orchestrator.storage.signed_urls import PATH as BLOBS
from orchestrator.store.migrations import MIGRATIONS
from protocol.clients.discovery import DiscoveryClient
from protocol.errors import MusterError
from protocol.http.rates import CallerAddresses, IpRates
from protocol.http.serving.connections import ConnectionLimits
from protocol.http.serving.service import add_routes, create_service
from protocol.http.tokens import TokenBook
from protocol.http.trust import authorities
from protocol.http.verification import RequestVerifier
from protocol.identity.keys import Key
from protocol.redis.connection import check_redis
from protocol.redis.schema import ensure_schema
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.logs import get_logger
from protocol.runtime.loops import BackgroundLoops
from protocol.versions import release
from protocol.wire.identity import ServiceIdentity

DESCRIPTION = """Nodes of a pool send heartbeats and receive assignments. The pool's owner posts tasks, sees nodes,
logs, metrics and events, and restarts, drains or bans nodes.

Nodes sign their requests, and the orchestrator signs its answers to nodes. The owner's API takes a bearer token, or a
request that is signed by the pool's manager."""

BODY_LIMIT = 1024 * 1024
"""Maximum bytes of a request body, unless the route sets another limit."""

_log = get_logger(__name__)

TAGS = (
    "pool",
    "nodes",
    "tasks",
    "assignments",
    "groups",
    "events",
    "webhooks",
    "files",
    "run",
    "relays",
    "validators",
    "contributors",
    "identity",
)

identity_router = APIRouter(prefix="/v1", tags=["identity"])


@identity_router.get("/identity")
async def get_identity(request: Request) -> ServiceIdentity:
    """Return the service's address and contract.

    The answer is not signed. Callers can compare the address with the pool's orchestrator key on the ledger.
    """
    dependencies = dependencies_of(request)
    domain = dependencies.ledger.domain
    return ServiceIdentity(
        service="orchestrator", address=dependencies.key.address, chain_id=domain.chain_id, contract=domain.contract
    )


def build_orchestrator(
    settings: OrchestratorSettings,
    *,
    redis: Redis,
    ledger: PoolLedger,
    run_ledger: RunLedger | None = None,
    key: Key,
    clock: Clock | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
    with_loops: bool = True,
) -> FastAPI:
    """Returns the application, with its dependencies in `app.state.dependencies`.

    Args:
        settings: Settings of the orchestrator.
        redis: Client of the Redis that all orchestrators of the pool share; closed with the application.
        ledger: The pool on the ledger.
        run_ledger: The run on the ledger, also used to relay submissions and joins; None if the pool has no run.
        key: The pool's orchestrator key. It signs answers and invites; clients name its address as the audience.
        clock: The system's clock by default.
        transport: HTTP transport for discovery services and webhooks that run in the same process; None: the network.
        with_loops: False to run no background loops in this process.
    """
    clock = SystemClock() if clock is None else clock
    dependencies = build_dependencies(settings, redis=redis, ledger=ledger, run_ledger=run_ledger, key=key, clock=clock)
    verifier = RequestVerifier(
        audience=key.address, admission=dependencies.replay_guard, clock=clock, body_limit=BODY_LIMIT
    )
    webhook_http = httpx.AsyncClient(
        transport=transport, verify=authorities(trust_env=False), follow_redirects=False, trust_env=False
    )
    services = [
        DiscoveryClient(location, key=key, clock=clock, allow_plain_http=settings.allow_plain_http, transport=transport)
        for location in settings.discovery
    ]

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        checking = asyncio.create_task(_check_store(dependencies.objects))
        try:
            keys = pool_keys(settings.pool_id)
            await ensure_schema(redis, keys, service="the orchestrator", version=SCHEMA, migrations=MIGRATIONS)
            yield
        finally:
            checking.cancel()
            for service in services:
                await service.aclose()
            await webhook_http.aclose()
            await dependencies.objects.aclose()
            await ledger.aclose()
            if run_ledger is not None:
                await run_ledger.aclose()
            await redis.aclose()

    loops = BackgroundLoops(clock=clock)
    app = create_service(
        "orchestrator",
        version=release(),
        description=DESCRIPTION,
        lifespan=lifespan,
        checks={"redis": lambda: check_redis(redis)},
        loops=loops,
        clock=clock,
        body_limit=BODY_LIMIT,
        body_limits=((BLOBS, settings.upload_most_bytes),),
        ip_rates=IpRates(settings.ip_rate(), clock=clock),
        callers=CallerAddresses(settings.trusted_proxies),
        connections=ConnectionLimits(connections=settings.connections, per_address=settings.connections_per_ip),
        fast_routes={heartbeat.HEARTBEAT: heartbeat.fast_heartbeat(verifier, dependencies)},
        tags=[{"name": name} for name in TAGS],
    )
    app.state.dependencies = dependencies
    app.state.tokens = TokenBook(settings.tokens)
    app.state.verifier = verifier
    # The router of the allow list comes before that of nodes. Otherwise `allowlist` in `/nodes/allowlist` would be
    # parsed as a node's address.
    owned = (
        pool.router,
        public.router,
        money.router,
        contributors.router,
        joining.router,
        tasks.router,
        assignments.router,
        logs.router,
        allowlist.router,
        checkpoint_relays.router,
        runs.router,
        nodes.router,
        events.router,
        uploads.router,
        validators.router,
    )
    add_routes(app, page.router, heartbeat.router, identity_router, *owned)
    gauges = PoolGauges(
        app.state.registry,
        nodes=dependencies.nodes,
        tasks=dependencies.tasks,
        assignments=dependencies.assignments,
        clock=clock,
        relayer_store=dependencies.relayer.store,
        slot_leasing=dependencies.slot_leasing,
        numerics=dependencies.numerics,
    )
    money_gauges = MoneyGauges(app.state.registry, money=dependencies.money, clock=clock)
    if with_loops:
        add_loops(
            loops,
            dependencies,
            run_ledger=run_ledger,
            discovery=services,
            webhook_http=webhook_http,
            gauges=gauges,
            money_gauges=money_gauges,
            retention=RetentionMetrics(app.state.registry),
        )
    return app


async def _check_store(objects: ObjectStore) -> None:
    """Logs an error if the object store can't be used.

    The check runs in the background, so that the service also starts while the store is down.
    """
    try:
        await objects.check()
    except MusterError as error:
        _log.error("storage-unusable", detail=error.detail, hint=error.hint)
