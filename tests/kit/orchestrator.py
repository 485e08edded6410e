"""Fixtures of an orchestrator on a real Redis, with a manual clock and an in-memory ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from orchestrator.app import build_orchestrator
from orchestrator.chain.run_interface import RunLedger
from orchestrator.loops.ledger_sync import LedgerSync
from orchestrator.loops.liveness import Liveness
from orchestrator.loops.removals import Removals
from orchestrator.loops.scheduler import Scheduler
from orchestrator.settings import OrchestratorSettings
from protocol.http import tokens
from protocol.http.tokens import TokenSetting, hash_token, new_token
from protocol.identity.keys import Key
from protocol.identity.scopes import Scope
from protocol.redis.connection import connect_redis
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.clock import ManualClock
from tests.kit.memory_ledger import POOL, MemoryLedger, PoolUnderTest

MakePool = Callable[..., PoolUnderTest]

tokens._stretch = cache(tokens._stretch)
"""Otherwise each orchestrator under test spends 0.06 CPU seconds on the first request with a token."""
TOKEN = new_token()
TOKEN_HASH = hash_token(TOKEN)
READER = new_token()
READER_HASH = hash_token(READER)


def under_test(
    url: str,
    clock: ManualClock,
    ledger: MemoryLedger,
    key: Key,
    secrets: Path,
    *,
    run_ledger: RunLedger | None = None,
    **more: Any,
) -> PoolUnderTest:
    settings = OrchestratorSettings(
        pool_id=POOL,
        deployment=Path("unused"),
        secrets_key_file=secrets,
        storage_directory=secrets.parent / "objects",
        tokens=(
            TokenSetting(name="boss", scope=Scope.ADMIN, hash=TOKEN_HASH),
            TokenSetting(name="looker", scope=Scope.READ, hash=READER_HASH),
        ),
        **{"public_url": "http://127.0.0.1:8002", "storage_reserve_bytes": 0, **more},
    )
    app = build_orchestrator(
        settings,
        redis=connect_redis(url, retries=0),
        ledger=ledger,
        run_ledger=run_ledger,
        key=key,
        clock=clock,
        with_loops=False,
    )
    dependencies = app.state.dependencies

    def lease(name: str) -> LeaderLease:
        return LeaderLease(dependencies.database, name, lifetime=timedelta(seconds=10))

    return PoolUnderTest(
        app=app,
        dependencies=dependencies,
        clock=clock,
        ledger=ledger,
        token=TOKEN,
        liveness=Liveness(
            database=dependencies.database,
            nodes=dependencies.nodes,
            transitions=dependencies.transitions,
            heartbeat_interval=settings.heartbeat_interval(),
            clock=clock,
            every=timedelta(seconds=0.5),
            lease=lease("liveness"),
            furthest=timedelta(seconds=600),
        ),
        scheduler=Scheduler(
            database=dependencies.database,
            nodes=dependencies.nodes,
            tasks=dependencies.tasks,
            assignments=dependencies.assignments,
            timeouts=settings.scheduler_timeouts(),
            clock=clock,
            lease=lease("scheduler"),
        ),
        sync=LedgerSync(dependencies, lease=lease("ledger")),
        removals=Removals(dependencies, lease=lease("removals")),
    )


@pytest.fixture
async def make_pool(redis_url: str, tmp_path: Path, clock: ManualClock) -> AsyncIterator[MakePool]:
    """Makes orchestrators of one pool: the same Redis, ledger and key."""
    key = Key.generate()
    ledger = MemoryLedger(orchestrator=key.address)
    made: list[PoolUnderTest] = []

    def make(**more: Any) -> PoolUnderTest:
        made.append(under_test(redis_url, clock, ledger, key, tmp_path / "secrets.key", **more))
        return made[-1]

    yield make
    for pool in made:
        await pool.dependencies.redis.aclose()


@pytest.fixture
def pool(make_pool: MakePool) -> PoolUnderTest:
    """One orchestrator."""
    return make_pool()
