"""A faulty connection to a chain: a proxy that delays, loses answers, or is down."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx


@dataclass
class BadLine:
    """Faults of the proxy.

    Args:
        delay_s: Seconds to wait before answering.
        lose_answers_to: JSON-RPC methods that are executed but whose answer is lost, with the number of losses.
        down: Closes every connection at once.
        status: Answers with this HTTP status instead of forwarding to the chain.
        hold: JSON-RPC methods that are not forwarded before their event is set.
    """

    url: str = ""
    delay_s: float = 0.0
    lose_answers_to: dict[str, int] = field(default_factory=dict)
    down: bool = False
    status: int | None = None
    hold: dict[str, asyncio.Event] = field(default_factory=dict)
    requests: int = 0


@contextlib.asynccontextmanager
async def bad_line(upstream: str) -> AsyncIterator[BadLine]:
    """Runs the proxy on a free port."""
    line = BadLine()
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    fields = dict(row.lower().split(b":", 1) for row in head.split(b"\r\n")[1:] if row)
                    length = int(fields[b"content-length"])
                    if not await _serve_one(line, client, upstream, await reader.readexactly(length), writer):
                        break
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        line.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield line
        finally:
            server.close()


async def _serve_one(
    line: BadLine, client: httpx.AsyncClient, upstream: str, body: bytes, writer: asyncio.StreamWriter
) -> bool:
    line.requests += 1
    if line.down:
        return False
    await asyncio.sleep(line.delay_s)
    if line.status is not None:
        writer.write(f"HTTP/1.1 {line.status} No\r\nContent-Length: 2\r\n\r\nno".encode())
        await writer.drain()
        return True
    for method, event in line.hold.items():
        if method.encode() in body:
            await event.wait()
    answer = await client.post(upstream, content=body, headers={"Content-Type": "application/json"})
    for method, left in line.lose_answers_to.items():
        if left and method.encode() in body:
            line.lose_answers_to[method] -= 1
            return False
    writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(answer.content)}\r\n\r\n".encode() + answer.content)
    await writer.drain()
    return True
