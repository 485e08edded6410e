"""A pool's orchestrator on a TCP port, for validators in other processes and those behind a proxy."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from orchestrator.app import build_orchestrator
from orchestrator.chain.pool import LedgerPool
from orchestrator.chain.run import LedgerRun
from protocol.identifiers import run_id
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import SystemClock
from tests.kit.http_server import served
from tests.kit.memory_run_ledger import RUN
from tests.kit.outages import Wire
from tests.kit.validators import PoolWithValidators
from tests.kit.world import POOL


@asynccontextmanager
async def reachable(pool: PoolWithValidators) -> AsyncIterator[tuple[str, Wire]]:
    """Runs a second orchestrator instance on the same Redis and chain; yields its URL and the proxy in front of it."""
    first, listener = pool.run.pool.dependencies, socket.create_server(("127.0.0.1", 0))
    wire = Wire(*listener.getsockname())
    await wire.join()
    url = f"http://127.0.0.1:{wire.port}"
    redis, world = connect_redis(pool.url), pool.world
    shared: dict[str, Any] = {"pool_id": POOL, "redis": redis, "confirmations": 0, "clock": SystemClock()}
    app = build_orchestrator(
        first.settings.model_copy(update={"public_url": url}),
        redis=redis,
        ledger=LedgerPool(world.url, world.deployment, key=first.key, manager=None, **shared),
        run_ledger=LedgerRun(world.url, world.deployment, run=run_id(RUN), relayer=first.key, **shared),
        key=first.key,
        clock=first.clock,
        with_loops=False,
    )
    try:
        with served(app, listener=listener):
            yield url, wire
    finally:
        wire.cut()
