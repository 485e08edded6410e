"""A server that accepts requests and never answers, and a helper that delays the event loop."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self


class SilentServer:
    """Takes connections, reads what they say, and says nothing."""

    def __init__(self) -> None:
        self.url = ""
        self._asked = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._hear, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for writer in self._open:
            writer.transport.abort()
        while self._open:  # noqa: ASYNC110 - the handlers' own tasks belong to the server
            await asyncio.sleep(0)

    async def asked(self) -> None:
        """Returns when a request has come."""
        await self._asked.wait()

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        while await reader.read(1 << 16):
            self._asked.set()
        self._open.discard(writer)
        writer.close()


async def as_it_falls_due(after_s: float) -> None:
    """Blocks the event loop so that all timers due within `after_s` expire in the same iteration."""
    loop = asyncio.get_running_loop()
    turn = loop.create_future()
    loop.call_later(after_s / 2, turn.set_result, None)
    loop.call_soon(time.sleep, after_s * 1.5)
    await turn
