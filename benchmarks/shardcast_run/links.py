"""Simulates slow links: a proxy with a token bucket and a delay for each client, in one process.

A client has one link for all its fetches: all its connections share the bucket, and every byte arrives `delay` after it
was sent. Needs no privileges, unlike network namespaces with `tc tbf`.

    python -m benchmarks.shardcast_run.links MBIT DELAY_MS CLIENTS PORT PORT
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from dataclasses import dataclass, field
from functools import partial

from benchmarks.shardcast_run.processes import say

PIECE = 64 * 1024
BURST_S = 0.02


@dataclass(slots=True)
class Link:
    """The link of one client."""

    bytes_per_s: float
    delay_s: float
    _free_at: float = field(default=0.0)

    async def admit(self, size: int) -> None:
        """Returns when the link has capacity for the bytes; yields to the event loop if it has capacity now."""
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now - BURST_S) + size / self.bytes_per_s
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)


async def main(megabits: float, delay_ms: float, clients: int, ports: list[int]) -> None:
    """Opens a port for each client and each server, and prints them."""
    opened: list[list[int]] = []
    for _ in range(clients):
        link = Link(megabits * 1e6 / 8, delay_ms / 1000)
        mine = []
        for port in ports:
            server = await asyncio.start_server(partial(_join, link=link, port=port), "127.0.0.1", 0)
            mine.append(server.sockets[0].getsockname()[1])
        opened.append(mine)
    say(links=opened)
    await asyncio.to_thread(sys.stdin.readline)


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, link: Link, port: int) -> None:
    try:
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        writer.close()
        return
    up = asyncio.create_task(_pass(reader, behind_writer, link, capped=False))
    down = asyncio.create_task(_pass(behind_reader, writer, link, capped=True))
    await asyncio.wait({up, down})


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: Link, *, capped: bool) -> None:
    """Forwards bytes and reads ahead only what fits into the delay, so that the sender is held to the link's rate."""
    underway: deque[tuple[float, bytes]] = deque()
    room = asyncio.Semaphore(max(2, int(link.bytes_per_s * link.delay_s / PIECE) + 2))
    news = asyncio.Event()
    delivering = asyncio.create_task(_deliver(underway, news, room, writer))
    loop = asyncio.get_running_loop()
    try:
        while data := await reader.read(PIECE):
            await room.acquire()
            if capped:
                await link.admit(len(data))
            underway.append((loop.time() + link.delay_s / 2, data))
            news.set()
    except ConnectionError:
        pass
    underway.append((loop.time() + link.delay_s / 2, b""))
    news.set()
    await delivering


async def _deliver(
    underway: deque[tuple[float, bytes]], news: asyncio.Event, room: asyncio.Semaphore, writer: asyncio.StreamWriter
) -> None:
    loop = asyncio.get_running_loop()
    while True:
        while not underway:
            news.clear()
            await news.wait()
        due, data = underway.popleft()
        if due > loop.time():
            await asyncio.sleep(due - loop.time())
        try:
            if not data:
                writer.close()
                return
            writer.write(data)
            await writer.drain()
        except ConnectionError:
            return
        finally:
            room.release()


if __name__ == "__main__":
    rate, delay, count, *behind = sys.argv[1:]
    asyncio.run(main(float(rate), float(delay), int(count), [int(port) for port in behind]))
