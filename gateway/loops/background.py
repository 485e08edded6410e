"""Background loops of a replica: notifications, heartbeat, and the sweep for what nobody reports."""

from __future__ import annotations

from datetime import timedelta

from gateway.dependencies import Dependencies
from gateway.errors import NO_ANSWER, UNVERIFIED
from gateway.store.scripts import Sweep
from protocol.runtime.logs import get_logger
from protocol.runtime.loops import BackgroundLoops

BEAT_EVERY = timedelta(seconds=2)
SWEEP_EVERY = timedelta(seconds=1)
GAUGES_EVERY = timedelta(seconds=5)
REPLICA_DEAD_AFTER = timedelta(seconds=15)
"""Time without a heartbeat after which a replica's requests are cancelled."""
SWEPT_AT_ONCE = 100
"""Maximum number of objects of one kind in a sweep, because Redis serves no other client meanwhile."""

_log = get_logger(__name__)


def add_loops(loops: BackgroundLoops, dependencies: Dependencies) -> None:
    """Adds the loops of one replica. Every replica runs all of them; they are safe to run at the same time."""
    database, metrics = dependencies.database, dependencies.metrics

    async def beat() -> None:
        await database.beat(dependencies.replica, lasting=REPLICA_DEAD_AFTER)

    async def gauges() -> None:
        counts = await database.counts()
        metrics.sessions.set(counts["sessions"])
        metrics.waiting.set(counts["waiting"])
        metrics.in_progress.set(counts["in_progress"])

    async def sweep() -> None:
        await sweep_once(dependencies)

    loops.add("doorbell", dependencies.doorbell.listen)
    loops.add("heartbeat", beat, every=BEAT_EVERY)
    loops.add("sweep", sweep, every=SWEEP_EVERY)
    loops.add("gauges", gauges, every=GAUGES_EVERY)


async def sweep_once(dependencies: Dependencies) -> None:
    """Handles lost sessions and attempts, dead replicas, and leases and verifications that ended."""
    swept = await dependencies.database.scripts.run(
        Sweep(
            now_ms=dependencies.database.now_ms(),
            at_once=SWEPT_AT_ONCE,
            last=NO_ANSWER,
            unverified=UNVERIFIED,
        )
    )
    found = {name: count for name, count in swept._asdict().items() if count}
    for cause in ("lost", "stalled"):
        dependencies.metrics.retries.labels(cause).inc(found.get(cause, 0))
    if found:
        _log.info("swept", **found)
