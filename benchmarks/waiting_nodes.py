"""Measures registered nodes that wait for an invite at one discovery service: capacity and cost.

    python -m benchmarks.waiting_nodes [NODES]

Claim: 10,000 nodes wait at a time, and an invite reaches the last of them within a second.
Real Redis with its append-only file, real signatures, HTTP over loopback as through a proxy that names the callers.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

from benchmarks.ending import end_in_order
from benchmarks.pool_under_load import Line, cpu_seconds, node_keys, redis_server
from discovery.app import build_discovery
from discovery.chain.ledger_cache import FactChanges, FactStore
from discovery.chain.roles import PoolRole, PoolRoles
from discovery.mailbox.store import Mailbox
from discovery.settings import DiscoverySettings
from protocol.http.serving.descriptors import raise_descriptor_limit
from protocol.http.serving.service import serve
from protocol.identifiers import address
from protocol.identity.keys import Key
from protocol.identity.signing import sign_request
from protocol.identity.typed_data import SigningDomain
from protocol.invites import Invite
from protocol.redis.connection import connect_redis
from protocol.runtime.logs import configure_logs
from protocol.wire.invites import SignedInvite
from protocol.wire.nodes import Hardware, Registration, RuntimeKind, Software

SERVICE = Key(b"\x21" * 32)
ORCHESTRATOR = Key(b"\x22" * 32)
POOLS = SigningDomain(31337, address("0x" + "11" * 20))
POOL = 7
AT_ONCE = 6
"""Nodes that register at a time."""

SPREAD_S = 30
"""Seconds within which the nodes begin to poll; then each polls again whenever a poll has ended."""

WATCHED_S = 45
"""Seconds of observation; longer than a poll, so that each node polls again during it."""

REGISTRATION = (
    Registration(
        pool_id=POOL,
        hardware=Hardware(cpu_model="x", cpu_cores=8, architecture="x86_64", memory_bytes=1 << 35, disk_free_bytes=1),
        software=Software(
            worker_version="0.1.0", protocol_version=1, operating_system="Debian", runtimes=(RuntimeKind.DOCKER,)
        ),
    )
    .model_dump_json()
    .encode()
)


class QuietLedger:
    """A ledger with one pool, whose only known role is the orchestrator."""

    async def roles(self, pool_id: int) -> PoolRoles:
        """Returns the orchestrator's role."""
        return {PoolRole.ORCHESTRATOR: frozenset({ORCHESTRATOR.address} if pool_id == POOL else ())}

    async def read(self, facts: FactStore, _mailbox: Mailbox) -> None:
        """Reports that the pool exists."""
        await facts.apply(FactChanges(pools={POOL: True}), as_of_ms=int(time.time() * 1000))

    async def aclose(self) -> None:
        """Does nothing: no connection is open."""


