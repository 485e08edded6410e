"""A whole pool as separate processes: chain, Redis, discovery, orchestrator and workers.

Tests start and kill these processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from cli.devnet.directory import DevnetDirectory
from cli.devnet.economy import found_economy, worker_names
from ledger.client import Ledger
from ledger.deployment import Deployment
from ledger.devchain import ChainProcess, free_port
from protocol.clients import OrchestratorClient
from protocol.errors import MusterError
from protocol.http.tokens import hash_token, new_token
from protocol.identity.keys import Key
from protocol.identity.scopes import Scope
from tests.kit.http_server import get_status
from worker.control import DaemonControl
from worker.situation import WorkerStatus
from worker.state import StateDirectory

T = TypeVar("T")
POOL = 1
INTERVAL_S = 0.5


@dataclass
class Program:
    """One process, with its log file."""

    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """Sends SIGKILL and waits for the end of the process."""
        self.process.kill()
        self.process.wait(60)

    def terminate(self, timeout: float = 30) -> int:
        """Sends SIGTERM and waits for the end of the process; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)


@dataclass
class Pool:
    """The services of the pool, and a client of the orchestrator for its owner."""

    home: Path
    chain: ChainProcess
    redis_url: str
    deployment: Deployment
    keys: dict[str, Key]
    stack: ExitStack
    settings: dict[str, str] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    programs: dict[str, Program] = field(default_factory=dict)
    states: dict[str, Path] = field(default_factory=dict)
    token: str = field(default_factory=new_token)

    @property
    def orchestrator_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['orchestrator']}"

    def owner(self) -> OrchestratorClient:
        return OrchestratorClient(self.orchestrator_url, token=self.token)

    async def start_discovery(self) -> None:
        port = self.ports.setdefault("discovery", free_port())
        environment = {
            "MUSTER_DISCOVERY_KEY": "0x" + self.keys["discovery"].reveal().hex(),
            "MUSTER_DISCOVERY_REDIS_URL": self.redis_url,
            "MUSTER_DISCOVERY_CHAIN_URL": self.chain.url,
            "MUSTER_DISCOVERY_DEPLOYMENT": str(self.home / "deployment.json"),
            "MUSTER_DISCOVERY_PORT": str(port),
        }
        self._start("discovery", ["discovery", "serve"], environment)
        await self._ready("discovery", port)

    async def start_orchestrator(self) -> None:
        port = self.ports.setdefault("orchestrator", free_port())
        tokens = [{"name": "test", "scope": Scope.ADMIN.value, "hash": hash_token(self.token)}]
        environment = {
            "MUSTER_ORCHESTRATOR_KEY": "0x" + self.keys["orchestrator"].reveal().hex(),
            "MUSTER_ORCHESTRATOR_MANAGER_KEY": "0x" + self.keys["manager"].reveal().hex(),
            "MUSTER_ORCHESTRATOR_PUBLIC_URL": self.orchestrator_url,
            "MUSTER_ORCHESTRATOR_POOL_ID": str(POOL),
            "MUSTER_ORCHESTRATOR_REDIS_URL": self.redis_url,
            "MUSTER_ORCHESTRATOR_CHAIN_URL": self.chain.url,
            "MUSTER_ORCHESTRATOR_DEPLOYMENT": str(self.home / "deployment.json"),
            "MUSTER_ORCHESTRATOR_DISCOVERY": json.dumps([f"http://127.0.0.1:{self.ports['discovery']}"]),
            "MUSTER_ORCHESTRATOR_TOKENS": json.dumps(tokens),
            "MUSTER_ORCHESTRATOR_SECRETS_KEY_FILE": str(self.home / "secrets.key"),
            "MUSTER_ORCHESTRATOR_STORAGE_DIRECTORY": str(self.home / "objects"),
            "MUSTER_ORCHESTRATOR_STORAGE_RESERVE_BYTES": "0",
            "MUSTER_ORCHESTRATOR_PORT": str(port),
            "MUSTER_ORCHESTRATOR_SHORTEST_INTERVAL_S": str(INTERVAL_S),
            "MUSTER_ORCHESTRATOR_DISCOVERY_EVERY_S": "0.3",
            "MUSTER_ORCHESTRATOR_LEDGER_EVERY_S": "0.3",
            "MUSTER_ORCHESTRATOR_REMOVALS_EVERY_S": "0.5",
            # The deadline is many intervals long, because a worker takes that long to restart on a busy machine.
            "MUSTER_ORCHESTRATOR_DEAD_AFTER": "120",
            **self.settings,
        }
        self._start("orchestrator", ["orchestrator", "serve"], environment)
        await self._ready("orchestrator", port)

    def start_worker(self, name: str = "node", *, runtime: str = "process", **changes: str) -> Program:
        environment = {
            "MUSTER_WORKER_POOL_ID": str(POOL),
            "MUSTER_WORKER_DISCOVERY": json.dumps([f"http://127.0.0.1:{self.ports['discovery']}"]),
            "MUSTER_WORKER_CHAIN_URL": self.chain.url,
            "MUSTER_WORKER_DEPLOYMENT": str(self.home / "deployment.json"),
            "MUSTER_NODE_KEY": "0x" + self.keys[name].reveal().hex(),
            "MUSTER_WORKER_STATE": str(self.state_of(name).root),
            "MUSTER_WORKER_RUNTIME": runtime,
            "MUSTER_WORKER_WAIT_AT_MOST_S": "1",
            **changes,
        }
        return self._start(f"worker-{name}", ["worker", "run"], environment)

    def state_of(self, name: str) -> StateDirectory:
        return StateDirectory(self.states.get(name, self.home / f"state-{name}"))

    def control(self, name: str = "node") -> DaemonControl:
        return DaemonControl(self.state_of(name))

    async def status(self, name: str = "node") -> WorkerStatus | None:
        try:
            return await asyncio.to_thread(self.control(name).status)
        except MusterError:
            return None

    def ledger(self, name: str) -> Any:
        return Ledger.connect(self.chain.url, self.deployment, key=self.keys[name])

    def _start(self, name: str, command: list[str], environment: dict[str, str]) -> Program:
        log = self.home / f"{name}-{secrets.token_hex(3)}.log"
        output = self.stack.enter_context(log.open("wb"))
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("MUSTER_")}
        process = subprocess.Popen(
            [sys.executable, "-m", "cli", *command],
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            env=inherited | environment,
        )
        self.stack.callback(end, process)
        self.programs[name] = Program(process, log)
        return self.programs[name]

    async def _ready(self, name: str, port: int) -> None:
        async def asked() -> bool:
            assert self.programs[name].process.poll() is None, self.programs[name].log.read_text()[-3000:]
            return await asyncio.to_thread(get_status, port, "/readyz") == 200

        await until(asked, what=f"{name} is ready")


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process in whatever state it is."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


async def until(question: Callable[[], Awaitable[T | bool | None]], *, what: str, within: float = 90) -> T:
    """Calls a function repeatedly until its result is true; returns that result."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        answer = await question()
        if answer:
            return answer  # type: ignore[return-value]  # neither None nor False
        await asyncio.sleep(0.05)
    raise AssertionError(f"not within {within} s: {what}")


async def found_pool(home: Path, chain: ChainProcess, redis_url: str, stack: ExitStack) -> Pool:
    """Deploys the contracts and sets up the pool, without starting processes.

    The nodes `node`, `node-2` and `node-3` are registered and staked.
    """
    directory, pairs = DevnetDirectory(home), worker_names(3)
    economy = await found_economy(chain.url, chain.chain_id, directory, workers=pairs, on_event=lambda _: None)
    keys = dict(economy.keys)
    for ours, (provider, node) in zip(("", "-2", "-3"), pairs, strict=True):
        keys[f"node{ours}"], keys[f"provider{ours}"] = keys[node], keys[provider]
    return Pool(home, chain, redis_url, economy.deployment, keys, stack)
