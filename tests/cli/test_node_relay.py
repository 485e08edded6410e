"""`muster node register --relay` against an orchestrator with its relayer, on real contracts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cli.ledger import relayed_registration
from ledger.amounts import UNIT
from orchestrator.app import build_orchestrator
from orchestrator.chain.pool import LedgerPool
from orchestrator.chain.run import LedgerRun
from orchestrator.settings import OrchestratorSettings
from protocol.identifiers import run_id
from protocol.identity.keys import Key
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import SystemClock
from tests.kit.chain import development_chain, development_process
from tests.kit.command_line import run_muster
from tests.kit.http_server import served
from tests.kit.memory_run_ledger import RUN
from tests.kit.world import POOL, World, founded, world

__all__ = ["development_chain", "development_process", "founded", "world"]  # fixtures


@dataclass
class Provider:
    """A provider without coin, a node, and the pool's orchestrator."""

    world: World
    key: Key
    node: Key
    config: Path
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    async def register(self, *words: str, expect: int = 0) -> str:
        self.capsys.readouterr()
        arguments = ("--config", str(self.config), "node", "register", "--relay", *words)
        status = await asyncio.to_thread(run_muster, self.monkeypatch, *arguments)
        written = self.capsys.readouterr()
        assert status == expect, written.err
        return written.err if expect else written.out

    async def stake(self, must: int) -> None:
        """Gives the provider stake; another account pays."""
        owner = await self.world.as_("owner")
        await owner.stake.add_for(self.key.address, must * UNIT)


@pytest.fixture
def provider(
    world: World,
    redis_url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Provider]:
    relayer = world.keys["orchestrator"]
    shared: dict[str, Any] = {
        "pool_id": POOL,
        "redis": connect_redis(redis_url),
        "confirmations": 0,
        "clock": SystemClock(),
    }
    settings = OrchestratorSettings(
        public_url="http://127.0.0.1:1",
        pool_id=POOL,
        deployment=Path("unused"),
        secrets_key_file=tmp_path / "secrets.key",
        storage_directory=tmp_path / "objects",
        storage_reserve_bytes=0,
        run=RUN,
    )
    app = build_orchestrator(
        settings,
        redis=shared["redis"],
        ledger=LedgerPool(world.url, world.deployment, key=relayer, manager=None, **shared),
        run_ledger=LedgerRun(world.url, world.deployment, run=run_id(RUN), relayer=relayer, **shared),
        key=relayer,
    )
    key, node = Key.generate(), Key.generate()
    monkeypatch.setenv("MUSTER_PROVIDER_KEY", key.reveal().hex())
    monkeypatch.setenv("MUSTER_NODE_KEY", node.reveal().hex())
    world.deployment.save(tmp_path / "deployment.json")
    with served(app) as url:
        config = tmp_path / "muster.toml"
        chain = f'[chain]\nrpc = "{world.url}"\ndeployment = "deployment.json"\n'
        config.write_text(f'{chain}[pool]\nid = {POOL}\norchestrator = "{url}"\n')
        yield Provider(world, key, node, config, capsys, monkeypatch)


async def test_a_provider_without_coin_registers_a_node_through_the_pools_relayer(provider: Provider) -> None:
    await provider.stake(100)
    registry = (await provider.world.as_("owner")).registry
    assert "would ask http://127.0.0.1" in await provider.register("--dry-run")
    assert await registry.node(provider.node.address) is None

    done = json.loads(await provider.register("--capacity", "2", "--json"))
    assert (done["provider"], done["transactions"]) == (provider.key.address, [])
    entry = await registry.node(provider.node.address)
    assert entry is not None
    assert (entry.provider, entry.capacity) == (provider.key.address, 2)
    assert "already registered by you" in await provider.register(expect=1)


async def test_a_registration_that_is_not_relayed_ends_with_the_reason(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "free stake" in await provider.register(expect=75)
    monkeypatch.setattr(relayed_registration, "RELAYER_TIMEOUT", timedelta())
    assert "did not register" in await provider.register(expect=75)
    plain = ("--config", str(provider.config), "node", "register", "--orchestrator", "http://127.0.0.1:1")
    assert await asyncio.to_thread(run_muster, monkeypatch, *plain) == 1
    assert "give --relay" in provider.capsys.readouterr().err
