"""Dependencies shared by the routes and loops of one replica."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from gateway.chain.pool import CachedLedger, GatewayLedger
from gateway.clients.answering import ClientAnswers
from gateway.clients.requests import ClientRequests
from gateway.clients.tokens import TokenStore
from gateway.metrics import GatewayMetrics
from gateway.sessions.answering import SessionAnswering
from gateway.sessions.opening import SessionOpening
from gateway.settings import GatewaySettings, Verify
from gateway.store.database import Database
from gateway.store.doorbell import Doorbell
from gateway.verifications import Verifications
from protocol.identity.keys import Key
from protocol.runtime.clock import Clock
from protocol.runtime.randomness import token_hex


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependencies:
    """Dependency container of one replica."""

    settings: GatewaySettings
    replica: str
    """Id of this process."""
    clock: Clock
    key: Key
    database: Database
    doorbell: Doorbell
    ledger: CachedLedger
    tokens: TokenStore
    opening: SessionOpening
    answering: SessionAnswering
    answers: ClientAnswers
    verifications: Verifications
    metrics: GatewayMetrics


def build_dependencies(
    settings: GatewaySettings,
    *,
    redis: Redis,
    ledger: GatewayLedger,
    key: Key,
    clock: Clock,
    registry: CollectorRegistry,
) -> Dependencies:
    """Builds all objects of a replica without starting any background work."""
    replica = token_hex(8)
    database = Database(redis, settings=settings, clock=clock)
    doorbell = Doorbell(redis, keys=database.keys, replica=replica)
    cached = CachedLedger(ledger, clock=clock)
    metrics = GatewayMetrics.on(registry)
    requests = ClientRequests(
        settings,
        replica=replica,
        database=database,
        ledger=cached,
        doorbell=doorbell,
        metrics=metrics,
        clock=clock,
    )
    return Dependencies(
        settings=settings,
        replica=replica,
        clock=clock,
        key=key,
        database=database,
        doorbell=doorbell,
        ledger=cached,
        tokens=TokenStore(database),
        opening=SessionOpening(settings, database=database, ledger=cached, key=key, clock=clock),
        answering=SessionAnswering(settings, database=database, doorbell=doorbell, metrics=metrics, clock=clock),
        answers=ClientAnswers(requests, metrics=metrics, held=settings.verify is Verify.BEFORE),
        verifications=Verifications(settings, database=database, doorbell=doorbell, metrics=metrics, clock=clock),
        metrics=metrics,
    )


def dependencies_of(request: Request) -> Dependencies:
    """Returns the dependencies of the application that serves this request."""
    dependencies = request.app.state.dependencies
    if not isinstance(dependencies, Dependencies):
        raise TypeError("app.state.dependencies must be Dependencies")
    return dependencies
