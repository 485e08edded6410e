"""Discovery in operation: separate processes, a persistent Redis, a real chain, and kill -9."""

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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import httpx
import pytest
import pytest_asyncio
import redis as sync_redis

from ledger.artifacts import Contract
from ledger.devchain import free_port, start_chain
from protocol.clients.discovery import DiscoveryClient
from protocol.errors import NotFound, Unavailable
from protocol.http.client import RequestSigner
from protocol.identity.keys import Key
from protocol.identity.typed_data import SigningDomain
from protocol.invites import Invite
from protocol.wire.invites import SignedInvite
from protocol.wire.nodes import NodeRecord
from tests.kit.chain import quickest_kind
from tests.kit.discovery import registration
from tests.kit.discovery_pool import PoolOnChain, make_pool
from tests.kit.http_server import get_status

POOL = 1
NODE = Key.generate()
SERVICE = Key.generate()
PATIENCE_S = 60
T = TypeVar("T")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[PoolOnChain]:
    async with start_chain(quickest_kind()) as chain:
        yield await make_pool(chain)


@dataclass
class Operated:
    """An operator's installation: a persistent Redis and any number of instances."""

    home: Path
    pool: PoolOnChain
    stack: ExitStack

    @property
    def redis_url(self) -> str:
        return f"unix://{self.home / 's'}"

    def start_redis(self) -> subprocess.Popen[bytes]:
        binary = os.environ.get("MUSTER_REDIS_SERVER") or shutil.which("redis-server") or "redis-server"
        command = [binary, "--port", "0", "--unixsocket", str(self.home / "s"), "--dir", str(self.home)]
        process = self._run([*command, "--appendonly", "yes", "--appendfsync", "always"], "redis.log", {})
        self._wait(process, self._redis_answers)
        return process

    def start(self, port: int, *options: str, key: Key = SERVICE, database: int = 0) -> subprocess.Popen[bytes]:
        deployment = self.home / "deployment.json"
        self.pool.deployment.save(deployment)
        environment = {
            "MUSTER_DISCOVERY_KEY": "0x" + key.reveal().hex(),
            "MUSTER_DISCOVERY_DEPLOYMENT": str(deployment),
            "MUSTER_DISCOVERY_CHAIN_URL": self.pool.chain.url,
            "MUSTER_DISCOVERY_REDIS_URL": f"{self.redis_url}?db={database}",
            "MUSTER_DISCOVERY_POLL_SECONDS": "0.2",
            "MUSTER_DISCOVERY_PEER_SECONDS": "0.2",
        }
        command = [sys.executable, "-m", "cli", "discovery", "serve", "--port", str(port), *options]
        process = self._run(command, f"{port}.log", environment)
        self._wait(process, lambda: get_status(port, "/readyz") == 200)
        return process

    def client(self, port: int, key: Key, *, service: Key = SERVICE) -> DiscoveryClient:
        return DiscoveryClient(f"http://127.0.0.1:{port}#{service.address}", key=key)

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
            with sync_redis.from_url(self.redis_url) as client:
                return bool(client.ping())
        except sync_redis.RedisError:
            return False


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait(60)


@contextmanager
def killed(process: subprocess.Popen[bytes]) -> Iterator[None]:
    process.kill()
    process.wait(60)
    yield


@pytest.fixture
def operated(tmp_path: Path, pool: PoolOnChain, redis_server: str) -> Iterator[Operated]:
    with ExitStack() as stack:
        yield Operated(tmp_path, pool, stack)


async def test_records_and_invites_survive_kill_9_of_the_service_and_of_redis(operated: Operated) -> None:
    pool, port = operated.pool, free_port()
    redis, service = operated.start_redis(), operated.start(port)
    async with operated.client(port, NODE) as node, operated.client(port, pool.orchestrator) as orchestrator:
        first = await node.register(registration(pool_id=POOL))
        invite = posted(pool)
        await orchestrator.invite(invite)

        with killed(service):
            with pytest.raises(Unavailable):
                await node.call("GET", f"/v1/nodes/{NODE.address}", call_timeout=timedelta(seconds=1))
            service = operated.start(port)
        assert (await node.record()).first_seen_ms == first.first_seen_ms
        assert [record.address async for record in orchestrator.nodes(POOL)] == [NODE.address]

        with killed(redis):
            signer = RequestSigner(NODE, audience=SERVICE.address)
            async with httpx.AsyncClient(auth=signer) as http:
                answer = await http.get(f"http://127.0.0.1:{port}/v1/nodes/{NODE.address}")
            assert (answer.status_code, answer.json()["code"]) == (503, "store-unavailable")
            operated.start_redis()
        assert (await node.record()).first_seen_ms == first.first_seen_ms
        assert await node.invites(wait=timedelta()) == (invite,)


