"""Sends requests of strangers with new keys and measures whether a member and a validator are served.

    python -m benchmarks.strangers [REQUESTS_PER_SECOND] [SECONDS]

Claim: under 200 requests of strangers per second every request of the member and of the validator is served, with a
p99 latency below 1 s. Real Redis, the embedded chain with 100 ms of added latency like that of an RPC provider, an
orchestrator with its loops, HTTP over loopback.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.ending import end_in_order
from benchmarks.pool_under_load import Line, percentile, redis_server
from ledger.client import Ledger
from ledger.devchain import ChainKind, start_chain
from protocol.identity.keys import Key
from protocol.identity.signing import sign_request
from protocol.invites import Invite, Join
from tests.kit.discovery_pool import UNIT, PoolOnChain, make_pool

POOL = 1
ORCHESTRATOR = 4
"""Index of the orchestrator's account on the chain, as in `PoolOnChain`."""
OTHER = Key.generate().address
MEMBER_EVERY_S = 0.25
VALIDATOR_EVERY_S = 0.2
CLAIMED_P99_MS = 1000
LONGEST_S = 30.0
CHAIN_LATENCY_S = 0.1

Request = tuple[str, str, bytes]
"""Method, target, body."""


@dataclass
class Seen:
    """Answers to one kind of caller."""

    latencies_ms: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    """Codes of answers that ask for a retry, and of requests without an answer."""


class Caller:
    """Sends signed requests at a steady rate, without waiting for earlier answers.

    Args:
        port: Port of the orchestrator.
        audience: The address that requests are signed for.
        seen: Counts the answers.
    """

    def __init__(self, port: int, audience: Key, seen: Seen) -> None:
        self._port = port
        self._audience = audience
        self._seen = seen
        self._idle: list[Line] = []
        self.in_flight = self.most_in_flight = 0

    async def send(self, key: Key, request: Request) -> bytes:
        """Sends one request, counts its answer, and returns its body; status 0 means no answer within `LONGEST_S`."""
        body = b""
        started = time.perf_counter()
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        line = self._idle.pop() if self._idle else await Line.to(self._port)
        try:
            async with asyncio.timeout(LONGEST_S):
                status, body = await line.exchange(self._bytes(key, request))
            self._idle.append(line)
        except TimeoutError:
            status = 0
            line.close()
        finally:
            self.in_flight -= 1
        self._seen.statuses[status] += 1
        if status in {0, 429, 503}:
            self._seen.refusals[json.loads(body or b'{"code": "no-answer"}')["code"]] += 1
        self._seen.latencies_ms.append((time.perf_counter() - started) * 1000)
        return body

    async def send_steadily(
        self, key: Callable[[], Key], request: Callable[[], Request], *, every: float, until: float
    ) -> None:
        """Sends requests until a moment, then waits for the last answers."""
        async with asyncio.TaskGroup() as group:
            due = time.perf_counter()
            while due < until:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                group.create_task(self.send(key(), request()))
                due += every

    def close(self) -> None:
        """Closes the connections."""
        for line in self._idle:
            line.close()

    def _bytes(self, key: Key, request: Request) -> bytes:
        method, target, body = request
        stamp = sign_request(
            key, audience=self._audience.address, method=method, target=target, body=body, at=datetime.now(UTC)
        )
        lines = [f"{method} {target} HTTP/1.1", "Host: pool", f"Content-Length: {len(body)}"]
        lines += ["Content-Type: application/json", *(f"{name}: {value}" for name, value in stamp.headers().items())]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def measure(rate: float, seconds: float) -> bool:
    """Measures and prints; returns whether the claim holds."""
    node, seen = Key.generate(), {name: Seen() for name in ("strangers", "member", "validator")}
    with redis_server() as redis_url, tempfile.TemporaryDirectory(prefix="muster-bench-") as home:
        async with start_chain(ChainKind.EMBEDDED) as chain:
            pool = await make_pool(chain)
            await join(pool, node)
            async with far_away(chain.url) as url, orchestrator(pool, url, redis_url, Path(home)) as port:
                callers = {name: Caller(port, pool.orchestrator, each) for name, each in seen.items()}
                await until_healthy(callers["member"], node)
                seen["member"].statuses.clear()
                seen["member"].latencies_ms.clear()
                until = time.perf_counter() + seconds
                await asyncio.gather(
                    callers["strangers"].send_steadily(Key.generate, by_stranger, every=1 / rate, until=until),
                    callers["member"].send_steadily(lambda: node, upload, every=MEMBER_EVERY_S, until=until),
                    callers["validator"].send_steadily(
                        lambda: pool.validator, rollouts, every=VALIDATOR_EVERY_S, until=until
                    ),
                )
                for caller in callers.values():
                    caller.close()
    print(f"\n{rate:.0f} requests of strangers per second for {seconds:.0f} s, a key of its own for each")
    print(f"most requests of strangers in flight: {callers['strangers'].most_in_flight}")
    print(f"{'':>10} {'sent':>6} {'p50 ms':>8} {'p99 ms':>8} {'most ms':>8}  answers")
    for name, each in seen.items():
        ordered = each.latencies_ms
        answers = ", ".join(f"{status}: {count}" for status, count in sorted(each.statuses.items()))
        print(
            f"{name:>10} {len(ordered):>6} {percentile(ordered, 0.5):>8.0f} {percentile(ordered, 0.99):>8.0f} "
            f"{max(ordered):>8.0f}  {answers}" + (f" ({dict(each.refusals)})" if each.refusals else "")
        )
    held = all(
        set(each.statuses) == {200} and percentile(each.latencies_ms, 0.99) < CLAIMED_P99_MS
        for name, each in seen.items()
        if name != "strangers"
    )
    print(f"every request of member and validator served, p99 < {CLAIMED_P99_MS} ms: {'yes' if held else 'NO'}")
    return held