def main(nodes: int = 10_000) -> None:
    """Measures and prints."""
    raise_descriptor_limit()
    with (
        redis_server() as url,
        discovery_process(url) as (port, pid),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(measure(port, pid, node_keys(nodes)))


async def measure(port: int, pid: int, keys: list[Key]) -> None:
    """Registers all nodes, lets them poll for longer than one poll lasts, and then invites the last one."""
    memory, used, begun = resident(pid), cpu_seconds(pid), time.perf_counter()
    opening, answers = asyncio.Semaphore(AT_ONCE), Counter[int]()
    registered, polling, ended = asyncio.Semaphore(0), asyncio.Event(), asyncio.Event()
    invited: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def node(number: int) -> None:
        key = keys[number]
        status = 0
        async with opening:
            line = await Line.to(port)
            while status != 200:
                status, _ = await line.exchange(request(key, number, "PUT", f"/v1/nodes/{key.address}", REGISTRATION))
            line.close()
        registered.release()
        await polling.wait()
        await asyncio.sleep(random.uniform(0, SPREAD_S))
        line, pause = await Line.to(port), 1.0
        while not ended.is_set():
            status, body = await line.exchange(request(key, number, "GET", f"/v1/nodes/{key.address}/invites?wait=30"))
            answers[status] += 1
            if status == 200 and json.loads(body)["invites"]:
                invited.set_result(time.perf_counter())
                break
            pause = 1.0 if status == 200 else min(2 * pause, 60.0)
            if status != 200:  # as workers do
                await asyncio.sleep(random.uniform(pause / 2, pause))
        line.close()

    nodes = [asyncio.create_task(node(number)) for number in range(len(keys))]
    for _ in keys:
        await registered.acquire()
    print(f"\n{len(keys):,} nodes registered in {time.perf_counter() - begun:.1f} s", flush=True)
    spent = cpu_seconds(pid)
    polling.set()
    await asyncio.sleep(SPREAD_S + 5)
    watched, since = cpu_seconds(pid), time.perf_counter()
    waiting = await watch(port)
    share = (cpu_seconds(pid) - watched) / (time.perf_counter() - since)
    print(f"waiting at a time, for {WATCHED_S} s: median {waiting[len(waiting) // 2]:,.0f}, at most {waiting[-1]:,.0f}")
    print(f"the service: {descriptors(pid):,} open files, {(resident(pid) - memory) / len(keys):,.0f} bytes of memory")
    print(f"a node, {share:.0%} of a core while they wait, {spent - used:.1f} s of CPU to register all")
    started = time.perf_counter()
    await invite(port, keys[-1])
    async with asyncio.timeout(10):
        print(f"the last one has its invite after {(await invited - started) * 1000:.0f} ms")
    ended.set()
    print("polls by status of their answer:", dict(answers))
    for each in nodes:
        each.cancel()
    await asyncio.gather(*nodes, return_exceptions=True)


def request(key: Key, number: int, method: str, target: str, body: bytes = b"") -> bytes:
    """Returns a signed request of a node, from an address that it shares with 63 others."""
    stamp = sign_request(key, audience=SERVICE.address, method=method, target=target, body=body, at=datetime.now(UTC))
    ip = f"10.{number >> 14 & 255}.{number >> 6 & 255}.1"
    lines = [f"{method} {target} HTTP/1.1", "Host: d", f"Content-Length: {len(body)}", f"X-Forwarded-For: {ip}"]
    lines += [f"{name}: {value}" for name, value in stamp.headers().items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def invite(port: int, node: Key) -> None:
    """Posts an invite for a node."""
    made = Invite(
        pool_id=POOL, domain_id=1, node=node.address, nonce=1, expiry=int(time.time()) + 600, url="https://p.example"
    )
    signed = SignedInvite.of(made, domain=POOLS, signature=made.sign(ORCHESTRATOR, POOLS))
    target = f"/v1/nodes/{node.address}/invites"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(ORCHESTRATOR, 1 << 20, "POST", target, signed.model_dump_json().encode()))
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    if not head.startswith(b"HTTP/1.1 204"):
        raise SystemExit(f"the invite was refused: {head[:200]!r}")


async def watch(port: int) -> list[float]:
    """Samples the number of waiting nodes until cancelled; ascending."""
    line, seen = await Line.to(port), []
    for _ in range(2 * WATCHED_S):
        seen.append(await gauge(line, "muster_discovery_polls"))
        await asyncio.sleep(0.5)
    line.close()
    return sorted(seen)


async def gauge(line: Line, name: str) -> float:
    """Returns a gauge of the service."""
    _, body = await line.exchange(b"GET /metrics HTTP/1.1\r\nHost: d\r\n\r\n")
    return next(float(row.split()[1]) for row in body.decode().splitlines() if row.startswith(name + " "))


def resident(pid: int) -> int:
    """Returns the resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def descriptors(pid: int) -> int:
    """Returns the number of open files of a process."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


@contextmanager
def discovery_process(redis_url: str) -> Iterator[tuple[int, int]]:
    """Runs a discovery service in a separate process; yields its port and pid."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(redis_url, theirs), daemon=True)
    process.start()
    try:
        if not ours.poll(60):
            raise SystemExit("discovery did not start")
        yield ours.recv(), process.pid or 0
    finally:
        process.terminate()
        process.join(20)


def _serve(redis_url: str, parent: Connection) -> None:
    configure_logs(level="WARNING")
    settings = DiscoverySettings.load(flags={"deployment": Path("unused"), "trusted_proxies": ("127.0.0.1/32",)})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        app = build_discovery(settings, key=SERVICE, pools=POOLS, redis=connect_redis(redis_url), ledger=QuietLedger())
        runner.run(serve(app, on_bound=parent.send))


if __name__ == "__main__":
    end_in_order()
    main(*(int(argument) for argument in sys.argv[1:]))
