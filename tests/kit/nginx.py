"""A real nginx with the shipped configuration in front of a server that replaces an origin."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from aiohttp import web

from ledger.devchain import free_port
from shardcast.allowlist import FirewallRules, Network, allowed_networks, nginx_list

DEPLOY = Path(__file__).parents[2] / "deploy" / "nginx"
NGINX = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
PATIENCE = 60.0

NEEDS_NGINX = [
    pytest.mark.needs_nginx,
    pytest.mark.skipif(NGINX is None, reason="there is no nginx (Debian: apt install nginx-light)"),
]


@dataclass
class Front:
    """An nginx before a server of ours."""

    port: int
    pid: int
    doors: FirewallRules

    def client(self, ip: str) -> httpx.AsyncClient:
        """Returns a client with a loopback address of its own."""
        transport = httpx.AsyncHTTPTransport(local_address=ip)
        return httpx.AsyncClient(transport=transport, base_url=f"http://127.0.0.1:{self.port}", timeout=PATIENCE)

    async def status(self, ip: str, path: str = "/block") -> int:
        async with self.client(ip) as http:
            return (await http.get(path)).status_code

    async def install(self, networks: Iterable[Network]) -> None:
        """Installs a list and waits for it to be in force."""
        async with self.reloading():
            await self.doors.install(networks)

    @contextlib.asynccontextmanager
    async def reloading(self) -> AsyncIterator[None]:
        """Waits after the block until no former worker accepts connections; for a moment old and new ones do."""
        before = self._workers()
        yield
        async with asyncio.timeout(PATIENCE):
            while not (now := self._workers()) or now & before:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.02)

    def _workers(self) -> set[int]:
        """The processes that take connections; those that only finish what they have call themselves otherwise."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return {int(child) for child in children if _title(child) == "nginx: worker process"}


def _title(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0 ")
    except OSError:
        return ""


class Behind:
    """What stands in for an origin: it answers with who asked, or not at all."""

    def __init__(self) -> None:
        self.waiting = 0
        self.all_here = asyncio.Event()
        self.go = asyncio.Event()
        self.expected = 0

    async def block(self, request: web.Request) -> web.Response:
        return web.Response(body=request.headers["X-Forwarded-For"].encode())

    async def poll(self, request: web.Request) -> web.Response:
        self.waiting += 1
        if self.waiting == self.expected:
            self.all_here.set()
        await self.go.wait()
        return web.Response(text="news")


@contextlib.asynccontextmanager
async def behind() -> AsyncIterator[tuple[Behind, int]]:
    served = Behind()
    app = web.Application()
    app.add_routes([web.get("/block", served.block), web.get("/poll", served.poll), web.get("/metrics", served.block)])
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    yield served, runner.addresses[0][1]
    served.go.set()
    await runner.cleanup()


@contextlib.contextmanager
def running(home: Path, *, upstream: int) -> Iterator[Front]:
    shutil.copytree(DEPLOY, home / "muster")
    zones = home / "muster" / "shardcast-zones.conf"
    zones.write_text(replaced(zones.read_text(), "127.0.0.1:8401", f"127.0.0.1:{upstream}"))
    (home / "muster" / "allowed.conf").write_text(nginx_list(allowed_networks((), also=["127.0.0.1"])))
    port = free_port()
    (home / "nginx.conf").write_text(
        f"""daemon off; pid {home}/nginx.pid; error_log {home}/error.log; worker_processes 1;
        {"user root;" if os.geteuid() == 0 else ""}
        events {{ worker_connections 512; }}
        http {{
            access_log off; client_body_temp_path {home}/body; proxy_temp_path {home}/proxy;
            fastcgi_temp_path {home}/f; uwsgi_temp_path {home}/u; scgi_temp_path {home}/s;
            include muster/shardcast-zones.conf;
            server {{ listen 127.0.0.1:{port} backlog=512; include muster/shardcast-server.conf; }}
        }}"""
    )
    process = subprocess.Popen([str(NGINX), "-e", f"{home}/error.log", "-c", f"{home}/nginx.conf"])
    try:
        wait_for(port, process, home / "error.log")
        yield Front(
            port, process.pid, FirewallRules(nginx=home / "muster" / "allowed.conf", nginx_pid=home / "nginx.pid")
        )
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and process.poll() is None:
        # An answer, not a connection: the master listens before it has a worker.
        with contextlib.suppress(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE)
            return
        time.sleep(0.01)
    pytest.fail(f"nginx did not start: {log.read_text()[-2000:]}")


def replaced(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)
