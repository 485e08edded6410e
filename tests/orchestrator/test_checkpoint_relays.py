"""Checkpoint relays: who may register, and for how long nodes receive their URLs."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import httpx
import pytest
from structlog.testing import capture_logs

from cli.shardcast.registration import registered
from orchestrator.runs.checkpoint_relays import LIFE, RENEW_AFTER, check_relay_url
from protocol.clients.orchestrator import OrchestratorClient
from protocol.clients.relay import RelayClient
from protocol.errors import Conflict, InvalidInput, NotFound
from protocol.identity.keys import Key
from protocol.wire.relays import RelayLease
from tests.kit.memory_ledger import PoolUnderTest
from tests.kit.orchestrator import MakePool

URL = "https://relay.example"


def owner_of(pool: PoolUnderTest) -> OrchestratorClient:
    transport = httpx.ASGITransport(app=pool.app)
    return OrchestratorClient("http://127.0.0.1", token=pool.token, clock=pool.clock, transport=transport)


def relay_of(pool: PoolUnderTest, key: Key) -> RelayClient:
    transport = httpx.ASGITransport(app=pool.app)
    return RelayClient("http://127.0.0.1", key=key, clock=pool.clock, transport=transport)


async def register_relay(pool: PoolUnderTest, key: Key, url: str = URL) -> httpx.Response:
    return await pool.send(key, "/v1/relays", {"url": url}, method="PUT")


async def named_relays(pool: PoolUnderTest) -> tuple[str, ...]:
    """Returns the relays' URLs that nodes receive, after the cache's lifetime of one second."""
    await pool.clock.turn(timedelta(seconds=1))
    return await pool.dependencies.checkpoint_relays.live()


async def test_a_relay_is_named_to_nodes_from_registration_until_its_lease_expires(pool: PoolUnderTest) -> None:
    key = Key.generate()
    async with owner_of(pool) as owner:
        await owner.allow_relay(key.address)
        assert await named_relays(pool) == ()
        answer = await register_relay(pool, key, URL + "/")
        lease = RelayLease.model_validate_json(answer.content)
        assert (lease.relay, lease.url, lease.again_in_ms) == (key.address, URL, RENEW_AFTER.total_seconds() * 1000)
        assert await named_relays(pool) == (URL,)
        await pool.clock.turn(LIFE - timedelta(seconds=10))
        assert await named_relays(pool) == (URL,)
        await register_relay(pool, key, URL + "/moved")
        await pool.clock.turn(timedelta(seconds=20))
        assert await named_relays(pool) == (URL + "/moved",)
        await pool.clock.turn(LIFE)
        assert await named_relays(pool) == ()
        assert [(each.relay, each.live) for each in await owner.relays()] == [(key.address, False)]
        await register_relay(pool, key)
        assert await named_relays(pool) == (URL,)


async def test_a_relay_that_is_not_allowed_is_refused_and_not_stored(pool: PoolUnderTest) -> None:
    answer = await register_relay(pool, Key.generate())
    assert (answer.status_code, answer.json()["code"]) == (403, "relay-not-allowed")
    assert (await named_relays(pool), await pool.dependencies.checkpoint_relays.list()) == ((), [])


async def test_a_relay_registers_only_itself(pool: PoolUnderTest) -> None:
    mine, other = Key.generate(), Key.generate()
    async with owner_of(pool) as owner:
        for key in (mine, other):
            await owner.allow_relay(key.address)
        await register_relay(pool, other)
        forged = await pool.send(mine, "/v1/relays", {"url": URL + "/x", "relay": other.address}, method="PUT")
        assert forged.status_code == 422
        assert (await pool.send(mine, "/v1/relays", None, method="DELETE")).status_code == 204
        assert await named_relays(pool) == (URL,)
        assert (await pool.send(mine, f"/v1/relays/{mine.address}", None, method="PUT")).status_code == 403


async def test_a_denied_relay_is_removed_at_once_and_cannot_register_again(pool: PoolUnderTest) -> None:
    key = Key.generate()
    async with owner_of(pool) as owner:
        await owner.allow_relay(key.address)
        await register_relay(pool, key)
        assert await named_relays(pool) == (URL,)
        await owner.deny_relay(key.address)
        assert await pool.dependencies.checkpoint_relays.live() == ()
        assert (await register_relay(pool, key)).status_code == 403
        with pytest.raises(NotFound, match="was not allowed"):
            await owner.deny_relay(key.address)
        assert await owner.relays() == ()


async def test_the_number_of_allowed_relays_is_bounded_by_the_checkpoint_format(
    pool: PoolUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.store.checkpoint_relays.MOST_ALLOWED_RELAYS", 2)
    keys = [Key.generate() for _ in range(3)]
    async with owner_of(pool) as owner:
        for key in keys[:2]:
            await owner.allow_relay(key.address)
        await owner.allow_relay(keys[0].address)
        with pytest.raises(Conflict, match="2 relays are allowed"):
            await owner.allow_relay(keys[2].address)


@pytest.mark.parametrize(
    "url",
    [
        "http://relay.example",
        "https://127.0.0.1",
        "https://10.1.2.3:8401",
        "https://[::1]:8401",
        "https://[::ffff:192.168.0.1]",
        "https://169.254.169.254/latest",
        "https://localhost:8401",
        "https://relay.internal",
        "https://relay.internal.",
        "https://[fec0::1]",
        "https://[::ffff:0:127.0.0.1]",
        "https://2130706433",
        "https://0x7f000001",
        "https://127.1",
        "https://user:secret@relay.example",
        "https://relay.example/?q",
        "https://relay.example/#0x",
        "https://relay.example:port",
        "ftp://relay.example",
        "https://",
    ],
)
def test_a_relay_url_that_is_private_or_no_http_service_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        check_relay_url(url, private=False)


@pytest.mark.parametrize("url", ["https://relay.example:8401/checkpoints", "https://1.1.1.1", "https://[2606:4700::1]"])
def test_public_relay_urls_are_accepted(url: str) -> None:
    assert check_relay_url(url + "/", private=False) == url


async def test_an_invalid_url_is_refused_and_not_stored(make_pool: MakePool) -> None:
    public, private = make_pool(), make_pool(relays_in_private_networks=True)
    key = Key.generate()
    async with owner_of(public) as owner:
        await owner.allow_relay(key.address)
    assert (await register_relay(public, key, "http://127.0.0.1:8401")).json()["code"] == "bad-relay-url"
    assert await named_relays(public) == ()
    assert (await register_relay(private, key, "http://127.0.0.1:8401")).status_code == 200
    assert await named_relays(private) == ("http://127.0.0.1:8401",)


async def test_a_serving_relay_renews_its_registration_and_removes_it_on_exit(
    pool: PoolUnderTest,
) -> None:
    key = Key.generate()

    async def wait_until_registered(what: str) -> None:
        async with asyncio.timeout(90):
            while not any(entry["event"] == what for entry in logs):  # noqa: ASYNC110 - no event reports the change
                await asyncio.sleep(0)
        logs.clear()

    with capture_logs() as logs:
        async with owner_of(pool) as owner, relay_of(pool, key) as client:
            async with registered(client, URL, clock=pool.clock):
                await wait_until_registered("relay-not-registered")
                await owner.allow_relay(key.address)
                await pool.clock.turn(timedelta(seconds=2))
                await wait_until_registered("relay-registered")
                for _ in range(4):
                    before = (await owner.relays())[0].expires_at_ms
                    await pool.clock.turn(RENEW_AFTER)
                    async with asyncio.timeout(90):
                        while (await owner.relays())[0].expires_at_ms == before:  # noqa: ASYNC110 - no event reports the change
                            await asyncio.sleep(0)
                    assert await named_relays(pool) == (URL,)
            assert await named_relays(pool) == ()