async def test_an_invite_reaches_its_node_through_another_process_which_then_stops_cleanly(operated: Operated) -> None:
    pool, here, there = operated.pool, free_port(), free_port()
    operated.start_redis()
    service = operated.start(here)
    operated.start(there)
    async with operated.client(here, NODE) as node, operated.client(there, pool.orchestrator) as orchestrator:
        await node.register(registration(pool_id=POOL))
        waiting = asyncio.create_task(node.invites())
        await asyncio.sleep(0.2)  # usually the poll waits by now; if not, it finds the invite at once
        invite = posted(pool)
        await orchestrator.invite(invite)
        async with asyncio.timeout(PATIENCE_S):
            assert await waiting == (invite,)

        await node.acknowledge(invite)
        waiting = asyncio.create_task(node.invites())
        await asyncio.sleep(0.2)
        service.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            assert await waiting == ()
        assert await asyncio.to_thread(service.wait, 60) == 0
    written = [json.loads(line) for line in (operated.home / f"{here}.log").read_text().splitlines()]
    assert {line["logger"] for line in written} >= {"protocol.http.serving.service", "uvicorn.error"}


async def test_nodes_of_a_killed_service_are_found_through_its_peer(operated: Operated) -> None:
    pool, here, there, other = operated.pool, free_port(), free_port(), Key.generate()
    operated.start_redis()
    service = operated.start(here, "--peer", f"http://127.0.0.1:{there}#{other.address}")
    peer = f"http://127.0.0.1:{here}#{SERVICE.address}"
    operated.start(there, "--peer", peer, key=other, database=1)
    async with (
        operated.client(here, NODE) as node,
        operated.client(there, NODE, service=other) as node_there,
        operated.client(there, pool.orchestrator, service=other) as orchestrator,
    ):
        await node.register(registration(pool_id=POOL))
        found = await until(lambda: all_of(orchestrator.nodes(POOL)))
        assert [(record.address, record.ip, record.signed_for) for record in found] == [
            (NODE.address, "", SERVICE.address)
        ]
        invite = posted(pool)
        await orchestrator.invite(invite)  # the peer passes it on to the service that the node polls
        assert await until(lambda: node.invites(wait=timedelta())) == (invite,)
        with killed(service):
            assert [record.address for record in await all_of(orchestrator.nodes(POOL))] == [NODE.address]
            assert await node_there.invites(wait=timedelta()) == (invite,)
            await node_there.sign_off()
            assert await all_of(orchestrator.nodes(POOL)) == []
        operated.start(here, "--peer", f"http://127.0.0.1:{there}#{other.address}")

        async def is_unknown() -> bool:
            try:
                await node.record()
            except NotFound:
                return True
            return False

        assert await until(is_unknown)  # the service learns that its node has left


async def until(ask: Callable[[], Awaitable[T]]) -> T:
    """Repeats a request until its answer is not empty; returns the answer."""
    async with asyncio.timeout(PATIENCE_S):
        while not (answer := await ask()):  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.1)
        return answer


async def all_of(nodes: AsyncIterator[NodeRecord]) -> list[NodeRecord]:
    return [each async for each in nodes]


def posted(pool: PoolOnChain) -> SignedInvite:
    domain = SigningDomain(pool.deployment.chain_id, pool.deployment[Contract.COMPUTE_POOLS])
    expiry = int(time.time()) + 3600
    invite = Invite(pool_id=POOL, domain_id=1, node=NODE.address, nonce=9, expiry=expiry, url="https://pool.example")
    return SignedInvite.of(invite, domain=domain, signature=invite.sign(pool.orchestrator, domain))
