"""Failing dependencies of a validator: a killed Redis, and connections that are cut or tampered with."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import redis as sync_redis

from cli.devnet.redis import find_redis


class RestartedRedis:
    """A redis-server of its own, which a test ends by SIGKILL and starts again.

    Args:
        home: Where its socket and its file are.
        appendonly: Whether Redis persists its writes.
    """

    def __init__(self, home: Path, *, appendonly: bool) -> None:
        self._socket = home / "r"
        self.url = f"unix://{self._socket}"
        told = ["--port", "0", "--unixsocket", str(self._socket), "--save", "", "--dir", str(home)]
        self._command = [str(find_redis()), *told, "--appendonly", "yes" if appendonly else "no"]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 30
        while time.monotonic() < until and self._process.poll() is None:
            with suppress(sync_redis.RedisError), sync_redis.from_url(self.url) as client:
                client.ping()
                return
            time.sleep(0.02)
        raise RuntimeError("redis-server did not start")

    def kill(self) -> None:
        """As `kill -9`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[bool]]
"""Told of what a client sent before it goes on; True if it was answered here, and must not go on."""


class Wire:
    """A way to a service over TCP that can be cut.

    Args:
        host: Where the service is.
        port: Its port.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.answer: Answer | None = None
        self.cut_after: bytes = b""
        """The last request: the service executes it, and its answer is lost."""

    async def join(self) -> None:
        """Lets everything through, at the same port as ever."""
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        """Closes all connections and stops listening."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with suppress(OSError):
            there, service = await asyncio.open_connection(*self._target)
            back = asyncio.create_task(self._back(there, writer))
            try:
                while data := await reader.read(1 << 16):
                    if self.answer is not None and await self.answer(data, writer):
                        continue
                    service.write(data)
                    if self.cut_after and self.cut_after in data:
                        self.cut_after = b""
                        back.cancel()
                        await asyncio.gather(back, return_exceptions=True)
                        await there.read(1)
                        self.cut()
            finally:
                back.cancel()
                service.close()
        self._open.discard(writer)
        writer.close()

    @staticmethod
    async def _back(there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await there.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def wire_to(url: str) -> AsyncIterator[Wire]:
    """A wire to the service at `http://HOST:PORT`."""
    host, _, port = url.removeprefix("http://").rstrip("/").partition(":")
    wire = Wire(host, int(port))
    await wire.join()
    try:
        yield wire
    finally:
        wire.cut()
