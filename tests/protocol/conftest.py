"""Fixtures: a small real service that tests call in the same process, and keys for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
import pytest
from fastapi import Depends, FastAPI, Response
from pydantic import BaseModel
from redis.asyncio import Redis

from protocol.http.rates import Rate
from protocol.http.replay_guard import ReplayGuard
from protocol.http.serving.service import create_service
from protocol.http.verification import RequestVerifier, SignedRequest, only, signed_request
from protocol.identity.keys import Key
from protocol.redis.connection import RedisKeys
from protocol.runtime.clock import ManualClock
from tests.kit.chain import development_chain, development_process
from tests.kit.orchestrator import make_pool
from tests.kit.shardcast import client_of, origin, stack
from tests.kit.validators import pool
from tests.kit.world import founded, world

__all__ = [
    "client_of",
    "development_chain",
    "development_process",
    "founded",
    "make_pool",
    "origin",
    "pool",
    "stack",
    "world",
]

NODE = Key(b"\x11" * 32)
SERVICE = Key(b"\x22" * 32)
STRANGER = Key(b"\x33" * 32)
OTHER_SERVICE = Key(b"\x44" * 32)
BODY_LIMIT = 1000


class Note(BaseModel):
    text: str


class Seen(BaseModel):
    address: str
    text: str


def build_app(redis: Redis, clock: ManualClock) -> FastAPI:
    app = create_service("test", version="1.2.3", clock=clock, body_limit=100_000)
    app.state.verifier = RequestVerifier(
        audience=SERVICE.address,
        admission=ReplayGuard(
            redis,
            keys=RedisKeys("7"),
            rate=Rate(count=10, per=timedelta(seconds=10), burst=5),
            clock=clock,
        ),
        clock=clock,
        body_limit=BODY_LIMIT,
    )
    guard = Depends(signed_request(authorize=only(NODE.address)))

    @app.post("/v1/notes")
    @app.put("/v1/notes", operation_id="putNote")
    async def take_note(q: str = "", a: str = "", request: SignedRequest = guard) -> Response:
        return request.answer(SERVICE, Seen(address=request.address, text=request.read(Note).text))

    @app.get("/v1/notes")
    async def read_notes(q: str = "", n: int = 0, a: str = "", b: str = "", request: SignedRequest = guard) -> Seen:
        return Seen(address=request.address, text="")

    @app.get("/v1/broken")
    async def broken() -> None:
        raise RuntimeError("the password is hunter2")

    @app.get("/v1/numbers")
    async def numbers(count: int) -> int:
        return count

    return app


@pytest.fixture
def app(redis: Redis, clock: ManualClock) -> FastAPI:
    return build_app(redis, clock)


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client
