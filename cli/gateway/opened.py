"""Opens a gateway's Redis for a command."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gateway.settings import GatewaySettings
from gateway.store.database import Database
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import SystemClock


@asynccontextmanager
async def opened_database(config: Path | None) -> AsyncIterator[Database]:
    """Opens the Redis that the gateway's settings name."""
    settings = GatewaySettings.load(file=config)
    redis = connect_redis(settings.redis_url.get_secret_value())
    try:
        yield Database(redis, settings=settings, clock=SystemClock())
    finally:
        await redis.aclose()