async def join(pool: PoolOnChain, node: Key) -> None:
    """Makes a node a member on the ledger."""
    await pool.register(node, stake=10 * UNIT)
    async with pool.ledger(pool.provider) as ledger:
        invite = Invite(
            pool_id=POOL,
            domain_id=(await ledger.pools.get(POOL)).domain_id,
            node=node.address,
            nonce=secrets.randbits(64),
            expiry=int((await ledger.now() + timedelta(hours=1)).timestamp()),
            url="http://127.0.0.1:1",
        )
        await redeem(ledger, invite, pool.orchestrator, node)


async def redeem(ledger: Ledger, invite: Invite, orchestrator_key: Key, node: Key) -> None:
    """Sends a node's signed acceptance of an invite to the ledger."""
    domain = ledger.pools.domain
    await ledger.pools.join(
        invite,
        orchestrator_signature=invite.sign(orchestrator_key, domain),
        node_signature=Join(invite_hash=invite.hash).sign(node, domain),
    )


@asynccontextmanager
async def far_away(url: str) -> AsyncIterator[str]:
    """Runs a proxy that delays the chain's answers by `CHAIN_LATENCY_S`; yields its URL."""
    where = urlsplit(url)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                asyncio.get_running_loop().call_later(delay, writer.write, data)
        asyncio.get_running_loop().call_later(delay, writer.close)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ahead, back = await asyncio.open_connection(where.hostname, where.port)
        await asyncio.gather(pump(reader, back, 0.0), pump(ahead, writer, CHAIN_LATENCY_S))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@asynccontextmanager
async def orchestrator(pool: PoolOnChain, chain_url: str, redis_url: str, home: Path) -> AsyncIterator[int]:
    """Runs an orchestrator of the pool in a separate process; yields its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    deployment = home / "deployment.json"
    pool.deployment.save(deployment)
    settings = {
        "public_url": f"http://127.0.0.1:{port}",
        "pool_id": POOL,
        "redis_url": redis_url,
        "chain_url": chain_url,
        "deployment": str(deployment),
        "run": "bench",
        "storage_directory": str(home / "objects"),
        "storage_reserve_bytes": 0,
        "uploads_open": 100_000,
        "uploads_per_hour": 100_000,
        "target_rate": 5000,
    }
    lines = ["[orchestrator]", *(f"{name} = {json.dumps(value)}" for name, value in settings.items())]
    config = home / "muster.toml"
    config.write_text("\n".join(lines))
    command = [sys.executable, "-m", "cli", "orchestrator", "serve", "--config", str(config), "--port", str(port)]
    # The key is passed as to a real service; the accounts of the development chain are public.
    environment = {**os.environ, "MUSTER_ORCHESTRATOR_KEY": pool.chain.accounts[ORCHESTRATOR].key}
    with (home / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, "--log-level", "ERROR", env=environment, stdout=log, stderr=log
        )
        try:
            yield port
        finally:
            process.terminate()
            await process.wait()


async def until_healthy(caller: Caller, node: Key) -> None:
    """Waits until the orchestrator knows the member; sends one heartbeat per second."""
    beat = json.dumps({"pool_id": POOL, "worker_version": "0.1.0"}).encode()
    for _ in range(60):
        await asyncio.sleep(1)
        try:
            answer = await caller.send(node, ("POST", "/v1/heartbeat", beat))
        except OSError:
            continue  # not listening yet
        if b'"state":"healthy"' in answer:
            return
    raise SystemExit("the orchestrator did not come up")


def by_stranger() -> Request:
    """Returns one of the requests that any holder of a key may send."""
    number = secrets.randbelow(4)
    if number == 0:
        return "POST", "/v1/heartbeat", json.dumps({"pool_id": POOL, "worker_version": "0.1.0"}).encode()
    if number == 1:
        return rollouts()
    if number == 2:
        return upload()
    return "GET", f"/v1/objects?key={POOL}/{OTHER}/{'11' * 32}", b""


def upload() -> Request:
    """Requests an upload ticket."""
    digest = "0x" + secrets.token_hex(32)
    return "POST", "/v1/uploads", json.dumps({"sha256": digest, "size": 1000, "kind": "file"}).encode()


def rollouts() -> Request:
    """Lists rollouts, as validators do."""
    return "GET", "/v1/run/rollouts?status=all", b""


def main(rate: float = 200, seconds: float = 15) -> None:
    """Measures and prints."""
    if not asyncio.run(measure(rate, seconds)):
        raise SystemExit(1)


if __name__ == "__main__":
    end_in_order()
    main(*(float(argument) for argument in sys.argv[1:]))
