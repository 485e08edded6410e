"""Measures a gateway beside a direct `muster serve` of the same model; `python -m benchmarks.gateway`.

A devnet (`muster devnet --serve`) runs the gateway with one worker and no verifier. `muster serve` runs beside it on
the same machine, with one compute thread as the worker's task. Clients stream answers of at most eight tokens from
both in alternating rounds: 1, 8 and 64 clients at a time, each of which sends its next request when its answer has
ended. The model is tiny, so the figures are those of the path.

`MUSTER_BENCHMARK_ROUNDS` sets the number of rounds.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order

CLIENTS = (1, 8, 64)
REQUESTS = {1: 20, 8: 8, 64: 3}
"""Requests of each client in a round, by number of clients."""
TOKENS = 8
ROUNDS = int(os.environ.get("MUSTER_BENCHMARK_ROUNDS", "3"))
SERVE_PORT = 18_111


@dataclass
class Measured:
    """A service, and what was measured of it by number of clients."""

    name: str
    url: str
    token: str
    model: str
    first: dict[int, list[float]] = field(default_factory=dict)
    """Seconds to the first token of each request."""
    whole: dict[int, list[float]] = field(default_factory=dict)
    """Seconds to the end of each request."""
    rates: dict[int, list[float]] = field(default_factory=dict)
    """Requests per second of each round."""


@contextmanager
def devnet(directory: Path) -> Iterator[Measured]:
    """Runs a devnet with a gateway."""
    words = ["-m", "cli", "devnet", "--plain", "--serve", "--verify", "none", "--cheat", "none", "--workers", "1"]
    with subprocess.Popen(
        [sys.executable, *words, "--runtime", "process", "--directory", str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            said = []
            for line in process.stdout:
                said.append(line)
                if "ready:" in line:
                    break
            else:
                sys.exit("the devnet did not start:\n" + "".join(said[-20:]))
            port = json.loads((directory / "ports.json").read_text())["gateway"]
            token = (directory / "client-token").read_text().strip()
            yield Measured("gateway", f"http://127.0.0.1:{port}/v1", token, "devnet")
        finally:
            process.terminate()
            process.communicate()


@contextmanager
def serve(folder: Path, home: Path) -> Iterator[Measured]:
    """Runs `muster serve`."""
    token = home / "serve.token"
    words = [
        "-m",
        "cli",
        "serve",
        str(folder),
        "--name",
        "devnet",
        "--port",
        str(SERVE_PORT),
        "--token-file",
        str(token),
    ]
    with (
        (home / "serve.log").open("wb") as out,
        subprocess.Popen(
            [sys.executable, *words], env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=out, stderr=out
        ) as process,
    ):
        try:
            until = time.monotonic() + 120
            while not _answers(f"http://127.0.0.1:{SERVE_PORT}/health"):
                if time.monotonic() > until or process.poll() is not None:
                    sys.exit("muster serve did not start:\n" + (home / "serve.log").read_text()[-2000:])
                time.sleep(0.5)
            yield Measured("muster serve", f"http://127.0.0.1:{SERVE_PORT}/v1", token.read_text().strip(), "devnet")
        finally:
            process.terminate()
            process.wait(30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False, timeout=2).is_success
    except httpx.HTTPError:
        return False


async def one_round(service: Measured, clients: int, *, keep: bool) -> None:
    """Lets clients send their requests."""
    firsts: list[float] = []
    wholes: list[float] = []

    async def client(session: aiohttp.ClientSession, number: int) -> None:
        for turn in range(REQUESTS[clients]):
            prompt = f"rev:{chr(97 + number % 26)}{chr(97 + turn)}cde="
            body = {"model": service.model, "prompt": prompt, "max_tokens": TOKENS, "stream": True}
            since = time.perf_counter()
            async with session.post(f"{service.url}/completions", json=body) as answer:
                if answer.status != 200:
                    sys.exit(f"{service.name}: {await answer.text()}")
                first = None
                async for line in answer.content:
                    if first is None and line.startswith(b"data:"):
                        first = time.perf_counter() - since
                    if line.startswith(b"data:") and b'"error"' in line:
                        sys.exit(f"{service.name}: {line!r}")
            firsts.append(first or 0.0)
            wholes.append(time.perf_counter() - since)

    headers = {"Authorization": f"Bearer {service.token}"}
    timeout = aiohttp.ClientTimeout(total=300)
    connector = aiohttp.TCPConnector(limit=clients)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session:
        since = time.perf_counter()
        await asyncio.gather(*(client(session, number) for number in range(clients)))
        seconds = time.perf_counter() - since
    if keep:
        service.first.setdefault(clients, []).extend(firsts)
        service.whole.setdefault(clients, []).extend(wholes)
        service.rates.setdefault(clients, []).append(len(wholes) / seconds)


async def measure(services: list[Measured]) -> None:
    """Measures the services in alternating rounds, after one round to warm up."""
    for service in services:
        await one_round(service, 8, keep=False)
    for _ in range(ROUNDS):
        for clients in CLIENTS:
            for service in services:
                await one_round(service, clients, keep=True)


def main() -> None:
    """Measures and prints."""
    with tempfile.TemporaryDirectory() as home_name:
        home = Path(home_name)
        with devnet(home / "net") as gateway, serve(home / "net" / "policies" / "0", home) as direct:
            services = [direct, gateway]
            asyncio.run(measure(services))
    table = Table(title=f"streams of at most {TOKENS} tokens, {ROUNDS} rounds")
    for column in ("clients", "service", "requests/s", "first token p50", "p99", "whole answer p50", "p99"):
        table.add_column(column, justify="right")
    for clients in CLIENTS:
        for one in services:
            table.add_row(
                str(clients),
                one.name,
                f"{statistics.median(one.rates[clients]):.1f}",
                *(_ms(one.first[clients], share) for share in (0.5, 0.99)),
                *(_ms(one.whole[clients], share) for share in (0.5, 0.99)),
            )
    Console(width=110).print(table)


def _ms(seconds: list[float], share: float) -> str:
    ordered = sorted(seconds)
    return f"{1000 * ordered[min(len(ordered) - 1, int(len(ordered) * share))]:.0f} ms"


if __name__ == "__main__":
    end_in_order()
    main()
