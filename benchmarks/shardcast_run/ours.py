"""Runs muster's shardcast: an origin that a trainer writes through, two relays and clients, each in its own process."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.shardcast_run.processes import Measured, all_stopped, role, say
from protocol.identity.keys import Key
from shardcast.client import Client
from shardcast.download.download import DownloadProgress
from shardcast.origin import Origin
from shardcast.relay import Relay

RUN = "benchmark"
VERSION = 1
FILE = "model.safetensors"
LOOPBACK = "127.0.0.1"
PATIENCE = 300.0

PUBLISHER = Key.from_hex("11" * 32)
"""A publisher key known to all roles, without value."""

PIECE = 4 << 20
"""Bytes that the trainer writes at a time."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of one run."""

    seconds: float
    first_block: float
    """Share of the file that was published when the first client had verified a block."""
    processes: list[Measured]


def run(source: Path, folder: Path, *, clients: int, links: Sequence[Sequence[int]] | None = None) -> Ran:
    """Runs from the trainer's first byte to the last client's last byte.

    Args:
        source: The file that the trainer writes.
        folder: The folder for all files.
        clients: The number of clients.
        links: For each client the ports by which it reaches the relays; the relays' own ports by default.
    """
    started: list[Measured] = []
    with all_stopped(started):
        origin, ports = start_tree(started, source, folder)
        fetching = start_clients(started, folder, links or [ports] * clients)
        for each in started:
            each.forget_start()
        origin.tell("go")
        began = float(origin.wait_for("began")["began"])
        ended = max(float(each.wait_for("done", patience=PATIENCE)["done"]) for each in fetching)
        first = min(float(each.wait_for("first")["first"]) for each in fetching)
        timeline = origin.wait_for("timeline", patience=PATIENCE)["timeline"]
        for each in started:
            each.look()
    total = timeline[-1][1]
    published = max((size for at, size in timeline if at <= first), default=0)
    return Ran(ended - began, published / total, started)


def start_tree(started: list[Measured], source: Path, folder: Path) -> tuple[Measured, list[int]]:
    """Starts an origin that waits for `go`, and two relays; returns the relays' ports."""
    started.append(Measured("origin", role("ours", "origin", source, folder / "origin"), folder=folder))
    origin = started[-1]
    above = origin.wait_for("port")["port"]
    relays = []
    for number in range(2):
        command = role("ours", "relay", above, folder / f"relay{number}")
        relays.append(Measured(f"relay{number}", command, folder=folder))
        started.append(relays[-1])
    return origin, [int(each.wait_for("port")["port"]) for each in relays]


def start_clients(started: list[Measured], folder: Path, links: Sequence[Sequence[int]]) -> list[Measured]:
    """Starts clients that fetch the newest version, as workers do; returns when they are ready."""
    fetching = []
    for number, ports in enumerate(links):
        command = role("ours", "client", folder / f"client{number}", *ports)
        fetching.append(Measured(f"client{number}", command, folder=folder))
        started.append(fetching[-1])
    for each in fetching:
        each.wait_for("ready")
    return fetching


async def _origin(source: Path, size: int, folder: Path, host: str) -> None:
    async with Origin(folder, run=RUN, key=PUBLISHER, host=host) as origin:
        say(port=origin.server.port)
        await asyncio.to_thread(sys.stdin.readline)
        began = time.monotonic()
        say(began=began)
        timeline: list[tuple[float, int]] = []
        watching = asyncio.create_task(_watch(origin, timeline))
        buffer = memoryview(bytearray(PIECE))
        with source.open("rb", buffering=0) as file:
            async with origin.publish(version=VERSION) as writing:
                while read := await asyncio.to_thread(file.readinto, buffer):
                    await writing.write(FILE, buffer[:read], expected=size)
        watching.cancel()
        say(timeline=[*timeline, (time.monotonic(), size)])
        await asyncio.to_thread(sys.stdin.readline)


async def _watch(origin: Origin, timeline: list[tuple[float, int]]) -> None:
    """Records the published size at each increase."""
    while (local := origin.versions.get(VERSION)) is None:
        await origin.versions.next_change()
    while True:
        timeline.append((time.monotonic(), local.present_bytes))
        await local.next_change()


async def _relay(upstream: str, folder: Path, host: str) -> None:
    relaying = Relay(
        folder, upstreams=[_url(upstream)], run=RUN, signer=PUBLISHER.address, host=host, allow_plain_http=True
    )
    async with relaying as relay:
        say(port=relay.server.port)
        await relay.run()


async def _client(folder: Path, servers: list[str]) -> None:
    seen: list[float] = []

    def progress(now: DownloadProgress) -> None:
        if now.done and not seen:
            seen.append(time.monotonic())
            say(first=seen[0])

    relays = [_url(server) for server in servers]
    async with Client(relays, run=RUN, signer=PUBLISHER.address, allow_plain_http=True) as client:
        say(ready=True)
        async for fetched in client.follow(folder, on_progress=progress):
            say(done=time.monotonic(), received=fetched.received)
            break
        await asyncio.to_thread(sys.stdin.readline)


def _url(server: str) -> str:
    """Returns the URL of `PORT` on this machine or of `HOST:PORT`."""
    return f"http://{server}" if ":" in server else f"http://{LOOPBACK}:{server}"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["origin", source, folder, *host]:
            asyncio.run(_origin(Path(source), Path(source).stat().st_size, Path(folder), *(host or [LOOPBACK])))
        case ["relay", upstream, folder, *host]:
            asyncio.run(_relay(upstream, Path(folder), *(host or [LOOPBACK])))
        case ["client", folder, *servers]:
            asyncio.run(_client(Path(folder), servers))
