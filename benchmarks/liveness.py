"""Measures liveness checks: the cost of an idle tick, and a thousand nodes lost at once.

    python -m benchmarks.liveness

Claims: a tick over 10,000 idle nodes takes less than 1 ms; 1,000 nodes that fall silent at once are all dead within one
tick after their deadline. Real Redis with its append-only file.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import uvloop

from benchmarks.ending import end_in_order
from benchmarks.pool_under_load import (
    SERVER_KEY,
    QuietLedger,
    bench_settings,
    node_keys,
    percentile,
    redis_server,
    seed,
)
from orchestrator.dependencies import Dependencies, build_dependencies
from orchestrator.loops.liveness import Liveness
from protocol.redis.connection import connect_redis
from protocol.redis.leader_lease import LeaderLease
from protocol.runtime.clock import SystemClock
from protocol.runtime.logs import configure_logs
from protocol.wire.nodes import NodeState

TICKS = 400
LOST = 1000


def main() -> None:
    """Measures and prints."""
    configure_logs(level="WARNING")
    with redis_server() as url, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rows = runner.run(measure(url))
    print(f"\n{'idle nodes':>12} {'tick p50 ms':>12} {'tick p99 ms':>12}")
    for idle, times in rows[:-1]:
        print(f"{idle:>12,} {percentile(times, 0.5):>12.3f} {percentile(times, 0.99):>12.3f}")
    lost, times = rows[-1]
    print(f"{lost:,} nodes lost at once among 10,000: all dead after one tick of {times[0]:.0f} ms")
    print("claimed: under 1 ms at 10,000 idle nodes; all dead within one tick")


async def measure(url: str) -> list[tuple[int, list[float]]]:
    """Measures idle ticks at two sizes, then a mass failure."""
    rows = []
    for count in (100, 10_000):
        addresses = [key.address for key in node_keys(count)]
        seed(url, addresses)
        settings = bench_settings()
        dependencies = build_dependencies(
            settings, redis=connect_redis(url), ledger=QuietLedger(), key=SERVER_KEY, clock=SystemClock()
        )
        liveness = _liveness(dependencies)
        await _past_the_amnesty(dependencies, liveness)
        rows.append((count, [await _timed(liveness, expect=0) for _ in range(TICKS)]))
    lost = addresses[:LOST]
    now = int(time.time() * 1000)
    for address in lost:
        await dependencies.redis.hset(dependencies.database.key("node", address), mapping={"state": "unhealthy"})
        await dependencies.redis.zadd(dependencies.database.key("deadlines"), {address: now - 1})
    rows.append((LOST, [await _timed(liveness, expect=LOST)]))
    states = {row.state for row in await dependencies.nodes.get_many(lost)}
    if states != {NodeState.DEAD}:
        raise SystemExit(f"not all are dead: {states}")
    await dependencies.redis.aclose()
    return rows


def _liveness(dependencies: Dependencies) -> Liveness:
    return Liveness(
        database=dependencies.database,
        nodes=dependencies.nodes,
        transitions=dependencies.transitions,
        heartbeat_interval=dependencies.settings.heartbeat_interval(),
        clock=dependencies.clock,
        every=timedelta(seconds=0.5),
        lease=LeaderLease(dependencies.database, "liveness", lifetime=timedelta(seconds=60)),
        furthest=timedelta(hours=1),
    )


async def _past_the_amnesty(dependencies: Dependencies, liveness: Liveness) -> None:
    """Passes the grace period after the first tick, in which no node is declared dead; that period is not measured."""
    await liveness.tick()
    await dependencies.redis.hset(dependencies.database.key("liveness"), "amnesty", 0)


async def _timed(liveness: Liveness, *, expect: int) -> float:
    started = time.perf_counter()
    found = await liveness.tick()
    took = (time.perf_counter() - started) * 1000
    if found != expect:
        raise SystemExit(f"{found} nodes were overdue, not {expect}")
    return took


if __name__ == "__main__":
    end_in_order()
    main()
