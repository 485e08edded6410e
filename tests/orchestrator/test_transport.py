"""The orchestrator reaches other services through the HTTP transport that it is given."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from orchestrator.app import build_orchestrator
from orchestrator.settings import OrchestratorSettings
from protocol.identity.keys import Key
from protocol.redis.connection import connect_redis
from tests.kit.memory_ledger import POOL, MemoryLedger

KEY = Key.generate()
DISCOVERY = f"https://discovery.example#{Key.generate().address}"


async def test_discovery_is_asked_through_the_transport(redis_url: str, tmp_path: Path) -> None:
    requests: asyncio.Queue[httpx.Request] = asyncio.Queue()

    async def answer(request: httpx.Request) -> httpx.Response:
        await requests.put(request)
        return httpx.Response(503)

    app = build_orchestrator(
        OrchestratorSettings(
            public_url="http://127.0.0.1:1",
            pool_id=POOL,
            deployment=Path("unused"),
            storage_directory=tmp_path / "objects",
            discovery=(DISCOVERY,),
        ),
        redis=connect_redis(redis_url),
        ledger=MemoryLedger(KEY.address),
        key=KEY,
        transport=httpx.MockTransport(answer),
    )
    async with app.router.lifespan_context(app), asyncio.timeout(20):
        request = await requests.get()
    assert request.url.host == "discovery.example"
