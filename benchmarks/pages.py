"""Opens the three web pages in Chromium while the store has 10,000 nodes and 100,000 files.

    python -m benchmarks.pages [NODES] [FILES]

Claims: each page's first paint is below 1 s, and an open page sends at most one request per second. It also prints when
the data are shown. Real Redis with an append-only file, an orchestrator over loopback, ledgers in memory. It needs
Chromium, and the npm packages of deploy/npm (`MUSTER_TOOLS`).
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import redis as sync_redis
from fastapi import FastAPI
from redis.client import Pipeline

from benchmarks.ending import end_in_order
from benchmarks.pool_under_load import node_keys, redis_server
from ledger.amounts import UNIT
from orchestrator.app import build_orchestrator
from orchestrator.dependencies import Dependencies
from orchestrator.domain.keys import pool_keys
from orchestrator.settings import OrchestratorSettings
from orchestrator.store.accounts import SMALLEST
from protocol.http.tokens import TokenSetting, hash_token, new_token
from protocol.identifiers import Address
from protocol.identity.keys import Key
from protocol.identity.scopes import Scope
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import SystemClock
from tests.kit.browser import measure_in_browser
from tests.kit.http_server import served
from tests.kit.memory_ledger import HARDWARE, POOL, MemoryLedger
from tests.kit.memory_run_ledger import RUN, MemoryRunLedger, sha

NODES, FILES = 10_000, 100_000
PER_STEP = 1_000
NODES_PER_PROVIDER = 20
CLAIMED_PAINT_MS, CLAIMED_RATE = 1000.0, 1.0
PREFIX = f"{pool_keys(POOL).prefix}"
TOKEN = new_token()


def seed(redis_url: str, nodes: int, files: int) -> list[Address]:
    """Writes nodes, steps with files of all outcomes, and accounts; returns the providers."""
    now = int(time.time() * 1000)
    addresses = [key.address for key in node_keys(nodes)]
    providers = [Key.generate().address for _ in range(max(1, nodes // NODES_PER_PROVIDER))]
    owner = {address: providers[number % len(providers)] for number, address in enumerate(addresses)}
    hardware = HARDWARE.model_dump_json()
    with sync_redis.from_url(redis_url) as client, client.pipeline(transaction=False) as pipe:
        for number, address in enumerate(addresses):
            fields = {"state": "healthy", "rev": 1, "since": now, "seen": now, "member": 1, "provider": owner[address]}
            pipe.hset(
                f"{PREFIX}node:{address}", mapping={**fields, "reason": "it sent a heartbeat", "hardware": hardware}
            )
            pipe.zadd(f"{PREFIX}nodes", {address: 0})
            pipe.zadd(f"{PREFIX}deadlines", {address: now + 86_400_000})
            pipe.lpush(f"{PREFIX}run:nodes:{owner[address]}", address)
            _account(pipe, f"node:{address}", files // nodes, now)
            if number % 1000 == 999:
                pipe.execute()
        for number in range(files):
            _file(pipe, number, addresses[number % nodes], owner[addresses[number % nodes]], now)
            if number % 1000 == 999:
                pipe.execute()
        for provider in providers:
            _account(pipe, f"provider:{provider}", files // len(providers), now)
            pipe.zadd(f"{PREFIX}run:ranking", {provider: hash(provider) % 10**9})
            pipe.ltrim(f"{PREFIX}run:provider:{provider}", 0, 499)
            pipe.hset(f"{PREFIX}run:earned:{provider}", mapping=_days(now))
        _account(pipe, "pool", files, now)
        pipe.hset(f"{PREFIX}run:earned:pool", mapping=_days(now))
        steps = files // PER_STEP
        pipe.hset(f"{PREFIX}run:step:{steps - 1}", "demand", 10 * PER_STEP)  # the current step is one with files
        pipe.hset(
            f"{PREFIX}run:state",
            mapping={
                "rev": 1,
                "ready": 1,
                "floor": steps - 1,
                "version": steps - 1,
                "digest": sha(1),
                "units": 100,
                "price": 10**12,
            },
        )
        for number in range(20_000):
            kind = ("verdict.accepted", "payout.earned", "node.healthy", "slash.forgery")[number % 4]
            event = {
                "time": now,
                "kind": kind,
                "detail": f"work {sha(number)}",
                "actor": "ledger",
                "node": addresses[number % nodes],
            }
            pipe.xadd(f"{PREFIX}events", {**event, "task": "", "assignment": ""})
            if number % 1000 == 999:
                pipe.execute()
        pipe.execute()
    return providers


def _file(pipe: Pipeline, number: int, node: str, provider: str, now: int) -> None:
    step, key = number // PER_STEP, sha(number + 1)
    name = f"{step}:{node}:{number}"
    outcome = 2 if number % 50 == 7 else 3 if number % 500 == 9 else 1
    row: dict[Any, Any] = {
        "rev": 1, "node": node, "provider": provider, "step": step, "index": number, "version": step, "digest": sha(1),
        "groups": 4, "units": 400, "worked": 400, "expiry": now // 1000, "granted": now, "state": "provisional",
        "counted": "accepted" if outcome == 1 else "rejected", "outcome": outcome, "file": "present", "key": key,
        "sha256": key, "at": now, "reason": 0 if outcome == 1 else 902, "audit": key, "judge": node,
        "figures": json.dumps({"reward": 0.5 + step / 500, "length": 100.0}),
    }  # fmt: skip
    pipe.hset(f"{PREFIX}run:slot:{name}", mapping=row)
    pipe.zadd(f"{PREFIX}run:slots:{step}", {name: now // 1000})
    pipe.zadd(f"{PREFIX}run:steps", {str(step): step})
    pipe.hincrby(f"{PREFIX}run:step:{step}", "accepted", 4)
    pipe.hset(f"{PREFIX}run:keys", key, name)
    pipe.lpush(f"{PREFIX}run:provider:{provider}", name)


def _account(pipe: Pipeline, owner: str, files: int, now: int) -> None:
    counts: dict[Any, Any] = {
        "verdict.accepted": files,
        "verdict.rejected": files // 50,
        "verdict.forged": files // 500,
        "since": now,
    }
    pipe.hset(f"{PREFIX}run:account:{owner}", mapping={**counts, "payout.earned:amount": files * UNIT // SMALLEST})


def _days(now: int) -> dict[Any, Any]:
    today = now // 86_400_000
    return {str(today - back): (90 - back % 7) * UNIT // SMALLEST for back in range(90)}


async def prepare(dependencies: Dependencies, provider: Address) -> tuple[float, str]:
    """Writes the public summary; returns the time that it took in milliseconds, and a contributor's session."""
    await dependencies.public.write()  # the first one also computes the means of all steps
    began = time.perf_counter()
    await dependencies.public.write()
    took = 1000 * (time.perf_counter() - began)
    node = (await dependencies.accounts.nodes_of(provider))[0]
    link = await dependencies.contributors.login(node)
    session = await dependencies.contributors.begin(link.url.partition("#login=")[2])
    await dependencies.redis.aclose()
    return took, session.token


