"""Measures `muster serve` on vLLM beside vLLM's own OpenAI server; `python -m benchmarks.serving`.

The servers run at the same time, each with one compute thread, and answer the same load in alternating rounds: 64
clients, each of which sends its next request when it has the answer to the last one. Answers are not streamed. The
last row is Muster's engine with proofs without any server: the difference to it is the cost of the service, the rest
that of seeded draws and proofs. "by CPU s" compares tokens per CPU second of a server's processes,
which depends less on other programs.

Needs `.tools/vllm` (`make tools`). `--model` chooses the model: a shape of `benchmarks.models`, such as the default,
with random weights, so that nearly all answers have the maximum length; `smollm2`, the model of the devnet's preset; or
a folder. `--requests`, `--tokens` and `--rounds` choose the load, also by `MUSTER_BENCHMARK_ROUNDS`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order
from benchmarks.models import SHAPES, random_model
from cli.devnet.smollm2 import smollm2_folder
from protocol.identifiers import ZERO_DIGEST
from rollouts.engines.interface import SampleRequest
from rollouts.engines.opening import open_engine
from rollouts.precision import Dtype, EngineName
from rollouts.sampling.parameters import SamplingParameters

PYTHON = Path(".tools/vllm/bin/python")
CLIENTS = 64
PROMPT = 32
CONTEXT = 1024
"""Context of the served model, so that keys and values of four engines fit into the memory of a small machine."""
NAME = "model"
WANTED = 0.9


@dataclass(frozen=True, slots=True)
class Load:
    """A round: requests of each client, maximum new tokens of each answer, and whether requests have seeds."""

    requests: int
    tokens: int
    seeded: bool = True


@dataclass
class Measured:
    """A server and what was measured of it."""

    name: str
    url: str
    token: str | None
    seconds: list[float] = field(default_factory=list)
    """Latency of each request."""
    rates: list[float] = field(default_factory=list)
    """Tokens per second of each round."""
    tokens: int = 0
    cpu: float = 0.0
    """CPU seconds of the server's processes in all rounds."""
    process: psutil.Process | None = None


