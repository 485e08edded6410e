"""Builds the validator's FastAPI application, with its background loops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

from fastapi import FastAPI
from redis.asyncio import Redis

from protocol.http.rates import IpRates, Rate
from protocol.http.replay_guard import ReplayGuard
from protocol.http.serving.service import add_routes, create_service
from protocol.http.tokens import TokenBook
from protocol.http.verification import RequestVerifier
from protocol.identity.keys import Key
from protocol.redis.connection import StoreUnavailable, check_redis
from protocol.redis.schema import ensure_schema
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.loops import BackgroundLoops
from protocol.versions import release
from validator.api.routes import BODY, router
from validator.chain.connection import PoolChain
from validator.dependencies import Dependencies, OpenableExaminer, Remote, build_dependencies
from validator.loops.background import ValidatorLoops, add_loops, build_loops
from validator.settings import ValidatorSettings
from validator.store.keys import SCHEMA
from validator.store.members import no_numerics

DESCRIPTION = """State of a validator, list of the work that the validator could not judge, and its operator's decisions
about that work. The verdicts are on the ledger, and their evidence is in the pool's object store.

Requests need a bearer token or a signature of the validator's own key."""

OWN_RATE = Rate(count=6000, per=timedelta(minutes=1), burst=1000)
"""Request limit of each IP address and of each signing key; only operators and their monitoring call this API."""


def build_validator(
    settings: ValidatorSettings,
    *,
    redis: Redis,
    chain: PoolChain,
    remote: Remote,
    examiner: OpenableExaminer,
    key: Key,
    clock: Clock | None = None,
    numerics: Callable[[], Sequence[str]] = no_numerics,
    with_loops: bool = True,
) -> FastAPI:
    """Builds the application of one validator.

    The application's lifespan starts the examiner. When the service stops, the lifespan ends the examiner and closes
    the Redis, chain and HTTP clients.

    Args:
        settings: Settings of the validator.
        redis: Redis client; validators that share this Redis share one work queue.
        chain: Chain client of the validator's pool.
        remote: HTTP clients of the orchestrator.
        examiner: Examiner of rollout files; the lifespan enters the examiner's context.
        key: The validator's key.
        clock: Clock of loops, caches and requests; None for the system's clock.
        numerics: Returns the numerics classes that the examiner can verify; called once a second.
        with_loops: False to serve only the API in this process, without background loops.
    """
    clock = SystemClock() if clock is None else clock
    loops = BackgroundLoops(clock=clock)
    app = create_service(
        "validator",
        version=release(),
        description=DESCRIPTION,
        lifespan=lambda app: _lifespan(app.state.dependencies, app.state.built_loops),
        checks={"redis": lambda: check_redis(redis), "health": lambda: _check_health(app)},
        loops=loops,
        clock=clock,
        body_limit=BODY,
        ip_rates=IpRates(OWN_RATE, clock=clock),
        tags=({"name": "validator"},),
    )
    dependencies = build_dependencies(
        settings,
        redis=redis,
        chain=chain,
        remote=remote,
        examiner=examiner,
        key=key,
        clock=clock,
        registry=app.state.registry,
        numerics=numerics,
    )
    built = build_loops(dependencies, registry=app.state.registry)
    app.state.dependencies = dependencies
    app.state.loops = loops
    app.state.built_loops = built
    app.state.tokens = TokenBook(settings.tokens)
    admission = ReplayGuard(redis, keys=dependencies.keys, rate=OWN_RATE, clock=clock)
    app.state.verifier = RequestVerifier(audience=key.address, admission=admission, clock=clock, body_limit=BODY)
    add_routes(app, router)
    if with_loops:
        add_loops(loops, dependencies, built=built)
    return app


async def _check_health(app: FastAPI) -> None:
    await app.state.dependencies.health.check()


@asynccontextmanager
async def _lifespan(dependencies: Dependencies, built: ValidatorLoops) -> AsyncIterator[None]:
    """Starts the examiner; at the end returns unfinished items to the queue and closes all clients.

    The service stops its background loops before this context exits, so no loop leases further items.
    """
    try:
        await ensure_schema(dependencies.redis, dependencies.keys, service="the validator", version=SCHEMA)
        dependencies.files.clear()
        async with dependencies.examiner:
            try:
                yield
            finally:
                with suppress(StoreUnavailable):  # if Redis is down, the queue leases expire by themselves
                    await dependencies.members.leave()
                    await dependencies.held.give_back()
                    await built.aclose()
    finally:
        await dependencies.chain.aclose()
        await dependencies.remote.aclose()
        await dependencies.redis.aclose()
