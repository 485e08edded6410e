"""The allow list of checkpoint downloads: the nodes on it, and their IPs."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.shardcast.allowlist import keep_fresh, refresh
from protocol.clients import OrchestratorClient
from protocol.http.client import RequestSigner
from protocol.identity.keys import Key
from shardcast.allowlist import FirewallRules
from tests.kit.memory_ledger import MANAGER, POOL, PoolUnderTest
from tests.kit.nginx import NEEDS_NGINX, Front, behind, running
from tests.kit.orchestrator import MakePool


async def speak_from(pool: PoolUnderTest, key: Key, ip: str, *, forwarded_for: str = "") -> None:
    """Sends a heartbeat over a connection from this IP."""
    signer = RequestSigner(key, audience=pool.dependencies.key.address, clock=pool.clock)
    headers = {"X-Forwarded-For": forwarded_for} if forwarded_for else {}
    transport = httpx.ASGITransport(app=pool.app, client=(ip, 40_000))
    async with httpx.AsyncClient(transport=transport, base_url="http://pool", auth=signer) as http:
        beat = {"pool_id": POOL, "worker_version": "0.1.0"}
        assert (await http.post("/v1/heartbeat", json=beat, headers=headers)).status_code == 200


async def allowed(pool: PoolUnderTest) -> dict[str, str]:
    answer = await pool.owner("GET", "/v1/nodes/allowlist")
    return {each["node"]: each["ip"] for each in answer["nodes"]}


async def member(pool: PoolUnderTest, ip: str) -> Key:
    key = Key.generate()
    pool.ledger.register(key.address, member=True)
    await speak_from(pool, key, ip)
    return key


def the_client(pool: PoolUnderTest) -> OrchestratorClient:
    """Opens the typed client with the pool manager's key."""
    transport = httpx.ASGITransport(app=pool.app)
    return OrchestratorClient("http://127.0.0.1", key=MANAGER, clock=pool.clock, transport=transport)


async def test_a_node_is_allowed_at_the_address_of_its_last_heartbeat(pool: PoolUnderTest) -> None:
    key = await member(pool, "203.0.113.7")
    assert await allowed(pool) == {key.address: "203.0.113.7"}
    await speak_from(pool, key, "2001:db8::7")
    assert await allowed(pool) == {key.address: "2001:db8::7"}


async def test_a_nodes_own_claim_of_its_address_is_ignored(pool: PoolUnderTest) -> None:
    key = await member(pool, "203.0.113.7")
    await speak_from(pool, key, "203.0.113.7", forwarded_for="198.51.100.1")
    assert await allowed(pool) == {key.address: "203.0.113.7"}


async def test_the_address_reported_by_a_trusted_proxy_is_used(make_pool: MakePool) -> None:
    pool = make_pool(trusted_proxies=("10.0.0.0/8",))
    key = await member(pool, "203.0.113.7")
    await speak_from(pool, key, "10.1.1.1", forwarded_for="192.0.2.1, 198.51.100.9")
    assert await allowed(pool) == {key.address: "198.51.100.9"}


async def test_a_stranger_that_sends_a_heartbeat_is_not_allowed(pool: PoolUnderTest) -> None:
    await speak_from(pool, Key.generate(), "198.51.100.66")
    assert await allowed(pool) == {}


async def test_a_banned_node_leaves_the_list_at_once_and_returns_once_unbanned(
    pool: PoolUnderTest,
) -> None:
    good, bad = await member(pool, "203.0.113.7"), await member(pool, "203.0.113.8")
    await pool.owner("POST", f"/v1/nodes/{bad.address}/ban", {})
    assert await allowed(pool) == {good.address: "203.0.113.7"}
    await speak_from(pool, bad, "203.0.113.9")
    assert await allowed(pool) == {good.address: "203.0.113.7"}
    await pool.owner("POST", f"/v1/nodes/{bad.address}/unban", {})
    pool.ledger.register(bad.address, member=True)
    await pool.clock.turn(timedelta(minutes=1))  # statuses are cached for a moment
    await speak_from(pool, bad, "203.0.113.10")
    assert await allowed(pool) == {good.address: "203.0.113.7", bad.address: "203.0.113.10"}


