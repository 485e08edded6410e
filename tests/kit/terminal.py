"""A terminal that executes `muster` commands against a served orchestrator on a real chain."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI

from protocol.runtime.clock import ManualClock
from tests.kit.command_line import run_muster
from tests.kit.run_on_chain import join_by_relay, orchestrating, publish
from tests.kit.validators import PoolWithValidators
from tests.kit.world import POOL, World


@dataclass
class Terminal:
    """Runs `muster` commands while the pool is served."""

    pool: PoolWithValidators
    config: Path
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    async def muster(self, *words: str, expect: int = 0) -> str:
        """Returns the command's output; its errors if it is expected to fail."""
        self.capsys.readouterr()  # what services logged until now is no part of its answer
        async with machine_time(self.pool.run.pool.clock):
            status = await asyncio.to_thread(run_muster, self.monkeypatch, "--config", str(self.config), *words)
        written = self.capsys.readouterr()
        assert status == expect, written.err + written.out
        return written.out if expect == 0 or not written.err else written.err

    async def asks(self, *words: str) -> Any:
        return json.loads(await self.muster(*words, "--json"))


@asynccontextmanager
async def machine_time(clock: ManualClock) -> AsyncIterator[None]:
    """Keeps a manual clock at the machine's time, because services refuse requests that are a minute off."""

    async def follow() -> None:
        while True:
            clock.jump(datetime.now(UTC) - clock.now())
            await asyncio.sleep(0.1)

    clock.jump(datetime.now(UTC) - clock.now())
    following = asyncio.create_task(follow())
    try:
        yield
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


@asynccontextmanager
async def serving(app: FastAPI, listener: socket.socket) -> AsyncIterator[None]:
    """Serves an app in the running event loop, to which its connections belong."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield  # early connections wait in the listener's queue
    finally:
        server.should_exit = True
        await task


@pytest.fixture
async def terminal(
    world: World,
    redis_url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Terminal]:
    """Yields a terminal for a pool with a served orchestrator and the keys of its node."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with AsyncExitStack() as stack:
            run = await stack.enter_async_context(orchestrating(world, redis_url, tmp_path, public_url=url))
            await run.sync.round()
            node = await join_by_relay(run, world)
            await publish(run, world, 0)
            await run.sync.round()
            monkeypatch.setattr("tests.kit.validators.URL", url)
            pool = PoolWithValidators(world, run, node, redis_url, tmp_path)
            world.deployment.save(tmp_path / "deployment.json")
            (tmp_path / "muster.toml").write_text(
                f'[chain]\nrpc = "{world.url}"\ndeployment = "deployment.json"\n'
                f'[pool]\nid = {POOL}\norchestrator = "{url}"\n'
            )
            for name in ("node", "provider", "validator"):
                monkeypatch.setenv(f"MUSTER_{name.upper()}_KEY", world.keys[name].reveal().hex())
            await stack.enter_async_context(serving(run.pool.app, listener))
            yield Terminal(pool, tmp_path / "muster.toml", capsys, monkeypatch)
            for each in pool.made:
                await each.dependencies.chain.aclose()
                await each.dependencies.remote.aclose()
                await each.dependencies.redis.aclose()
