"""A process that runs the sweeper over a pool's store, for tests that kill it or take its disk away.

It prints a line for each object that it deleted, and `done` when a round deleted nothing.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from prometheus_client import CollectorRegistry

from orchestrator.domain.keys import pool_keys
from orchestrator.loops.sweeper import ObjectKind, Sweeper, SweepTerms
from orchestrator.metrics import RetentionMetrics
from orchestrator.storage.local import LocalStore
from orchestrator.store.database import Database
from orchestrator.store.runs import RunStore
from protocol.redis.connection import connect_redis
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.clock import ManualClock
from protocol.wire.uploads import ObjectKey
from tests.kit.memory_ledger import POOL

DAY = timedelta(days=1)


class TellingStore(LocalStore):
    async def delete(self, key: ObjectKey) -> None:
        await super().delete(key)
        print(key.sha256, flush=True)  # noqa: T201


async def sweep(redis_url: str, directory: str, now_s: str) -> None:
    clock, redis = ManualClock(datetime.fromtimestamp(float(now_s), UTC)), connect_redis(redis_url)
    database = Database(redis, keys=pool_keys(POOL))
    sweeper = Sweeper(
        pool_id=POOL,
        runs=RunStore(database, default_demand=1),
        objects=TellingStore(Path(directory), base_url="http://127.0.0.1", clock=clock),
        lease=LeaderLease(database, "sweep", lifetime=timedelta(minutes=10)),
        clock=clock,
        terms=SweepTerms(
            kept=dict.fromkeys(ObjectKind, DAY),
            longest_lease=timedelta(seconds=100),
            discard_after=timedelta(minutes=15),
        ),
        metrics=RetentionMetrics(CollectorRegistry()),
    )
    while await sweeper.round():
        pass
    print("done", flush=True)  # noqa: T201
    await redis.aclose()


if __name__ == "__main__":
    if sys.argv[4:] == ["full"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # as on a full disk, no file can grow
    asyncio.run(sweep(*sys.argv[1:4]))
