"""Builds the service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from datetime import timedelta

from fastapi import FastAPI
from redis.asyncio import Redis

from protocol.http.rates import IpRates, Rate
from protocol.http.replay_guard import ReplayGuard
from protocol.http.service import create_service
from protocol.http.tokens import TokenBook
from protocol.http.verification import RequestVerifier
from protocol.identity.keys import Key
from protocol.redis.connection import StoreUnavailable, check_redis
from protocol.runtime.clock import Clock, SystemClock
from protocol.runtime.loops import BackgroundLoops
from protocol.versions import release
from validator.api.routes import BODY, router
from validator.audit_loops import Looking
from validator.background import add_loops
from validator.chain.connection import PoolChain
from validator.dependencies import Dependencies, OpenableExaminer, Remote, build_dependencies
from validator.queue_metrics import QueueMetrics
from validator.settings import ValidatorSettings

DESCRIPTION = """How a validator is, what it could not judge, and what its operator decides of that. Verdicts themselves
are on the ledger, and their evidence in the pool's object store.

Takes a bearer token, or requests that the validator's own key signed."""

OWN_RATE = Rate(count=6000, per=timedelta(minutes=1), burst=1000)


def build_validator(
    settings: ValidatorSettings,
    *,
    redis: Redis,
    chain: PoolChain,
    remote: Remote,
    examiner: OpenableExaminer,
    key: Key,
    clock: Clock | None = None,
    with_loops: bool = True,
) -> FastAPI:
    """Returns the application.

    Args:
        settings: Settings.
        redis: Shared by validators that share a queue; closed with the application.
        chain: The ledger; closed with the application.
        remote: The orchestrator; closed with the application.
        examiner: Entered with the application.
        key: The validator's key.
        clock: The system's clock by default.
        with_loops: False to run no background loops in this process.
    """
    clock = SystemClock() if clock is None else clock
    loops = BackgroundLoops(clock=clock)
    app = create_service(
        "validator",
        version=release(),
        description=DESCRIPTION,
        lifespan=lambda app: _life(app.state.dependencies),
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
    )
    looking = Looking(dependencies)
    app.state.dependencies = dependencies
    app.state.loops = loops
    app.state.looks = lambda: asdict(looking.counts)
    app.state.tokens = TokenBook(settings.tokens)
    admission = ReplayGuard(redis, keys=dependencies.keys, rate=OWN_RATE, clock=clock)
    app.state.verifier = RequestVerifier(audience=key.address, admission=admission, clock=clock, body_limit=BODY)
    app.include_router(router)
    gauges = QueueMetrics(
        app.state.registry,
        queue=dependencies.queue,
        deadlines=dependencies.deadlines,
        intake=dependencies.intake,
        looks=lambda: looking.counts,
        health=dependencies.health,
    )
    if with_loops:
        add_loops(loops, dependencies, looking=looking, gauges=gauges)
    return app


async def _check_health(app: FastAPI) -> None:
    await app.state.dependencies.health.check()


@asynccontextmanager
async def _life(dependencies: Dependencies) -> AsyncIterator[None]:
    """Starts the examiner. At the end, after the loops have stopped, returns unfinished items to the queue."""
    try:
        dependencies.files.clear()
        async with dependencies.examiner:
            try:
                yield
            finally:
                with suppress(StoreUnavailable):  # then its leases expire
                    await dependencies.members.leave()
                    await dependencies.held.give_back()
                    await dependencies.intake.aclose()
                    await dependencies.finalising.aclose()
    finally:
        await dependencies.chain.aclose()
        await dependencies.remote.aclose()
        await dependencies.redis.aclose()
