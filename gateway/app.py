"""Builds the gateway's FastAPI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI, Request
from redis.asyncio import Redis

from gateway.api import clients, sessions, verifications
from gateway.chain.pool import GatewayLedger
from gateway.dependencies import build_dependencies, dependencies_of
from gateway.errors import combined_form
from gateway.loops.background import add_loops
from gateway.settings import GatewaySettings
from gateway.store.database import SCHEMA, gateway_keys
from protocol.http.rates import CallerAddresses, IpRates
from protocol.http.replay_guard import ReplayGuard
from protocol.http.serving.connections import ConnectionLimits
from protocol.http.serving.service import add_routes, create_service
from protocol.http.verification import RequestVerifier
from protocol.identity.keys import Key
from protocol.redis.connection import check_redis
from protocol.redis.schema import ensure_schema
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.loops import BackgroundLoops
from protocol.versions import release
from protocol.wire.identity import ServiceIdentity

DESCRIPTION = """A pool's workers behind OpenAI's API. Every answer has the field `muster`, from which
`muster rollouts verify` checks with the model's folder that the named version drew it.

Clients and verifiers send tokens of `muster gateway token create`. Nodes sign the request that opens a session; their
tasks send the session's token.

Errors are problem JSON (RFC 9457) with OpenAI's form in the field `error`."""

TAGS = ("serving", "sessions", "verifications", "identity")

identity_router = APIRouter(prefix="/v1", tags=["identity"])


@identity_router.get("/identity")
async def get_identity(request: Request) -> ServiceIdentity:
    """Return the gateway's address, which recipes name, and the contract of its leases. The answer is not signed."""
    dependencies = dependencies_of(request)
    domain = dependencies.ledger.domain
    return ServiceIdentity(
        service="gateway", address=dependencies.key.address, chain_id=domain.chain_id, contract=domain.contract
    )


def build_gateway(
    settings: GatewaySettings,
    *,
    redis: Redis,
    ledger: GatewayLedger,
    key: Key,
    clock: Clock | None = None,
    with_loops: bool = True,
) -> FastAPI:
    """Returns the application, with its dependencies in `app.state.dependencies`.

    Args:
        settings: Settings of the gateway.
        redis: Client of the Redis that all replicas share; closed with the application.
        ledger: The pool on the ledger; closed with the application.
        key: The gateway's key. It signs lists and answers to nodes.
        clock: The system's clock by default.
        with_loops: False to run no background loops in this process.
    """
    clock = SystemClock() if clock is None else clock
    keys = gateway_keys(settings.pool_id)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            await ensure_schema(redis, keys, service="the gateway", version=SCHEMA)
            yield
        finally:
            await ledger.aclose()
            await redis.aclose()

    loops = BackgroundLoops(clock=clock)
    app = create_service(
        "gateway",
        version=release(),
        description=DESCRIPTION,
        lifespan=lifespan,
        checks={"redis": lambda: check_redis(redis)},
        loops=loops,
        clock=clock,
        body_limit=max(settings.body_bytes, sessions.PARTS_BYTES),
        ip_rates=IpRates(settings.ip_rate, clock=clock),
        callers=CallerAddresses(settings.trusted_proxies),
        connections=ConnectionLimits(connections=settings.connections, per_address=settings.connections_per_ip),
        tags=[{"name": name} for name in TAGS],
        form=combined_form,
    )
    app.state.dependencies = build_dependencies(
        settings, redis=redis, ledger=ledger, key=key, clock=clock, registry=app.state.registry
    )
    app.state.verifier = RequestVerifier(
        audience=key.address,
        admission=ReplayGuard(redis, keys=keys, rate=settings.node_rate, clock=clock),
        clock=clock,
        body_limit=sessions.PARTS_BYTES,
    )
    add_routes(app, clients.router, sessions.router, verifications.router, identity_router)
    if with_loops:
        add_loops(loops, app.state.dependencies)
    return app
