"""Ten thousand simulated workers on one orchestrator: no heartbeat is lost, and the interval grows as designed.

    python -m benchmarks.many_workers [WORKERS] [SECONDS]

Each worker is a connection with its own key that sends a heartbeat when the last answer asked for it, from a few
processes outside the orchestrator, over real HTTP; each request is signed when it is sent.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import resource
import sys
import time
from dataclasses import dataclass, field

import redis as sync_redis
import uvloop

from benchmarks.ending import end_in_order
from benchmarks.pool_under_load import (
    PREFIX,
    Line,
    cpu_seconds,
    heartbeat_request,
    node_keys,
    orchestrator_process,
    percentile,
    redis_server,
    seed,
)
from protocol.identity.keys import Key

PROCESSES = 2
TARGET_RATE = 500
SHORTEST_S = 10.0
SPREAD_S = 20.0
"""Seconds over which the workers start."""


@dataclass
class Seen:
    """Counts of some workers' answers."""

    sent: int = 0
    good: int = 0
    retried: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    intervals_s: list[float] = field(default_factory=list)


def main(workers: int = 10_000, seconds: int = 60) -> None:
    """Measures and prints."""
    _many_files()
    with redis_server() as url:
        keys = node_keys(workers)
        seed(url, [key.address for key in keys])
        settings = {"target_rate": TARGET_RATE, "shortest_interval_s": SHORTEST_S}
        with orchestrator_process(url, **settings) as (port, pid):
            before = cpu_seconds(pid)
            context = multiprocessing.get_context("spawn")
            with context.Pool(PROCESSES) as pool:
                shares = [(port, workers, number, seconds) for number in range(PROCESSES)]
                found = pool.starmap(run_share, shares)
            cpu = cpu_seconds(pid) - before
        with sync_redis.from_url(url) as client:
            dead = sum(state != b"healthy" for state in _states(client, keys))
    report(workers, seconds, found, cpu, dead)


def report(workers: int, seconds: int, found: list[Seen], cpu: float, not_healthy: int) -> None:
    """Prints the table."""
    sent, good = sum(one.sent for one in found), sum(one.good for one in found)
    latencies = [value for one in found for value in one.latencies_ms]
    intervals = [value for one in found for value in one.intervals_s]
    designed = max(SHORTEST_S, workers / TARGET_RATE)
    print(f"\n{workers:,} workers, {PROCESSES} client processes, {seconds} s")
    print(
        f"heartbeats sent {sent:,}, answered {good:,}, lost {sent - good}, tried again {sum(o.retried for o in found)}"
    )
    print(f"rate {good / seconds:,.0f}/s at {cpu / seconds:.0%} of one core; designed for {TARGET_RATE}/s")
    print(f"latency p50 {percentile(latencies, 0.5):.1f} ms, p99 {percentile(latencies, 0.99):.1f} ms")
    print(f"interval {min(intervals):.1f} to {max(intervals):.1f} s; designed {designed:.1f} to {designed * 1.1:.1f} s")
    print(f"nodes that are not healthy at the end: {not_healthy}")


def run_share(port: int, workers: int, number: int, seconds: int) -> Seen:
    """Runs one client process's share of the workers."""
    _many_files()
    keys = node_keys(workers)[number::PROCESSES]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_share(port, keys, seconds))


async def _share(port: int, keys: list[Key], seconds: int) -> Seen:
    seen = Seen()
    ends = time.monotonic() + seconds
    await asyncio.gather(*(_worker(port, key, ends, seen) for key in keys))
    return seen


async def _worker(port: int, key: Key, ends: float, seen: Seen) -> None:
    # The stagger spreads workers of a running pool over the interval; these are spread from the start.
    await asyncio.sleep(random.uniform(0, SPREAD_S))
    line = await Line.to(port)
    while time.monotonic() < ends:
        started = time.perf_counter()
        seen.sent += 1
        status, body = await line.exchange(heartbeat_request(key))
        if status == 0:
            seen.retried += 1
            line = await Line.to(port)
            status, body = await line.exchange(heartbeat_request(key))
        seen.latencies_ms.append((time.perf_counter() - started) * 1000)
        seen.good += status == 200
        interval = json.loads(body)["next_interval_seconds"] if status == 200 else 1.0
        seen.intervals_s.append(interval)
        await asyncio.sleep(min(interval, max(0.0, ends - time.monotonic())))
    line.close()


def _states(client: sync_redis.Redis, keys: list[Key]) -> list[bytes | None]:
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.hget(f"{PREFIX}node:{key.address}", "state")
        states: list[bytes | None] = pipe.execute()
        return states


def _many_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    end_in_order()
    main(*(int(argument) for argument in sys.argv[1:]))
