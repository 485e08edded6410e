"""The HTTP server of origins and relays: ranges, error answers, limits and TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from protocol.http.rates import HEALTH_RATE, Rate
from protocol.http.serving.connections import ConnectionLimits
from protocol.runtime.clock import ManualClock
from shardcast.client import Client
from shardcast.manifest.records import BLOCK
from shardcast.origin import Origin
from shardcast.serve.connection_limits import HIGH_WATER, ServingLimits
from shardcast.serve.server import PROBE_BYTES
from tests.kit.manifests import PUBLISHER
from tests.kit.shardcast import (
    RUN_NAME,
    complete,
    content,
    eventually,
    read_folder,
    relay_of,
    status_of,
    total,
    write_folder,
)

FILES = content(1)


@pytest.mark.parametrize(
    ("path", "range_", "status"),
    [
        ("/v1/versions/1/1/files/1", "bytes=0-9", 206),
        ("/v1/versions/1/1/files/1", f"bytes={5 * BLOCK}-{5 * BLOCK + 76}", 206),
        ("/v1/versions/1/1/files/1", f"bytes={5 * BLOCK}-{5 * BLOCK + 77}", 400),
        ("/v1/versions/1/1/files/1", "bytes=5-4", 400),
        ("/v1/versions/1/1/files/1", "bytes=0-", 400),
        ("/v1/versions/1/1/files/1", "bytes=0-1,4-5", 400),
        ("/v1/versions/1/1/files/1", "", 400),
        ("/v1/versions/1/1/files/0", "bytes=0-0", 400),
        ("/v1/versions/1/1/files/3", "bytes=0-0", 404),
        ("/v1/versions/1/1/files/99999999999", "bytes=0-0", 400),
        ("/v1/versions/1/2/files/1", "bytes=0-0", 404),
        ("/v1/versions/2/1/files/1", "bytes=0-0", 404),
        ("/v1/versions/1e3/1/files/1", "bytes=0-0", 400),
        ("/v1/versions/../../etc/passwd", "", 404),
        ("/v1/versions/1/1/manifest?from=-1", "", 400),
        ("/v1/versions/1/1/manifest?from=8", "", 200),
        ("/v1/versions/1/1/manifest?form=8", "", 422),
        ("/v1/versions?folow=1", "", 422),
        ("/v1/versions", "", 200),
        ("/v1/probe", "", 200),
        ("/", "", 404),
    ],
)
async def test_only_existing_paths_are_answered(
    origin: Origin, tmp_path: Path, path: str, range_: str, status: int
) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))
    headers = {"Range": range_} if range_ else {}
    assert await status_of(origin.url + path, **headers) == status


async def test_the_request_rate_per_address_is_limited(stack: AsyncExitStack, tmp_path: Path) -> None:
    limits = ServingLimits(rate=Rate(count=1, per=timedelta(hours=1), burst=2))
    origin = await stack.enter_async_context(Origin(tmp_path, run=RUN_NAME, key=PUBLISHER, limits=limits))
    assert [await status_of(f"{origin.url}/v1/probe") for _ in range(3)] == [200, 200, 429]
    assert await status_of(f"{origin.url}/healthz") == 200
    assert total(origin.server.metrics.refused) == 1


async def test_health_requests_have_a_separate_rate_limit(stack: AsyncExitStack, tmp_path: Path) -> None:
    clock = ManualClock()
    origin = await stack.enter_async_context(Origin(tmp_path, run=RUN_NAME, key=PUBLISHER, clock=clock))
    statuses = [await status_of(f"{origin.url}/healthz") for _ in range(HEALTH_RATE.burst + 1)]
    assert statuses == [200] * HEALTH_RATE.burst + [429]
    assert await status_of(f"{origin.url}/metrics") == 429
    assert await status_of(f"{origin.url}/v1/probe") == 200


async def test_the_head_of_a_request_is_limited_in_size(origin: Origin) -> None:
    """aiohttp's defaults allow 128 header fields of 8 KiB, which is 1 MiB per connection."""
    fields = {f"X-Field-{number}": "x" * 1000 for number in range(40)}
    assert await status_of(f"{origin.url}/healthz", **fields) == 400
    assert await status_of(f"{origin.url}/healthz", **{"X-Field": "x" * 2000}) == 400
    assert await status_of(f"{origin.url}/healthz", **dict(list(fields.items())[:20])) == 200


async def test_the_number_of_connections_per_address_is_limited(stack: AsyncExitStack, tmp_path: Path) -> None:
    limits = ServingLimits(connections=ConnectionLimits(per_address=2))
    origin = await stack.enter_async_context(Origin(tmp_path, run=RUN_NAME, key=PUBLISHER, limits=limits))
    first = [await asyncio.open_connection("127.0.0.1", origin.server.port) for _ in range(2)]
    await eventually(lambda: len(origin.server._guard) == 2)
    reader, writer = await asyncio.open_connection("127.0.0.1", origin.server.port)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()
    for _, each in first:
        each.close()
    await eventually(lambda: len(origin.server._guard) == 0)
    assert await status_of(f"{origin.url}/v1/probe") == 200


