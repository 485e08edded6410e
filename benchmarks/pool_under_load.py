"""Shared parts of the orchestrator's benchmarks: Redis, an orchestrator process, signing nodes and raw HTTP clients.

With two or more cores, server and load are pinned to different ones, so that one core of orchestrator is measured.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import redis as sync_redis
import uvloop

from ledger.artifacts import Contract
from ledger.client.pools import Terms
from ledger.deployment import Deployment
from orchestrator.app import build_orchestrator
from orchestrator.chain.interface import (
    Changes,
    ConsentStatus,
    NodeLedgerStatus,
    PoolLedgerStatus,
    PoolMoney,
    ProviderStatus,
)
from orchestrator.settings import OrchestratorSettings
from protocol.http.serving.service import serve
from protocol.identifiers import ZERO_ADDRESS, Address
from protocol.identity.keys import Key
from protocol.identity.secp256k1 import PrivateKey
from protocol.identity.signing import sign_request
from protocol.identity.typed_data import SigningDomain
from protocol.redis.connection import connect_redis
from protocol.runtime.logs import configure_logs
from protocol.wire.tasks import TaskSpec

POOL = 1
PREFIX = f"muster:{{pool-{POOL}}}:"
CONNECTIONS = 32
"""Connections over which heartbeats are sent."""
SERVER_KEY = Key.from_hex("11" * 32)
SPEC = {"name": "rollouts", "image": "python:3.11", "command": ["python", "-m", "task"]}


TERMS = Terms(
    price_per_unit=0,
    penalty_per_unit=0,
    stake_per_capacity=0,
    audit_floor_bps=1_000,
    look_bps=0,
    judge_period=timedelta(hours=1),
    challenge_period=timedelta(hours=1),
    dispute_period=timedelta(hours=1),
    notice_period=timedelta(hours=4),
    max_nodes=10**6,
    min_capacity=0,
    verdict_fee=0,
)


class QuietLedger:
    """A ledger without events on which every node is a member."""

    domain = SigningDomain(1, ZERO_ADDRESS)
    deployment = Deployment(chain_id=1, block=0, contracts=dict.fromkeys(Contract, ZERO_ADDRESS))
    registry_domain = domain

    async def free_stake(self, provider: Address) -> int:  # noqa: ARG002
        """Returns no stake."""
        return 0

    async def consent_status(self, node: Address, provider: Address) -> ConsentStatus:  # noqa: ARG002
        """Returns the status of a node that is registered for the provider."""
        return ConsentStatus(nonce=1, provider=provider, banned=False, stake_per_capacity=0, min_capacity=0)

    async def pool(self) -> PoolLedgerStatus:
        """Returns an active pool."""
        return PoolLedgerStatus(
            domain_id=1,
            active=True,
            owner=ZERO_ADDRESS,
            managers=frozenset(),
            orchestrator=SERVER_KEY.address,
            publishers=frozenset(),
            validators=frozenset(),
            min_capacity=0,
            max_nodes=10**6,
            members=0,
            terms=TERMS,
        )

    async def node_status(self, node: Address) -> NodeLedgerStatus:
        """Returns the status of a member."""
        return NodeLedgerStatus(provider=node, member=True, banned=False, capacity=1, free_stake=0, needed_stake=0)

    async def provider_status(self, provider: Address) -> ProviderStatus:  # noqa: ARG002
        """Returns a provider without stake."""
        none: dict[str, int] = dict.fromkeys(("active", "membership_lock", "work_lock", "unbonding", "accrued"), 0)
        return ProviderStatus(unbonds=(), unbonding_period=timedelta(days=14), **none)

    async def money(self, accounts: Sequence[Address]) -> PoolMoney:
        """Returns a pool without escrow."""
        none: dict[str, int] = dict.fromkeys(("escrow", "reserved", "withdrawal", "accrued", "paid"), 0)
        coins = (0,) * len(accounts)
        return PoolMoney(withdrawal_ready=None, coins=coins, head_time=datetime.fromtimestamp(0, UTC), **none)

    async def remove(self, nodes: Sequence[Address], *, reason: str) -> None:
        """Does nothing."""

    async def ban(self, node: Address, *, reason: str) -> None:
        """Does nothing."""

    async def unban(self, node: Address) -> None:
        """Does nothing."""

    async def changes(self) -> Changes:
        """Returns no changes."""

        async def commit() -> None:
            return

        return Changes((), commit)

    def forget_position(self) -> None:
        """Does nothing."""

    async def aclose(self) -> None:
        """Does nothing."""


@contextmanager
def redis_server() -> Iterator[str]:
    """Runs a redis-server on a unix socket, with an append-only file as in production."""
    binary = os.environ.get("MUSTER_REDIS_SERVER") or shutil.which("redis-server")
    if binary is None:
        raise SystemExit("no redis-server: install it, or name one in MUSTER_REDIS_SERVER")
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as home:
        path = f"{home}/s"
        command = [binary, "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "yes", "--dir", home]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                while not Path(path).exists() and process.poll() is None:
                    time.sleep(0.02)
                _pin(process.pid, last=True)
                yield f"unix://{path}"
            finally:
                process.terminate()


@contextmanager
def orchestrator_process(redis_url: str, **settings: object) -> Iterator[tuple[int, int]]:
    """Runs an orchestrator process pinned to the first core; yields its port and pid."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_serve, args=(redis_url, settings, theirs), daemon=True)
    process.start()
    try:
        if not ours.poll(30):
            raise SystemExit("the orchestrator did not start")
        yield ours.recv(), process.pid or 0
    finally:
        process.terminate()
        process.join(20)


