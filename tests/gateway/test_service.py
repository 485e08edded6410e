"""The gateway as its operator runs it: commands, a process, and a real chain."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from gateway.chain.pool import CachedLedger, LedgerLink
from protocol.errors import NotFound
from protocol.identifiers import digest, run_id
from protocol.identity.keys import Key
from protocol.runtime.clock import SystemClock
from tests.kit.command_line import run_muster
from tests.kit.gateway import GatewayUnderTest, eventually
from tests.kit.openapi import dangling_references, lenient_requests
from tests.kit.world import POOL, World

ROOT = Path(__file__).parents[2]


async def test_the_ledger_names_orchestrator_members_and_versions(world: World) -> None:
    run, name = run_id("main"), digest(bytes([3]) * 32)
    link = LedgerLink(world.url, world.deployment, pool_id=POOL, run=run, clock=SystemClock())
    ledger = CachedLedger(link, clock=SystemClock())
    try:
        with pytest.raises(NotFound):
            await ledger.latest()
        with pytest.raises(NotFound):
            await ledger.provider_of(world.keys["node"].address)
        await world.member()
        publisher = await world.as_("publisher")
        await publisher.checkpoints.announce(pool_id=POOL, run=run, version=0, attempt=0, digest=name)
        fresh = CachedLedger(link, clock=SystemClock())
        assert await fresh.latest() == (0, name)
        assert await fresh.version(0) == name
        with pytest.raises(NotFound):
            await fresh.version(1)
        assert await fresh.provider_of(world.keys["node"].address) == world.keys["provider"].address
        assert await fresh.orchestrators() == {world.keys["orchestrator"].address}
        assert fresh.domain == publisher.work.domain
    finally:
        await link.aclose()


async def test_the_command_runs_the_service(world: World, redis_url: str, tmp_path: Path) -> None:
    world.deployment.save(tmp_path / "deployment.json")
    key = Key.generate()
    settings = {
        "POOL_ID": str(POOL),
        "RUN": "main",
        "PUBLIC_URL": "http://127.0.0.1:1",
        "DEPLOYMENT": str(tmp_path / "deployment.json"),
        "CHAIN_URL": world.url,
        "REDIS_URL": redis_url,
        "KEY": key.reveal().hex(),
    }
    environment = os.environ | {f"MUSTER_GATEWAY_{name}": value for name, value in settings.items()}
    command = [sys.executable, "-m", "cli", "gateway", "run", "--port", "0"]
    with (tmp_path / "log").open("w") as log:
        running = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            port = eventually(lambda: re.search(r'"port": ?(\d+)', (tmp_path / "log").read_text()), seconds=60)[1]
            url = f"http://127.0.0.1:{port}"
            eventually(lambda: httpx.get(f"{url}/readyz").status_code == 200, seconds=60)
            async with httpx.AsyncClient() as http:
                assert (await http.get(f"{url}/v1/identity")).json()["address"] == key.address
        finally:
            running.terminate()
            assert running.wait(30) == 0


def test_tokens_are_managed_by_commands(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "POOL_ID": "7",
        "RUN": "serving",
        "PUBLIC_URL": "http://127.0.0.1:1",
        "DEPLOYMENT": "unused",
        "REDIS_URL": redis_url,
    }.items():
        monkeypatch.setenv(f"MUSTER_GATEWAY_{name}", value)

    def run(*words: str) -> str:
        assert run_muster(monkeypatch, "gateway", *words) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    made = json.loads(run("token", "create", "app", "--json"))
    assert re.fullmatch(r"mst_[0-9a-f]{8}_[\w-]{43}", made["token"])
    said = run("token", "create", "checker", "--role", "verifier", "--days", "1", "--file", "checker.token")
    assert "mst_" not in said
    assert (tmp_path / "checker.token").stat().st_mode & 0o777 == 0o600
    assert run_muster(monkeypatch, "gateway", "token", "create", "app") == 1
    assert run_muster(monkeypatch, "gateway", "token", "create", "x", "--file", "checker.token") == 1
    assert run_muster(monkeypatch, "gateway", "token", "revoke", "nobody") == 1
    capsys.readouterr()
    run("token", "revoke", "app")
    rows = {row["name"]: row for row in json.loads(run("token", "list", "--json"))}
    assert (rows["app"]["revoked"], rows["app"]["expires"]) == (True, None)
    assert (rows["checker"]["role"], rows["checker"]["revoked"]) == ("verifier", False)
    assert made["token"] not in run("token", "list")
    status = json.loads(run("status", "--json"))
    assert status == {"sessions": 0, "in_progress": 0, "waiting": 0, "verifications": 0, "tokens_per_second": 0.0}


def test_the_schema_declares_bodies_and_the_docs_page_loads_nothing_from_elsewhere(gateway: GatewayUnderTest) -> None:
    schema = gateway.replicas[0].app.openapi()
    assert dangling_references(schema) == set()
    # Readers of answers allow more fields in a record; the gateway does not (test_sessions.py).
    assert lenient_requests(schema) == {"AnswerRecord", "RecordedSample", "RecordedSampling"}
    assert {"/v1/sessions", "/v1/verifications/take", "/v1/chat/completions"} <= schema["paths"].keys()
    page = httpx.get(f"{gateway.url}/docs").text
    assert not re.findall(r"(?:src|href)=[\"']https?:", page)
    assert httpx.post(f"{gateway.url}/v1/completions?x=1", headers={"Authorization": "Bearer x"}).status_code == 422