async def test_a_full_server_closes_an_idle_connection_of_the_busiest_address(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    limits = ServingLimits(connections=ConnectionLimits(connections=3, per_address=3))
    origin = await stack.enter_async_context(Origin(tmp_path, run=RUN_NAME, key=PUBLISHER, limits=limits))
    following, follower = await asyncio.open_connection("127.0.0.1", origin.server.port)
    follower.write(HEAD + b"\r\n")
    await following.readuntil(b'"versions":[]}')
    idle = [await asyncio.open_connection("127.0.0.1", origin.server.port) for _ in range(2)]
    await eventually(lambda: len(origin.server._guard) == 3)
    reader, writer = await asyncio.open_connection("127.0.0.1", origin.server.port, local_addr=("127.0.0.2", 0))
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (await reader.readline()).split()[1] == b"200"
    with suppress(ConnectionError):
        assert await idle[0][0].read() == b""
    assert not following.at_eof()
    for each in (writer, idle[1][1], follower):
        each.close()


async def test_an_address_that_reads_no_answers_occupies_little_memory(stack: AsyncExitStack, tmp_path: Path) -> None:
    """Connections that read nothing are closed when their address exceeds its limit.

    When a connection stops reading, 16 to 256 KiB of an answer are unsent. So 24 such connections exceed the limit,
    which this test sets to 256 KiB.
    """
    origin = await stack.enter_async_context(Origin(tmp_path, run=RUN_NAME, key=PUBLISHER))
    answers = origin.server._answers
    answers._most_of_one = PROBE_BYTES
    probe = b"GET /v1/probe HTTP/1.1\r\nHost: a\r\n\r\n"
    for _ in range(24):
        with socket.socket() as small:
            small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            small.setblocking(False)
            await asyncio.get_running_loop().sock_connect(small, ("127.0.0.1", origin.server.port))
            _, writer = await asyncio.open_connection(sock=small.dup())
            stack.callback(writer.close)
            writer.write(probe * 40)
    await eventually(lambda: total(origin.server.metrics.refused) >= 6)
    # One connection always stays open. It may hold a whole answer, and at most `HIGH_WATER` bytes of the one before.
    assert 0 < len(answers) <= answers._most_of_one + 2 * HIGH_WATER
    assert await status_of(f"{origin.url}/v1/probe") == 200


HEAD = b"GET /v1/versions?follow=1 HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    "sent",
    [b"", HEAD, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" + HEAD],
    ids=["no-bytes", "half-a-head", "half-a-head-after-an-answer"],
)
async def test_an_unfinished_request_is_cut_off(stack: AsyncExitStack, tmp_path: Path, sent: bytes) -> None:
    limits = ServingLimits(idle=timedelta(milliseconds=200))
    origin = await stack.enter_async_context(Origin(tmp_path, run=RUN_NAME, key=PUBLISHER, limits=limits))
    reader, writer = await asyncio.open_connection("127.0.0.1", origin.server.port)
    writer.write(sent)
    with suppress(ConnectionError):
        async with asyncio.timeout(60):
            await reader.read()
    writer.close()


async def test_a_complete_request_may_wait_longer_than_the_idle_timeout(stack: AsyncExitStack, tmp_path: Path) -> None:
    limits = ServingLimits(idle=timedelta(milliseconds=100))
    origin = await stack.enter_async_context(Origin(tmp_path / "o", run=RUN_NAME, key=PUBLISHER, limits=limits))
    reader, writer = await asyncio.open_connection("127.0.0.1", origin.server.port)
    writer.write(HEAD + b"\r\n")
    await reader.readuntil(b'"versions":[]}')
    await asyncio.sleep(0.3)  # three times the idle time-out, in which the server must not close the connection
    await origin.publish_folder(1, write_folder(tmp_path / "source", {"a": b"1"}))
    async with asyncio.timeout(60):
        await reader.readuntil(b'"version":1,')
    writer.close()


async def test_metrics_show_held_versions_and_sent_bytes(origin: Origin, tmp_path: Path) -> None:
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))
    assert await status_of(f"{origin.url}/v1/versions/1/1/files/1", Range="bytes=0-999") == 206
    await eventually(lambda: total(origin.server.metrics.sent) == 1000)
    async with aiohttp.ClientSession() as session, session.get(f"{origin.url}/metrics") as answer:
        text = await answer.text()
    assert "muster_shardcast_sent_bytes_total 1000.0" in text
    assert 'muster_shardcast_versions{state="sealed"} 1.0' in text
    assert "muster_shardcast_newest_version 1.0" in text
    assert total(origin.server.metrics.published) == sum(map(len, FILES.values()))


async def test_a_version_travels_over_tls_from_origin_to_relay_to_client(
    stack: AsyncExitStack, client_of: Callable[..., Client], tmp_path: Path
) -> None:
    serving, trusting = certificate(tmp_path)
    origin = await stack.enter_async_context(Origin(tmp_path / "o", run=RUN_NAME, key=PUBLISHER, tls=serving))
    relay = await stack.enter_async_context(relay_of(tmp_path / "r", origin.url, tls=serving, upstream_tls=trusting))
    assert relay.url.startswith("https://")
    await origin.publish_folder(1, write_folder(tmp_path / "source", FILES))
    await eventually(lambda: complete(relay, 1))
    async with client_of(relay.url, tls=trusting) as client:
        assert read_folder((await client.fetch(1, tmp_path / "to")).path) == FILES
    async with client_of(relay.url) as client:  # this client does not trust the authority of the relay's certificate
        with pytest.raises(Exception, match="can be reached"):
            await client.fetch(1, tmp_path / "other")


def certificate(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Returns a server's TLS context with a new certificate, and a client's that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return serving, ssl.create_default_context(cafile=str(folder / "cert.pem"))
