"""Processes of `benchmarks.broadcast_under_faults`: a trainer, relays, a spoiling proxy and workers.

python -m benchmarks.shardcast_run.faulty origin FOLDER VERSIONS MIB SECONDS
python -m benchmarks.shardcast_run.faulty relay FOLDER PORT UPSTREAM_PORT
python -m benchmarks.shardcast_run.faulty spoiler RELAY_PORT
python -m benchmarks.shardcast_run.faulty client FOLDER RELAY_PORT...
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import aiohttp
from aiohttp import web

from benchmarks.shardcast_run.ours import FILE, PIECE, PUBLISHER, RUN
from benchmarks.shardcast_run.processes import say
from shardcast.client import Client
from shardcast.errors import FailureKind
from shardcast.manifest.records import BLOCK
from shardcast.origin import Origin
from shardcast.relay import Relay

SPOILT = 10
"""The spoiler flips a bit in one of this number of blocks."""


async def _origin(folder: Path, port: int, versions: int, mebibytes: int, seconds: float) -> None:
    """Publishes random checkpoints at fixed intervals, each while it is being written."""
    async with Origin(folder, run=RUN, key=PUBLISHER, port=port) as origin:
        say(port=origin.server.port)
        await asyncio.to_thread(sys.stdin.readline)
        first = time.monotonic()
        for version in range(1, versions + 1):
            await asyncio.sleep(max(0.0, first + (version - 1) * seconds - time.monotonic()))
            say(begun=time.monotonic(), version=version)
            async with origin.publish(version=version) as writing:
                for at in range(0, mebibytes << 20, PIECE):
                    piece = await asyncio.to_thread(os.urandom, min(PIECE, (mebibytes << 20) - at))
                    await writing.write(FILE, piece, expected=mebibytes << 20)
            published = writing.published
            if published is None:
                raise RuntimeError(f"version {version} was not sealed")
            say(sealed=time.monotonic(), version=version, digest=published.digest)
        await asyncio.to_thread(sys.stdin.readline)


async def _relay(folder: Path, port: int, upstream: int) -> None:
    relay = Relay(folder, upstreams=[_url(upstream)], run=RUN, signer=PUBLISHER.address, port=port)
    async with relay:
        say(port=relay.server.port)
        await relay.run()


async def _spoiler(folder: Path, port: int, upstream: int) -> None:
    """Passes on a relay's answers as they arrive, but flips a bit in every tenth block."""
    async with Relay(folder, upstreams=[_url(upstream)], run=RUN, signer=PUBLISHER.address) as relay:
        await _spoil(port, relay.url)


async def _spoil(port: int, behind: str) -> None:
    served = 0

    def spoil(piece: bytes, at: int) -> bytes:
        nonlocal served
        # blocks that begin in this piece
        began, served = served, served + (at + len(piece) - 1) // BLOCK - (at - 1) // BLOCK
        return piece if began // SPOILT == served // SPOILT else piece[:-1] + bytes((piece[-1] ^ 1,))

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {"Range": request.headers["Range"]} if "Range" in request.headers else {}
        async with session.get(behind + request.path_qs, headers=headers) as given:
            kept = ("Content-Range", "Content-Type", "Content-Length")
            response = web.StreamResponse(
                status=given.status, headers={name: given.headers[name] for name in kept if name in given.headers}
            )
            await response.prepare(request)
            at = 0
            async for piece in given.content.iter_any():
                await response.write(spoil(piece, at) if "/files/" in request.path else piece)
                at += len(piece)
        return response

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        say(port=port)
        await asyncio.to_thread(sys.stdin.readline)


async def _clients(folder: Path, count: int, ports: list[int]) -> None:
    """Runs several workers with separate connections, folders and ratings of the relays."""
    await asyncio.gather(*(_client(folder / str(number), number, ports) for number in range(count)))


async def _client(folder: Path, number: int, ports: list[int]) -> None:
    relays = [_url(port) for port in ports]
    async with Client(relays, run=RUN, signer=PUBLISHER.address) as client:
        say(ready=number)
        async for fetched in client.follow(folder):
            now = time.monotonic()
            say(
                has=now,
                client=number,
                version=fetched.version,
                digest=fetched.digest,
                bad=[_bad_blocks(client, url) for url in relays],
                standing=[client.peers[url].success_at(now) for url in relays],
            )


def _bad_blocks(client: Client, url: str) -> int:
    wanted = {"peer": url, "kind": FailureKind.BAD_BLOCK.value}
    samples = (each for metric in client.metrics.errors.collect() for each in metric.samples)
    return int(sum(each.value for each in samples if each.name.endswith("_total") and each.labels == wanted))


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["origin", folder, port, versions, mebibytes, seconds]:
            asyncio.run(_origin(Path(folder), int(port), int(versions), int(mebibytes), float(seconds)))
        case ["relay", folder, port, upstream]:
            asyncio.run(_relay(Path(folder), int(port), int(upstream)))
        case ["spoiler", folder, port, upstream]:
            asyncio.run(_spoiler(Path(folder), int(port), int(upstream)))
        case ["clients", folder, count, *ports]:
            asyncio.run(_clients(Path(folder), int(count), [int(port) for port in ports]))
