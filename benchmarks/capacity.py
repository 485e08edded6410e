"""Measures what a pool of 1,000 nodes costs one orchestrator: memory of Redis, CPU, and disk for logs of Redis.

    python -m benchmarks.capacity [NODES] [FILES]

It prints the bytes of Redis per node, per file of a kept step, per ended assignment with its log, per event and per
task, and the share of a core that the heartbeats take. docs/capacity.md has the figures and what follows from them.
Real Redis with an append-only file, real signatures, HTTP over loopback; requests are signed beforehand.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis as sync_redis
from redis.client import Pipeline

from benchmarks import pages
from benchmarks.ending import end_in_order
from benchmarks.pool_under_load import (
    PREFIX,
    OrchestratorSpec,
    node_keys,
    percentile,
    redis_server,
    seed,
    send_heartbeats,
    warm_orchestrator,
)
from orchestrator.settings import OrchestratorSettings
from tests.kit.memory_run_ledger import sha

NODES, FILES = 1_000, 20_000
RECORDS = 5_000
"""Number of tasks, events and ended assignments that are written to measure one."""
LOG_LINES, LOG_LINE = 20, "x" * 120
BEATS = 6_000


@dataclass(frozen=True, slots=True)
class Share:
    """Memory of one kind of records."""

    name: str
    each: float
    """Bytes of Redis per record."""
    number: str
    """Number of records at most, or by which setting it is bounded."""


def main(nodes: int = NODES, files: int = FILES) -> None:
    """Measures and prints."""
    with redis_server() as url:
        shares = memory(url, nodes, files)
        keys = node_keys(nodes)
        with warm_orchestrator(url, keys) as (port, pid):
            keep_append_only_file(url)
            log = append_only_bytes(url)
            beats = send_heartbeats(port, pid, keys, BEATS)
            load, cost = beats.load, beats.cpu_s
            written = (append_only_bytes(url) - log) / load.sent
            resident = resident_bytes(pid)
    interval = OrchestratorSettings.model_fields["shortest_interval_s"].default
    rate = 1000 / interval
    print(f"\ncapacity of one orchestrator, Python {platform.python_version()}, {nodes:,} nodes")
    for share in shares:
        print(f"{share.name:<46} {share.each:>9,.0f} bytes   {share.number}")
    print(f"heartbeat: {cost * 1e6:.0f} µs of CPU, p99 {percentile(load.latencies_ms, 0.99):.1f} ms at full load, "
          f"{load.good}/{load.sent} answered, {load.sent / load.seconds:,.0f}/s")  # fmt: skip
    print(f"orchestrator: {resident >> 20} MiB of memory")
    print(f"1,000 nodes: {rate:.0f} heartbeats/s at an interval of {interval:g} s, {100 * rate * cost:.1f} % of a core")
    print(f"1,000 nodes: {rate * written * 86_400 / 1e9:.1f} GB/day appended to Redis's log before it is rewritten")


def memory(url: str, nodes: int, files: int) -> list[Share]:
    """Returns the memory of each kind of records in Redis."""
    with sync_redis.from_url(url) as client:

        def used(write: Callable[[], object]) -> int:
            before = int(client.info("memory")["used_memory"])
            write()
            return int(client.info("memory")["used_memory"]) - before

        def records(write: Callable[[Pipeline, int], None], number: int) -> float:
            def all_of_them() -> None:
                with client.pipeline(transaction=False) as pipe:
                    for each in range(number):
                        write(pipe, each)
                        if each % 1000 == 999:
                            pipe.execute()
                    pipe.execute()

            return used(all_of_them) / number

        per_node = used(lambda: seed(url, [key.address for key in node_keys(nodes)])) / nodes
        client.flushall()
        few = used(partial(_files, url, client, files // 10))
        client.flushall()  # before the next baseline is read
        many = used(partial(_files, url, client, files))
        per_file = (many - few) / (files - files // 10)
        client.flushall()
        history = records(_history, RECORDS)
        shares = [
            Share("a node with a task and its assignment", per_node, "nodes of the pool"),
            Share("256 entries of a node's history", 256 * history, "per node"),
            Share("a file with its slot, names and audit file", per_file, "files of run_kept_steps steps (64)"),
            Share("a finished task", records(_task, RECORDS), "10,000; task_kept_s"),
            Share("an event", records(_event, RECORDS), "100,000; event_kept_s"),
            Share(
                f"an ended assignment, log of {LOG_LINES} lines", records(_assignment, RECORDS), "50,000; log_kept_s"
            ),
        ]
        client.flushall()
    return shares


def _files(url: str, client: sync_redis.Redis, number: int) -> None:
    """Writes a run's files as the pages' benchmark does, with the entries that retention reads."""
    pages.seed(url, 100, number)
    addresses = [key.address for key in node_keys(100)]
    with client.pipeline(transaction=False) as pipe:
        for each in range(number):
            node, key = addresses[each % 100], sha(each + 1)
            slot = f"{each // pages.PER_STEP}:{node}:{each}"
            pipe.hset(f"{PREFIX}run:named", f"{node}:{key}", slot)
            pipe.hset(f"{PREFIX}run:audits", f"{node}:{key}", slot)
            pipe.sadd(f"{PREFIX}run:audits:{slot}", f"{node}:{key}")
            pipe.lpush(f"{PREFIX}run:node:{node}", slot)
            if each % 1000 == 999:
                pipe.execute()
        pipe.execute()


def _task(pipe: Pipeline, number: int) -> None:
    task, now = f"{number:032x}", int(time.time() * 1000)
    fields: dict[Any, Any] = {
        "name": "rollouts",
        "spec": OrchestratorSpec.full(),
        "generation": 1,
        "desired": "running",
        "rev": 2,
    }
    fields |= {"state": "completed", "reason": "all replicas completed", "created": now, "ended": now, "sealed": ""}
    pipe.hset(f"{PREFIX}task:{task}", mapping={**fields, "secret_names": "[]", "ver": 3})
    pipe.hset(f"{PREFIX}counts:{task}", "completed", 1)
    pipe.zadd(f"{PREFIX}tasks", {task: now})


def _event(pipe: Pipeline, number: int) -> None:
    fields: dict[Any, Any] = {
        "time": int(time.time() * 1000),
        "kind": "verdict.accepted",
        "actor": "ledger",
        "task": "",
    }
    fields |= {"detail": f"work {sha(number)}", "node": "0x" + "ab" * 20, "assignment": ""}
    pipe.xadd(f"{PREFIX}events", fields)


def _history(pipe: Pipeline, number: int) -> None:
    fields: dict[Any, Any] = {
        "time": int(time.time() * 1000) + number,
        "before": "healthy",
        "after": "unhealthy",
        "event": "missed",
    }
    pipe.xadd(f"{PREFIX}history:x", {**fields, "cause": "no heartbeat arrived in time", "actor": "liveness"})


def _assignment(pipe: Pipeline, number: int) -> None:
    name, task, node, now = f"{number:032x}", f"{number % 100:032x}", "0x" + "ab" * 20, int(time.time() * 1000)
    fields: dict[Any, Any] = {
        "id": name,
        "task": task,
        "name": "rollouts",
        "node": node,
        "generation": 1,
        "state": "completed",
    }
    times: dict[Any, Any] = {
        "assigned": now,
        "ended": now,
        "log_next": LOG_LINES,
        "log_bytes": LOG_LINES * 160,
        "log_more": "0",
    }
    pipe.hset(f"{PREFIX}assignment:{name}", mapping={**fields, **times, "because": "it completed"})
    entry = f"{now:014d}-{name}"
    for index in ("", f":task:{task}", f":node:{node}"):
        pipe.zadd(f"{PREFIX}assignments{index}", {entry: 0})
    pipe.zadd(f"{PREFIX}assignments:ended", {f"{entry}:{task}:{node}": now})
    for line in range(LOG_LINES):
        text = json.dumps({"sequence": line, "time_ms": now, "stream": "stdout", "text": LOG_LINE})
        pipe.xadd(f"{PREFIX}logs:{name}", {"line": text}, id=f"{line + 1}-1")


def keep_append_only_file(url: str) -> None:
    """Stops rewrites of the append-only file, which would make it smaller, and waits for one in progress."""
    with sync_redis.from_url(url) as client:
        client.config_set("auto-aof-rewrite-percentage", 0)
        while client.info("persistence")["aof_rewrite_in_progress"]:
            time.sleep(0.1)


def append_only_bytes(url: str) -> int:
    """Returns the size of Redis's append-only file."""
    with sync_redis.from_url(url) as client:
        return int(client.info("persistence")["aof_current_size"])


def resident_bytes(pid: int) -> int:
    """Returns the resident memory of a process."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:  # noqa: PTH123 - a kernel file
        return int(file.read().split()[1]) * 4096


if __name__ == "__main__":
    end_in_order()
    main(*map(int, sys.argv[1:3]))
