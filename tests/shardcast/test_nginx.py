"""Tests of the nginx configuration in `deploy/nginx`, in a real nginx."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from ledger.devchain import free_port
from shardcast.allowlist import allowed_networks
from shardcast.client import Client
from shardcast.download.download import DownloadProgress
from shardcast.origin import Origin
from shardcast.serve.connection_limits import ServingLimits
from tests.kit.manifests import PUBLISHER
from tests.kit.nginx import DEPLOY, NEEDS_NGINX, NGINX, PATIENCE, Behind, Front, behind, replaced, running
from tests.kit.shardcast import RUN_NAME, content, read_folder

pytestmark = NEEDS_NGINX


@pytest.fixture
async def origin() -> AsyncIterator[tuple[Behind, int]]:
    async with behind() as served:
        yield served


@pytest.fixture
async def front(tmp_path: Path, origin: tuple[Behind, int]) -> AsyncIterator[Front]:
    with running(tmp_path, upstream=origin[1]) as started:
        yield started


async def test_a_client_fetches_through_nginx_while_the_version_grows(
    tmp_path: Path, client_of: Callable[..., Client]
) -> None:
    data = content(1)["model.safetensors"]
    heard = asyncio.Event()

    def progress(now: DownloadProgress) -> None:
        if now.done:
            heard.set()

    limits = ServingLimits(trusted_proxies=("127.0.0.1/32",))
    async with Origin(tmp_path / "origin", run=RUN_NAME, key=PUBLISHER, limits=limits) as published:
        with running(tmp_path, upstream=published.server.port) as front:
            async with client_of(f"http://127.0.0.1:{front.port}") as client:
                async with published.publish(version=1) as writing:
                    await writing.write("model.safetensors", data[: len(data) // 2])
                    fetching = asyncio.create_task(client.fetch(1, tmp_path / "to", on_progress=progress))
                    async with asyncio.timeout(PATIENCE):
                        await heard.wait()  # the first block arrives while half of the file is not yet written
                    await writing.write("model.safetensors", data[len(data) // 2 :])
                fetched = await fetching
    assert read_folder(fetched.path) == {"model.safetensors": data}


async def test_the_server_behind_nginx_sees_the_callers_real_address(front: Front) -> None:
    async with front.client("127.0.0.1") as http:
        assert (await http.get("/block", headers={"X-Forwarded-For": "8.8.8.8"})).text == "127.0.0.1"


async def test_a_running_download_survives_an_allowlist_reload(front: Front, origin: tuple[Behind, int]) -> None:
    origin[0].expected = 1
    async with front.client("127.0.0.1") as http:
        download = asyncio.create_task(http.get("/poll"))
        async with asyncio.timeout(PATIENCE):
            await origin[0].all_here.wait()
        await front.install(allowed_networks((), also=["127.0.0.1", "127.0.0.9"]))
        assert await front.status("127.0.0.9") == 200
        origin[0].go.set()
        assert (await download).text == "news"


async def test_nginx_passes_only_read_requests_and_no_metrics(front: Front) -> None:
    async with front.client("127.0.0.1") as http:
        assert (await http.post("/block")).status_code == 403
        assert (await http.get("/metrics")).status_code == 404
        assert (await http.head("/block")).status_code == 200


async def test_a_flood_from_one_address_is_throttled_and_others_are_served(front: Front) -> None:
    await front.install(allowed_networks((), also=["127.0.0.1", "127.0.0.2"]))
    reader, writer = await asyncio.open_connection("127.0.0.1", front.port, local_addr=("127.0.0.1", 0))
    # nginx allows 100 requests a second, and 200 at once. It refuses some, unless these take more than eight seconds.
    writer.write(
        b"GET /block HTTP/1.1\r\nHost: x\r\n\r\n" * 999 + b"GET /block HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    async with asyncio.timeout(PATIENCE):
        answers = await reader.read(-1)
    writer.close()
    assert answers.count(b"HTTP/1.1 200 ") >= 200
    assert answers.count(b"HTTP/1.1 429 ") >= 1
    assert await front.status("127.0.0.2") == 200


async def test_an_address_has_at_most_64_connections(front: Front, origin: tuple[Behind, int]) -> None:
    origin[0].expected = 64
    limits = httpx.Limits(max_connections=None)
    transport = httpx.AsyncHTTPTransport(local_address="127.0.0.1", limits=limits)
    async with httpx.AsyncClient(
        transport=transport, base_url=f"http://127.0.0.1:{front.port}", timeout=PATIENCE
    ) as http:
        held = [asyncio.create_task(http.get("/poll")) for _ in range(64)]
        async with asyncio.timeout(PATIENCE):
            await origin[0].all_here.wait()
        assert (await http.get("/block")).status_code == 429
        origin[0].go.set()
        assert {answer.status_code for answer in await asyncio.gather(*held)} == {200}


def test_nginx_accepts_the_tls_example(tmp_path: Path) -> None:
    shutil.copytree(DEPLOY, tmp_path / "muster")
    certificate = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    certificate += [
        "-keyout",
        f"{tmp_path}/key",
        "-out",
        f"{tmp_path}/cert",
        "-days",
        "1",
        "-subj",
        "/CN=relay.example",
    ]
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, which makes the certificate")
    subprocess.run(certificate, check=True, capture_output=True)
    example = tmp_path / "muster" / "shardcast.conf"
    text = replaced(example.read_text(), "/etc/letsencrypt/live/relay.example/fullchain.pem", f"{tmp_path}/cert")
    text = replaced(text, "/etc/letsencrypt/live/relay.example/privkey.pem", f"{tmp_path}/key")
    example.write_text(replaced(text, "443", str(free_port())))
    (tmp_path / "nginx.conf").write_text(
        f"pid {tmp_path}/nginx.pid; events {{}} http {{ access_log off; include muster/shardcast.conf; }}"
    )
    command = [str(NGINX), "-t", "-e", f"{tmp_path}/error.log", "-c", f"{tmp_path}/nginx.conf"]
    without = subprocess.run(command, capture_output=True, text=True, check=False)
    # Without the allow list nginx does not start. If it started, it would admit every address.
    assert "allowed.conf" in without.stderr
    (tmp_path / "muster" / "allowed.conf").write_text("")
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