def _serve(redis_url: str, changes: dict[str, object], parent: Connection) -> None:
    _pin(0, last=False)
    configure_logs(level="WARNING")
    with (
        tempfile.TemporaryDirectory(prefix="muster-bench-") as objects,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        settings = bench_settings(storage_directory=objects, **changes)
        app = build_orchestrator(settings, redis=connect_redis(redis_url), ledger=QuietLedger(), key=SERVER_KEY)
        runner.run(serve(app, on_bound=parent.send))


def bench_settings(**changes: object) -> OrchestratorSettings:
    """Returns settings without limits other than the work itself."""
    return OrchestratorSettings.model_validate(
        {
            "public_url": "http://127.0.0.1:1",
            "pool_id": POOL,
            "deployment": "unused",
            "node_rate_per_s": 1000,
            "node_burst": 1000,
            "ip_rate_per_s": 1_000_000,
            "ip_burst": 1_000_000,
            "ledger_every_s": 60,
            **changes,
        }
    )


def node_keys(count: int) -> list[Key]:
    """Returns the keys of `count` nodes, the same each time."""
    return [Key(PrivateKey.from_int(1000 + number).secret) for number in range(count)]


def seed(redis_url: str, addresses: Sequence[Address]) -> None:
    """Writes members that run a task and have just sent a heartbeat."""
    now = int(time.time() * 1000)
    task = "a" * 32
    with sync_redis.from_url(redis_url) as client:
        client.flushall()
        full = OrchestratorSpec.full()
        client.hset(
            f"{PREFIX}task:{task}",
            mapping={
                "name": "rollouts",
                "spec": full,
                "generation": 1,
                "desired": "running",
                "state": "running",
                "reason": "",
                "created": now,
                "sealed": "",
                "secret_names": "[]",
                "rev": 1,
            },
        )
        client.zadd(f"{PREFIX}tasks", {task: now})
        client.sadd(f"{PREFIX}tasks:open", task)
        for start in range(0, len(addresses), 1000):
            with client.pipeline(transaction=False) as pipe:
                for address in addresses[start : start + 1000]:
                    name = address[2:34].lower()
                    head = f'"id":"{name}","task_id":"{task}","generation":1,"group":null,"restart_nonce":0'
                    fields = {
                        "state": "healthy",
                        "rev": 1,
                        "since": now,
                        "seen": now,
                        "interval": 10_000,
                        "member": 1,
                        "reason": "it spoke",
                        "aid": name,
                        "agen": 1,
                        "ahead": head,
                        "aref": f"{task}:1",
                        "astate": "running",
                        "hardware": OrchestratorSpec.HARDWARE,
                    }
                    pipe.hset(f"{PREFIX}node:{address}", mapping=fields)
                    assignment = {"id": name, "task": task, "name": "rollouts", "node": address, "generation": 1}
                    pipe.hset(f"{PREFIX}assignment:{name}", mapping={**assignment, "state": "running", "assigned": now})
                    pipe.zadd(f"{PREFIX}nodes", {address: 0})
                    pipe.zadd(f"{PREFIX}deadlines", {address: now + 600_000})
                    pipe.sadd(f"{PREFIX}placed:{task}", address)
                pipe.execute()


class OrchestratorSpec:
    """The task and the hardware of the simulated nodes."""

    HARDWARE = json.dumps(
        {
            "cpu_model": "x",
            "cpu_cores": 16,
            "architecture": "x86_64",
            "memory_bytes": 64 << 30,
            "disk_free_bytes": 1 << 40,
            "gpus": [],
            "gpu_driver": None,
        }
    )

    @staticmethod
    def full() -> str:
        """Returns the task's spec with all defaults, as the orchestrator stores it."""
        return TaskSpec.model_validate(SPEC).model_dump_json()


def heartbeat_request(key: Key, *, at: datetime | None = None) -> bytes:
    """Returns a complete signed HTTP request of a heartbeat that reports a running task and ten gauges."""
    name = key.address[2:34].lower()
    body = json.dumps(
        {
            "pool_id": POOL,
            "worker_version": "0.1.0",
            "assignment": {"id": name, "generation": 1, "state": "running", "started_at_ms": 1, "restarts": 0},
            "metrics": {f"gauge.{number}": number * 1.5 for number in range(10)},
        }
    ).encode()
    stamp = sign_request(
        key,
        audience=SERVER_KEY.address,
        method="POST",
        target="/v1/heartbeat",
        body=body,
        at=at or datetime.now(UTC),
    )
    lines = ["POST /v1/heartbeat HTTP/1.1", "Host: pool", f"Content-Length: {len(body)}"]
    lines += ["Content-Type: application/json", *(f"{name}: {value}" for name, value in stamp.headers().items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@dataclass(frozen=True, slots=True)
class Load:
    """The answers that a client process counted."""

    sent: int
    good: int
    seconds: float
    latencies_ms: list[float]


class Line(asyncio.Protocol):
    """A keep-alive connection with one request at a time."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def to(cls, port: int) -> Line:
        """Connects to a port of this machine."""
        _, line = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return line

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Stores the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport is not a subclass of asyncio's
        raw = transport.get_extra_info("socket")
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        """Completes the exchange when the whole answer has arrived."""
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        if len(rest) >= length and self._answer is not None and not self._answer.done():
            self._buffer = b""
            self._answer.set_result((int(head[9:12]), rest))

    def connection_lost(self, _error: Exception | None) -> None:
        """Ends the exchange without an answer."""
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((0, b""))

    async def exchange(self, request: bytes) -> tuple[int, bytes]:
        """Returns status and body of the answer; status 0 if the connection broke."""
        if self._transport is None:
            return 0, b""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Closes the connection."""
        if self._transport is not None:
            self._transport.close()


async def closed_loop(port: int, requests: Sequence[bytes], *, connections: int) -> Load:
    """Sends all requests over several connections, each as fast as answers arrive."""
    lines = [await Line.to(port) for _ in range(connections)]
    left = iter(requests)
    latencies: list[float] = []
    good = 0

    async def use(line: Line) -> None:
        nonlocal good
        for request in left:
            started = time.perf_counter()
            status, _ = await line.exchange(request)
            good += status == 200
            latencies.append((time.perf_counter() - started) * 1000)

    begun = time.perf_counter()
    await asyncio.gather(*(use(line) for line in lines))
    return Load(len(requests), good, time.perf_counter() - begun, latencies)


@dataclass(frozen=True, slots=True)
class Beats:
    """Heartbeats that an orchestrator answered, and the CPU seconds of its process for each."""

    load: Load
    cpu_s: float


@contextmanager
def warm_orchestrator(redis_url: str, keys: Sequence[Key]) -> Iterator[tuple[int, int]]:
    """Runs an orchestrator with these nodes, which have all sent a heartbeat; yields its port and pid.

    Caching the data of a signer costs time only at its first request.
    """
    seed(redis_url, [key.address for key in keys])
    with orchestrator_process(redis_url) as (port, pid):
        pin_load()
        send_heartbeats(port, pid, keys, max(2000, len(keys)))
        yield port, pid


def send_heartbeats(port: int, pid: int, keys: Sequence[Key], number: int) -> Beats:
    """Sends heartbeats, which are signed beforehand, as fast as answers arrive."""
    requests = [heartbeat_request(keys[index % len(keys)]) for index in range(number)]
    before = cpu_seconds(pid)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        load = runner.run(closed_loop(port, requests, connections=CONNECTIONS))
    return Beats(load, (cpu_seconds(pid) - before) / load.sent)


def percentile(values: Sequence[float], share: float) -> float:
    """Returns the value below which `share` of all values are."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def cpu_seconds(pid: int) -> float:
    """Returns the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _pin(pid: int, *, last: bool) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(pid, {cores[-1] if last else cores[0]})


def pin_load() -> None:
    """Keeps this process off the first core, which the orchestrator uses."""
    _pin(0, last=True)
