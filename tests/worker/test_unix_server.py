"""The server behind the bridge limits the resources that a task can occupy."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fastapi import FastAPI

from protocol.http.serving.embedded_server import MOST_CONNECTIONS
from protocol.http.serving.unix_server import UnixServer


async def test_a_task_cannot_use_up_the_workers_file_descriptors(tmp_path: Path) -> None:
    server = UnixServer(FastAPI(), tmp_path / "s.sock", mode=0o600)
    await server.start()
    opened = [await asyncio.open_unix_connection(tmp_path / "s.sock") for _ in range(MOST_CONNECTIONS + 20)]
    try:
        ended = [asyncio.ensure_future(reader.read()) for reader, _ in opened]
        async with asyncio.timeout(60):
            while sum(each.done() for each in ended) < 20:  # noqa: ASYNC110 - no event announces it
                await asyncio.sleep(0.01)
        done, waiting = await asyncio.wait(ended, timeout=0.3)  # no further connections end
        assert (len(done), len(waiting)) == (20, MOST_CONNECTIONS)
        opened[0][1].close()
        await opened[0][1].wait_closed()
        await asyncio.sleep(0)
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s.sock")
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 404")
        writer.close()
        for each in ended:
            each.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
    finally:
        for _, writer in opened:
            writer.close()
        await server.stop()