async def test_a_drained_node_stays_on_the_allowlist(pool: PoolUnderTest) -> None:
    key = await member(pool, "203.0.113.7")
    await pool.owner("POST", f"/v1/nodes/{key.address}/drain", {})
    assert await allowed(pool) == {key.address: "203.0.113.7"}


async def test_a_connection_without_an_ip_is_ignored(pool: PoolUnderTest) -> None:
    await member(pool, "local")
    assert await allowed(pool) == {}


async def test_a_manager_reads_all_pages_with_the_typed_client(pool: PoolUnderTest, monkeypatch: Any) -> None:
    monkeypatch.setattr("protocol.clients.orchestrator.ALLOWED_PAGE", 2)
    ips = {f"203.0.113.{number}" for number in range(1, 6)}
    for ip in ips:
        await member(pool, ip)
    async with the_client(pool) as client:
        assert {str(each.ip) async for each in client.allowlist()} == ips


class Refusable(httpx.AsyncBaseTransport):
    """HTTP transport to the orchestrator that can be told to refuse requests."""

    def __init__(self, pool: PoolUnderTest) -> None:
        self._inner = httpx.ASGITransport(app=pool.app)
        self.refusing = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(403) if self.refusing else await self._inner.handle_async_request(request)


async def test_the_last_list_is_kept_while_the_orchestrator_refuses(
    pool: PoolUnderTest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "allowed.conf"
    way = Refusable(pool)
    every = timedelta(seconds=10)

    async def round_that_ends(*, well: bool) -> list[str]:
        await pool.clock.turn(every)
        said = ""
        async with asyncio.timeout(90):
            while ("are allowed" if well else "was not refreshed") not in said:
                await asyncio.sleep(0)
                said += capsys.readouterr().err
        return [line.removesuffix(" 1;") for line in listed.read_text().splitlines()[1:]]

    async with OrchestratorClient("http://127.0.0.1", token=pool.token, transport=way) as client:
        doors = FirewallRules(nginx=listed)
        keeping = asyncio.create_task(keep_fresh(client, doors, also=("192.0.2.0/24",), every=every, clock=pool.clock))
        await member(pool, "203.0.113.7")
        assert await round_that_ends(well=True) == ["192.0.2.0/24", "203.0.113.7/32"]
        await member(pool, "203.0.113.99")
        way.refusing = True
        assert await round_that_ends(well=False) == ["192.0.2.0/24", "203.0.113.7/32"]
        way.refusing = False
        assert await round_that_ends(well=True) == ["192.0.2.0/24", "203.0.113.7/32", "203.0.113.99/32"]
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


@pytest.mark.needs_nginx
@NEEDS_NGINX[1]
async def test_the_next_refresh_cuts_off_a_banned_node_and_no_other(pool: PoolUnderTest, tmp_path: Path) -> None:
    async with behind() as (_, port), the_client(pool) as client:
        with running(tmp_path, upstream=port) as front:
            await _cut_off(pool, client, front)


async def _cut_off(pool: PoolUnderTest, client: OrchestratorClient, front: Front) -> None:
    await member(pool, "127.0.0.2")
    bad = await member(pool, "127.0.0.3")
    async with front.reloading():
        await refresh(client, front.doors, also=())
    assert [await front.status(f"127.0.0.{number}") for number in (1, 2, 3)] == [403, 200, 200]
    async with front.client("127.0.0.3") as kept:
        assert (await kept.get("/block")).status_code == 200
        await pool.owner("POST", f"/v1/nodes/{bad.address}/ban", {})
        async with front.reloading():
            await refresh(client, front.doors, also=())
        with contextlib.suppress(httpx.TransportError):  # its open connection was closed
            assert (await kept.get("/block")).status_code == 403
    assert [await front.status(f"127.0.0.{number}") for number in (1, 2, 3)] == [403, 200, 403]
