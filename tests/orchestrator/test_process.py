"""The orchestrator in operation: processes, Redis, discovery, a real chain, and kill -9."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
import redis as sync_redis
from redis.asyncio import Redis

from ledger.client import Ledger
from ledger.devchain import free_port, start_chain
from ledger.rpc.connection import connect
from ledger.transactions.pending import TransactionCall
from ledger.transactions.sender import TransactionSender
from orchestrator.chain.pool import LedgerPool
from protocol.clients.discovery import DiscoveryClient
from protocol.clients.node import NodeClient
from protocol.clients.orchestrator import OrchestratorClient
from protocol.errors import MusterError
from protocol.http.tokens import hash_token, new_token
from protocol.identity.keys import Key
from protocol.runtime.clock import SystemClock
from protocol.wire.assignments import AssignmentState
from protocol.wire.heartbeat import Heartbeat, HeartbeatAnswer
from protocol.wire.logs import LogBatch, LogLine
from protocol.wire.nodes import Hardware, NodeState, Registration, RuntimeKind, Software
from protocol.wire.tasks import NewTask, TaskSpec
from tests.kit.chain import quickest_kind
from tests.kit.discovery_pool import UNIT, PoolOnChain, make_pool
from tests.kit.http_server import get_status

POOL = 1
DISCOVERY = Key.generate()
TOKEN = new_token()
PATIENCE_S = 90
INTERVAL_S = 0.5

REGISTRATION = Registration(
    pool_id=POOL,
    hardware=Hardware(
        cpu_model="A CPU", cpu_cores=8, architecture="x86_64", memory_bytes=32 << 30, disk_free_bytes=1 << 40
    ),
    software=Software(
        worker_version="0.1.0", protocol_version=1, operating_system="Debian 12", runtimes=(RuntimeKind.DOCKER,)
    ),
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chain_pool() -> AsyncIterator[PoolOnChain]:
    async with start_chain(quickest_kind()) as chain:
        yield await make_pool(chain)


@dataclass
class Network:
    """Starts and kills the services of one pool, each in a process of its own."""

    home: Path
    pool: PoolOnChain
    stack: ExitStack
    discovery_port: int = field(default_factory=free_port)

    def start_redis(self) -> subprocess.Popen[bytes]:
        binary = os.environ.get("MUSTER_REDIS_SERVER") or shutil.which("redis-server") or "redis-server"
        command = [binary, "--port", "0", "--unixsocket", str(self.home / "s"), "--dir", str(self.home)]
        process = self._run([*command, "--appendonly", "yes", "--appendfsync", "always"], "redis.log", {})
        self._wait(process, self._redis_answers)
        return process

    def start_discovery(self) -> subprocess.Popen[bytes]:
        environment = {
            "MUSTER_DISCOVERY_KEY": DISCOVERY.reveal().hex(),
            **self._shared("DISCOVERY"),
            "MUSTER_DISCOVERY_POLL_SECONDS": "0.2",
        }
        command = [sys.executable, "-m", "cli", "discovery", "serve", "--port", str(self.discovery_port)]
        return self._serve(command, self.discovery_port, environment)

    def start(self, port: int, *, public: int | None = None) -> subprocess.Popen[bytes]:
        """Starts an orchestrator whose invites name the port `public`."""
        settings = {
            "PUBLIC_URL": f"http://127.0.0.1:{public or port}",
            "POOL_ID": POOL,
            "DISCOVERY": json.dumps([f"http://127.0.0.1:{self.discovery_port}#{DISCOVERY.address}"]),
            "TOKENS": json.dumps([{"name": "boss", "scope": "admin", "hash": hash_token(TOKEN)}]),
            "SECRETS_KEY_FILE": self.home / "secrets.key",
            "STORAGE_DIRECTORY": self.home / "objects",
            "SHORTEST_INTERVAL_S": INTERVAL_S,
            "DISCOVERY_EVERY_S": 0.3,
            "LEDGER_EVERY_S": 0.3,
            "REMOVALS_EVERY_S": 0.3,
            "SCHEDULE_EVERY_S": 0.1,
            "LIVENESS_EVERY_S": 0.1,
            "LEASE_S": 1,
            "NODE_RATE_PER_S": 50,
        }
        environment = {f"MUSTER_ORCHESTRATOR_{name}": str(value) for name, value in settings.items()}
        environment |= self._shared("ORCHESTRATOR")
        environment["MUSTER_ORCHESTRATOR_KEY"] = self.pool.orchestrator.reveal().hex()
        environment["MUSTER_MANAGER_KEY"] = self.pool.manager.reveal().hex()
        command = [sys.executable, "-m", "cli", "orchestrator", "serve", "--port", str(port)]
        return self._serve(command, port, environment)

    def owner(self, port: int) -> OrchestratorClient:
        return OrchestratorClient(f"http://127.0.0.1:{port}", token=TOKEN)

    def node(self, key: Key, port: int) -> NodeClient:
        return NodeClient(f"http://127.0.0.1:{port}#{self.pool.orchestrator.address}", key=key)

    async def join(self, key: Key) -> str:
        """Joins as a worker does; returns the orchestrator's URL from the invite."""
        where = f"http://127.0.0.1:{self.discovery_port}#{DISCOVERY.address}"
        async with DiscoveryClient(where, key=key) as discovery:
            await discovery.register(REGISTRATION)
            invites = await discovery.invites(wait=timedelta(seconds=20))
            assert invites, "no invite came"
            invite = invites[0]
            assert invite.signer() == self.pool.orchestrator.address
            async with self.pool.ledger(key) as ledger:
                await ledger.pools.join(invite.invite, orchestrator_signature=invite.raw_signature)
            return invite.url

    async def fund(self, key: Key) -> None:
        """Sends gas to a node that joins by itself."""
        web3 = await connect(self.pool.chain.url, expected_chain_id=self.pool.chain.chain_id)
        async with TransactionSender(web3, self.pool.governor.account(), chain_id=self.pool.chain.chain_id) as sender:
            await sender.send(TransactionCall(to=key.address, value=UNIT), deadline=timedelta(seconds=30))
        await web3.provider.disconnect()

    def _shared(self, service: str) -> dict[str, str]:
        deployment = self.home / "deployment.json"
        self.pool.deployment.save(deployment)
        return {
            f"MUSTER_{service}_DEPLOYMENT": str(deployment),
            f"MUSTER_{service}_CHAIN_URL": self.pool.chain.url,
            f"MUSTER_{service}_REDIS_URL": f"unix://{self.home / 's'}",
        }

    def _serve(self, command: list[str], port: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        process = self._run(command, f"{port}.log", environment)
        self._wait(process, lambda: get_status(port, "/healthz") == 200)
        return process

    def _run(self, command: list[str], log: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        output = self.stack.enter_context((self.home / log).open("ab"))
        process = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | environment)
        self.stack.callback(_end, process)
        return process

    def _wait(self, process: subprocess.Popen[bytes], answers: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until and process.poll() is None:
            if answers():
                return
            time.sleep(0.05)
        logs = "\n".join(log.read_text()[-3000:] for log in self.home.glob("*.log"))
        pytest.fail(f"it did not start: {logs}")

    def _redis_answers(self) -> bool:
        try:
            with sync_redis.from_url(f"unix://{self.home / 's'}") as client:
                return bool(client.ping())
        except sync_redis.RedisError:
            return False


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait(60)


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(60)


async def wait_until(condition: Callable[[], Awaitable[bool]], *, within: float = PATIENCE_S) -> None:
    """Waits until a condition holds, in real time: the services are other processes."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        if await condition():
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"the condition did not hold within {within} s")


async def beat(node: NodeClient, said: HeartbeatAnswer | None = None) -> HeartbeatAnswer:
    """Sends one heartbeat that reports the last assignment as running."""
    report = None
    if said is not None and said.assignment is not None:
        report = {"id": said.assignment.id, "generation": said.assignment.generation, "state": "running"}
    body = {"pool_id": POOL, "worker_version": "0.1.0", "assignment": report}
    return await node.heartbeat(Heartbeat.model_validate(body))


@asynccontextmanager
async def beating(node: NodeClient, said: HeartbeatAnswer) -> AsyncIterator[None]:
    """Keeps a node sending heartbeats in the background."""

    async def go_on() -> None:
        while True:
            with suppress(MusterError):
                await beat(node, said)
            await asyncio.sleep(INTERVAL_S / 2)

    task = asyncio.create_task(go_on())
    try:
        yield
    finally:
        task.cancel()


@pytest.fixture
def network(tmp_path: Path, chain_pool: PoolOnChain, redis_server: str) -> Iterator[Network]:
    with ExitStack() as stack:
        made = Network(tmp_path, chain_pool, stack)
        yield made


async def test_a_stranger_becomes_a_worker_with_a_task_through_kill_9_of_each_service(network: Network) -> None:
    pool, port, other = network.pool, free_port(), free_port()
    key = Key.generate()
    await pool.register(key, stake=10 * UNIT)
    await network.fund(key)
    redis = network.start_redis()
    network.start_discovery()
    first = network.start(port)

    # A stranger is invited, joins on the ledger, sends heartbeats, and gets the task.
    assert await network.join(key) == f"http://127.0.0.1:{port}"
    async with network.node(key, port) as node, network.owner(port) as owner:
        said = await beat(node)
        assert said.state is NodeState.HEALTHY
        task = await owner.create_task(NewTask(spec=TaskSpec(name="hello", image="python:3.11"), secrets={"A": "b"}))

        async def has_task() -> bool:
            nonlocal said
            said = await beat(node, said)
            return said.assignment is not None

        await wait_until(has_task)
        assert said.assignment is not None
        given = said.assignment
        assert given.task_id == task.id
        await beat(node, said)

        async def runs() -> bool:
            seen = (await owner.node(key.address)).assignment
            return seen is not None and seen.state is AssignmentState.RUNNING

        await wait_until(runs)

        # A client that follows the log receives lines as the node pushes them.
        async def asked() -> bool:
            return any(command.text == given.id for command in (await beat(node, said)).commands)

        async def pushed() -> None:
            await wait_until(asked)
            line = LogLine(sequence=0, time_ms=1, stream="stdout", text="hello")
            await node.push_logs(LogBatch(assignment_id=given.id, lines=(line,)))

        pushing = asyncio.create_task(pushed())
        async with asyncio.timeout(PATIENCE_S):
            async for line in owner.follow_logs(key.address):
                assert line.text == "hello"
                break
        await pushing

        # kill -9 of the orchestrator: same assignment and generation, healthy after the first heartbeat.
        kill(first)
        first = network.start(port)
        said = await beat(node, said)
        assert said.state is NodeState.HEALTHY
        assert said.assignment is not None
        assert (said.assignment.id, said.assignment.generation) == (given.id, given.generation)
        assert said.assignment.secrets["A"].get_secret_value() == "b"

        # kill -9 of Redis: errors while it is down, and afterwards the same state.
        kill(redis)
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
            answer = await http.get(f"http://127.0.0.1:{port}/v1/nodes", timeout=60)
        assert (answer.status_code, answer.json()["code"]) == (503, "store-unavailable")
        network.start_redis()
        said = await beat(node, said)
        assert said.state is NodeState.HEALTHY
        assert said.assignment is not None
        assert (said.assignment.id, said.assignment.generation) == (given.id, given.generation)

    # A second orchestrator takes over the first one's loops when that is stopped.
    async with network.node(key, port) as node:
        async with beating(node, said):
            await asyncio.to_thread(network.start, other, public=port)
        first.send_signal(signal.SIGTERM)
    async with network.node(key, other) as node, beating(node, said):
        assert await asyncio.to_thread(first.wait, 60) == 0
    async with network.node(key, other) as node, network.owner(other) as owner:
        said = await beat(node, said)
        assert said.assignment is not None
        assert said.assignment.id == given.id

        # The node vanishes: dead on time, removed from the ledger, and invited again on its return.
        async def is_dead() -> bool:
            return (await owner.node(key.address)).state is NodeState.DEAD

        silent_since = time.monotonic()
        await wait_until(is_dead)
        assert time.monotonic() - silent_since < 120 * INTERVAL_S

        async def left_the_ledger() -> bool:
            async with pool.ledger(pool.owner) as ledger:
                return await ledger.pools.membership(POOL, key.address) is None

        await wait_until(left_the_ledger)
        await network.join(key)

        async def is_back() -> bool:
            return (await beat(node)).state is NodeState.HEALTHY

        await wait_until(is_back)

        # The manager bans it on the ledger, and the ban persists.
        assert (await owner.ban(key.address, reason="forged")).state is NodeState.BANNED
        assert (await beat(node)).state is NodeState.BANNED
        async with pool.ledger(pool.owner) as ledger:
            assert await ledger.pools.is_banned(POOL, key.address)
        events = [entry.event for entry in await owner.history(key.address)]
        assert events[0] == "banned"
        assert {"invite-posted", "joined", "heartbeat", "missed", "silent", "removed"} <= set(events)


async def test_heartbeats_continue_while_the_chain_is_down_and_events_are_read_afterwards(network: Network) -> None:
    pool, port = network.pool, free_port()
    key = Key.generate()
    await pool.register(key, stake=10 * UNIT)
    await network.fund(key)
    network.start_redis()
    network.start_discovery()
    network.start(port)
    await network.join(key)
    async with network.node(key, port) as node:
        said = await beat(node)
        os.kill(pool.chain.pid, signal.SIGSTOP)
        try:
            for _ in range(10):
                started = time.monotonic()
                said = await beat(node, said)
                assert said.state is NodeState.HEALTHY
                assert time.monotonic() - started < 8  # and not the 10 s time-out of the chain
                await asyncio.sleep(INTERVAL_S)
            async with httpx.AsyncClient() as http:
                ready = await http.get(f"http://127.0.0.1:{port}/readyz", timeout=60)
            assert ready.status_code == 200, ready.text
        finally:
            os.kill(pool.chain.pid, signal.SIGCONT)
        async with pool.ledger(key) as ledger:
            await ledger.pools.leave(POOL, key.address)

        async def has_left() -> bool:
            try:
                return (await beat(node, said)).state is NodeState.DISCOVERED
            except MusterError:
                return False

        await wait_until(has_left)


@asynccontextmanager
async def ledger_pool(chain_pool: PoolOnChain, redis: Redis) -> AsyncIterator[LedgerPool]:
    ledger = LedgerPool(
        chain_pool.chain.url,
        chain_pool.deployment,
        pool_id=POOL,
        key=chain_pool.orchestrator,
        manager=chain_pool.manager,
        redis=redis,
        confirmations=0,
        clock=SystemClock(),
    )
    yield ledger
    await ledger.aclose()


async def test_repeating_a_ban_succeeds(chain_pool: PoolOnChain, redis: Redis) -> None:
    node = Key.generate().address
    async with ledger_pool(chain_pool, redis) as ledger:
        for _ in range(2):
            await ledger.ban(node, reason="forged")
            assert (await ledger.node_status(node)).banned
        for _ in range(2):
            await ledger.unban(node)
            assert not (await ledger.node_status(node)).banned


async def test_nodes_are_looked_up_over_a_separate_connection(
    chain_pool: PoolOnChain, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ledger_pool(chain_pool, redis) as ledger:
        own, for_nodes = await ledger._connected(), await ledger._connected_for_nodes()
        reads: tuple[tuple[Ledger, Callable[[], Awaitable[object]]], ...] = (
            (own, lambda: ledger.node_status(Key.generate().address)),
            (for_nodes, ledger.pool),
            (for_nodes, ledger.changes),
        )
        for broken, read in reads:
            with monkeypatch.context() as patched:
                for part in ("web3", "pools", "registry"):
                    patched.setattr(broken, part, None)
                assert await read() is not None
