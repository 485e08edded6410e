"""Measures signatures and whole requests that one core checks per second; `python -m benchmarks.signatures`.

Compared: eth-account's recovery (with coincurve below it, as installed) and ours, which calls libsecp256k1 directly;
then the complete check of a signed request, without and with its round trip to a real Redis (in batches of 64
concurrent requests, as in a busy service). Needs `redis-server` on the PATH for the last row.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from eth_account import Account
from eth_account.messages import encode_defunct
from fastapi import Request
from rich.console import Console
from rich.table import Table
from starlette.types import Message

from benchmarks.ending import end_in_order
from protocol.http.rates import Rate
from protocol.http.replay_guard import ReplayGuard
from protocol.http.verification import RequestVerifier
from protocol.identity.keys import Key
from protocol.identity.secp256k1 import personal_hash, recover
from protocol.identity.signing import RequestStamp, request_message, sign_request
from protocol.redis.connection import RedisKeys, connect_redis
from protocol.runtime.clock import SystemClock

SECONDS = float(os.environ.get("MUSTER_BENCHMARK_SECONDS", "3"))
BODY = b'{"pool_id":7,"worker_version":"0.1.0","metrics":{"cpu":0.5,"memory":0.25}}' + b" " * 300
NODE, SERVICE = Key(b"\x01" * 32), Key(b"\x02" * 32)
CONCURRENT = 64


def per_second(work: Callable[[], object]) -> float:
    """Returns calls per second of CPU time, after a short warm-up."""
    for _ in range(50):
        work()
    calls, began = 0, time.process_time()
    while time.process_time() - began < SECONDS:
        for _ in range(50):
            work()
        calls += 50
    return calls / (time.process_time() - began)


def stamped() -> RequestStamp:
    """Returns one signed heartbeat."""
    return sign_request(
        NODE, audience=SERVICE.address, method="POST", target="/v1/heartbeat", body=BODY, at=datetime.now(UTC)
    )


def as_request(stamp: RequestStamp) -> Request:
    """Returns the request in the form that a server passes on."""
    headers = [(name.lower().encode(), value.encode()) for name, value in stamp.headers().items()]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/heartbeat",
        "raw_path": b"/v1/heartbeat",
        "query_string": b"",
        "headers": [*headers, (b"content-length", str(len(BODY)).encode())],
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": BODY, "more_body": False}

    return Request(scope, receive)


async def verified_per_second(check: Callable[[Request], Awaitable[object]]) -> tuple[float, float]:
    """Returns verified requests per second of wall time and of CPU time; the time for signing is excluded."""
    wall = cpu = 0.0
    done = 0
    while wall < SECONDS:
        requests = [as_request(stamped()) for _ in range(CONCURRENT)]
        began, began_cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(check(request) for request in requests))
        wall, cpu, done = wall + time.perf_counter() - began, cpu + time.process_time() - began_cpu, done + CONCURRENT
    return done / wall, done / cpu


@asynccontextmanager
async def redis_server() -> AsyncIterator[str | None]:
    """Runs a redis-server on a unix socket; yields None if the program is missing."""
    binary = os.environ.get("MUSTER_REDIS_SERVER") or shutil.which("redis-server")
    if binary is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "s"
        command = [binary, "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", home]
        process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
        try:
            for _ in range(200):
                if path.exists():
                    break
                await asyncio.sleep(0.05)
            yield f"unix://{path}"
        finally:
            process.terminate()
            await process.wait()


async def main() -> None:
    """Measures and prints."""
    stamp = stamped()
    message = request_message(
        audience=stamp.audience,
        method="POST",
        target="/v1/heartbeat",
        body_sha256=hashlib.sha256(BODY).hexdigest(),
        timestamp_ms=stamp.timestamp_ms,
        nonce=stamp.nonce,
    )
    table = Table(title="Checking signatures, one core")
    for column in ("what", "per second of CPU", "per second", "against eth-account"):
        table.add_column(column, justify="left" if column == "what" else "right")
    theirs = per_second(lambda: Account.recover_message(encode_defunct(message), signature=stamp.signature))
    ours = per_second(lambda: recover(personal_hash(message), stamp.signature))
    signing = per_second(lambda: NODE.sign_message(message))
    table.add_row("recover a signer, eth-account", f"{theirs:,.0f}", "", "1.0x")
    table.add_row("recover a signer, protocol.identity.secp256k1", f"{ours:,.0f}", "", f"{ours / theirs:.1f}x")
    table.add_row("sign, protocol.identity.keys", f"{signing:,.0f}", "", "")
    async with redis_server() as url:
        redis = connect_redis(url or "unix:///nowhere", connections=CONCURRENT)
        clock = SystemClock()
        rate = Rate(count=10**6, per=timedelta(seconds=1), burst=10**6)
        admission = ReplayGuard(redis, keys=RedisKeys("7"), rate=rate, clock=clock)
        verifier = RequestVerifier(audience=SERVICE.address, admission=admission, clock=clock)
        wall, cpu = await verified_per_second(verifier.authenticate)
        table.add_row("a request, every check but Redis", f"{cpu:,.0f}", f"{wall:,.0f}", f"{cpu / theirs:.1f}x")
        if url is not None:
            wall, cpu = await verified_per_second(verifier.verify)
            table.add_row("a request, with nonce and rate in Redis", f"{cpu:,.0f}", f"{wall:,.0f}", "")
        await redis.aclose()
    Console(width=100).print(table)


if __name__ == "__main__":
    end_in_order()
    asyncio.run(main())