@contextmanager
def running(words: list[str], log: Path) -> Iterator[psutil.Process]:
    """Runs a server in the environment with vLLM."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    with log.open("wb") as out, subprocess.Popen([PYTHON, *words], env=environment, stdout=out, stderr=out) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            process.wait(60)


class EngineAlone:
    """Muster's engine in a process of its own, without a server."""

    def __init__(self, folder: Path, load: Load, log: Path) -> None:
        self._log = log.open("wb")
        words = ["--alone", str(folder), "--requests", str(load.requests), "--tokens", str(load.tokens)]
        self._process = subprocess.Popen(
            [PYTHON, "-m", "benchmarks.serving", *words],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def rate(self) -> float:
        """Generates one round's answers; returns tokens per second."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()
        self._log.close()


def engine_alone(folder: Path, load: Load) -> None:
    """Runs in the process of `EngineAlone`: generates one round for each line of standard input."""
    engine = open_engine(EngineName.VLLM, dtype=Dtype.FLOAT32, max_batch=CLIENTS)
    engine.load(folder, version=ZERO_DIGEST)
    for number, _ in enumerate(sys.stdin):
        requests = [
            SampleRequest(
                sample=place,
                prompt_tokens=tuple(2 + (place * 131 + number * 17 + at * 7) % 8000 for at in range(PROMPT)),
                seed=number.to_bytes(32, "big"),
            )
            for place in range(CLIENTS * load.requests)
        ]
        since = time.perf_counter()
        drawn = sum(
            len(one.tokens) for one in engine.generate(requests, SamplingParameters(max_new_tokens=load.tokens))
        )
        print(drawn / (time.perf_counter() - since), flush=True)
    engine.close()


async def ready(server: Measured) -> None:
    """Waits until a server answers."""
    until = time.monotonic() + 180
    async with aiohttp.ClientSession() as session:
        while True:
            try:
                async with session.get(f"{server.url}/health", timeout=aiohttp.ClientTimeout(total=60)) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            if time.monotonic() > until:
                sys.exit(f"{server.name} did not start")
            await asyncio.sleep(0.5)


async def one_round(server: Measured, load: Load, *, keep: bool) -> None:
    """Lets all clients send their requests."""
    headers = {} if server.token is None else {"Authorization": f"Bearer {server.token}"}
    drawn = 0

    async def client(session: aiohttp.ClientSession, number: int) -> None:
        nonlocal drawn
        for turn in range(load.requests):
            prompt = [2 + (number * 131 + turn * 17 + place * 7) % 8000 for place in range(PROMPT)]
            body = {"model": NAME, "prompt": prompt, "max_tokens": load.tokens}
            if load.seeded:
                body["seed"] = number
            since = time.perf_counter()
            async with session.post(f"{server.url}/v1/completions", json=body, headers=headers) as answer:
                value = await answer.json()
            if answer.status != 200:
                sys.exit(f"{server.name}: {value}")
            drawn += value["usage"]["completion_tokens"]
            if keep:
                server.seconds.append(time.perf_counter() - since)

    connector = aiohttp.TCPConnector(limit=CLIENTS)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as session:
        since, cpu = time.perf_counter(), _cpu_seconds(server.process)
        await asyncio.gather(*(client(session, number) for number in range(CLIENTS)))
        if keep:
            server.rates.append(drawn / (time.perf_counter() - since))
            server.tokens += drawn
            server.cpu += _cpu_seconds(server.process) - cpu


def _cpu_seconds(process: psutil.Process | None) -> float:
    """Returns the CPU seconds of a process and of those that it started."""
    assert process is not None
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)


async def measure(servers: list[Measured], alone: EngineAlone, load: Load, *, rounds: int) -> list[float]:
    """Measures all servers in alternating rounds; returns the rates of the engine alone."""
    for server in servers:
        await ready(server)
        await one_round(server, Load(requests=1, tokens=16), keep=False)
    alone.rate()
    rates = []
    for _ in range(rounds):
        for server in servers:
            await one_round(server, load, keep=True)
        rates.append(alone.rate())
    return rates


def main(model: str, load: Load, *, rounds: int) -> None:
    """Measures and prints."""
    if not PYTHON.exists():
        sys.exit("there is no .tools/vllm: make tools")
    with tempfile.TemporaryDirectory() as home_name:
        home = Path(home_name)
        folder = _folder_of(model, home / NAME)
        muster = ["-m", "cli", "serve", str(folder), "--engine", "vllm", "--max-batch", str(CLIENTS)]
        vllm = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--served-model-name", NAME]
        vllm += [
            "--dtype",
            "float32",
            "--max-num-seqs",
            str(CLIENTS),
            "--enforce-eager",
            "--disable-uvicorn-access-log",
        ]
        token = home / "token"
        commands = {
            "vLLM's server": [*vllm, "--port", "18101"],
            "muster serve --no-proofs": [*muster, "--port", "18102", "--token-file", str(token), "--no-proofs"],
            "muster serve": [*muster, "--port", "18103", "--token-file", str(token)],
        }
        _make_token(token)
        with ExitStack() as stack:
            processes = {name: stack.enter_context(running(words, home / name)) for name, words in commands.items()}
            secret = token.read_text().strip()
            servers = [
                Measured(
                    name,
                    f"http://127.0.0.1:{words[words.index('--port') + 1]}",
                    secret if "cli" in words else None,
                    process=processes[name],
                )
                for name, words in commands.items()
            ]
            alone = EngineAlone(folder, load, home / "engine")
            try:
                rates = asyncio.run(measure(servers, alone, load, rounds=rounds))
            finally:
                alone.close()
    title = f"{CLIENTS} clients, {PROMPT} + {load.tokens} tokens, {model}, {rounds} rounds"
    _print(servers, rates, title=title)


def _folder_of(model: str, folder: Path) -> Path:
    """Writes the model into a folder, with a context of `CONTEXT` tokens."""
    if model in SHAPES:
        return random_model(folder, model, context=CONTEXT)
    source = smollm2_folder(print) if model == "smollm2" else Path(model)
    shutil.copytree(source, folder)
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": CONTEXT}))
    return folder


def _make_token(path: Path) -> None:
    from rollouts.serving.access import token_in  # noqa: PLC0415 - loads the service, which only this needs

    token_in(path)


def _print(servers: list[Measured], alone: list[float], *, title: str) -> None:
    table = Table(title=title)
    for column in ("server", "p50", "p99", "tokens/s (median)", "of vLLM's", "by CPU s", "tokens/s by round"):
        table.add_column(column, justify="right")
    base = statistics.median(servers[0].rates)
    for one in servers:
        ordered = sorted(one.seconds)
        rate = statistics.median(one.rates)
        table.add_row(
            one.name,
            f"{statistics.median(ordered):.2f} s",
            f"{ordered[int(len(ordered) * 0.99)]:.2f} s",
            f"{rate:,.0f}",
            f"{rate / base:.0%}",
            f"{one.tokens / one.cpu / (servers[0].tokens / servers[0].cpu):.0%}",
            ", ".join(f"{each:,.0f}" for each in one.rates),
        )
    engine = statistics.median(alone)
    rates = ", ".join(f"{each:,.0f}" for each in alone)
    table.add_row("Muster's engine alone", "", "", f"{engine:,.0f}", f"{engine / base:.0%}", "", rates)
    Console(width=130).print(table)
    share = statistics.median(servers[-1].rates)
    for name, other in (("vLLM's server", base), ("the engine alone", engine)):
        met = "met" if share >= WANTED * other else "not met"
        print(f"wanted: at least {WANTED:.0%} of {name} with proofs: {share / other:.0%}, {met}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny, 2 M")
    parser.add_argument("--requests", type=int, default=2, help="requests of each client in a round")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("MUSTER_BENCHMARK_ROUNDS", "3")))
    parser.add_argument("--unseeded", action="store_true", help="requests have no seed, so vLLM draws rows together")
    parser.add_argument("--alone", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    end_in_order()
    options = _options()
    chosen = Load(requests=options.requests, tokens=options.tokens, seeded=not options.unseeded)
    if options.alone is not None:
        engine_alone(options.alone, chosen)
    else:
        main(options.model, chosen, rounds=options.rounds)