def main(nodes: int = NODES, files: int = FILES) -> None:
    """Seeds the store, opens the pages, prints figures, and exits with 1 if a claim does not hold."""
    key, clock = Key.generate(), SystemClock()
    with redis_server() as redis_url, tempfile.TemporaryDirectory() as home:
        began = time.perf_counter()
        providers = seed(redis_url, nodes, files)
        with sync_redis.from_url(redis_url) as client:
            memory = client.info("memory")["used_memory"] >> 20
        took = time.perf_counter() - began
        size = f"{nodes:,} nodes, {files:,} files, {len(providers):,} providers"
        print(f"store      {size}: {memory} MiB of Redis, seeded in {took:.0f} s")

        def build() -> FastAPI:
            settings = OrchestratorSettings.model_validate(
                {
                    "public_url": "http://127.0.0.1:1", "pool_id": POOL, "deployment": "unused", "run": RUN,
                    "storage_directory": Path(home), "node_rate_per_s": 10_000, "node_burst": 100_000,
                    "run_groups": 8, "ip_burst": 1_000_000,
                    "tokens": (TokenSetting(name="owner", scope=Scope.ADMIN, hash=hash_token(TOKEN)),),
                }
            )  # fmt: skip
            ledger, run_ledger = MemoryLedger(orchestrator=key.address), MemoryRunLedger()
            return build_orchestrator(
                settings,
                redis=connect_redis(redis_url),
                ledger=ledger,
                run_ledger=run_ledger,
                key=key,
                clock=clock,
                with_loops=False,
            )

        took, session = asyncio.run(prepare(build().state.dependencies, providers[0]))
        print(f"summary    composed and stored in {took:.0f} ms, once per 15 s and pool")
        with served(build()) as url:
            found = measure_in_browser({"url": url, "token": TOKEN, "session": session})
    failed = False
    for page in found:
        good = page["paint_ms"] < CLAIMED_PAINT_MS and page["per_second"] <= CLAIMED_RATE
        failed |= not good
        print(
            f"page       {page['path']:<16} first paint {page['paint_ms']:4.0f} ms, data {page['data_ms']:5.0f} ms, "
            f"{page['per_second']:.2f} requests per second{'' if good else '   FAILED'}"
        )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    end_in_order()
    main(*map(int, sys.argv[1:3]))
