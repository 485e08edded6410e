"""Fuzzes discovery: no request causes a 5xx, and every answer matches its OpenAPI schema."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from requests.auth import AuthBase

from discovery.app import build_discovery
from protocol.identity.keys import Key
from protocol.redis.connection import connect_redis
from protocol.wire.nodes import NodeRecord
from tests.kit.discovery import (
    NODE,
    ORCHESTRATOR,
    POOL,
    POOLS,
    SERVICE,
    STRANGER,
    SmallLedger,
    invite,
    registration,
    settings,
)
from tests.kit.fuzzing import Signed, fuzz, operations
from tests.kit.http_server import served

PEER = Key(b"\x2a" * 32)


def build(redis_url: str = "redis://127.0.0.1:1/0") -> FastAPI:
    ledger = SmallLedger()
    return build_discovery(
        settings(
            requests_per_second=10_000,
            ip_requests_per_second=10_000,
            peers=(f"http://127.0.0.1:1#{PEER.address}",),  # no process listens there
        ),
        key=SERVICE,
        pools=POOLS,
        redis=connect_redis(redis_url),
        ledger=ledger,
    )


OPERATIONS = operations(build(), but=("/metrics", "/readyz", "/healthz"))
SPEAKERS: dict[str, AuthBase | None] = {
    "nobody": None,
    "the node": Signed(NODE, SERVICE.address),
    "the orchestrator": Signed(ORCHESTRATOR, SERVICE.address),
    "a peer": Signed(PEER, SERVICE.address),
    "a stranger": Signed(STRANGER, SERVICE.address),
}


@pytest.fixture(scope="module")
def place(redis_server: str) -> Iterator[tuple[FastAPI, str]]:
    app = build(redis_server)
    with served(app) as url:
        put(url, NODE, "PUT", f"/v1/nodes/{NODE.address}", registration())
        yield app, url


def put(url: str, key: Any, method: str, path: str, body: Any) -> httpx.Response:
    import requests  # noqa: PLC0415 - the library that the fuzzer itself speaks with

    request = requests.Request(method, url + path, data=body.model_dump_json(), auth=Signed(key, SERVICE.address))
    with requests.Session() as session:
        answer = session.send(request.prepare(), timeout=60)
    return httpx.Response(answer.status_code, content=answer.content)


@pytest.mark.parametrize("operation", OPERATIONS, ids=" ".join)
def test_no_fuzzed_request_causes_a_server_error(place: tuple[FastAPI, str], operation: tuple[str, str]) -> None:
    app, url = place
    put(url, NODE, "PUT", f"/v1/nodes/{NODE.address}", registration())  # an earlier operation may have deleted it
    known: dict[str, list[object]] = {
        "node": [NODE.address],
        "pool_id": [POOL],
        "nonce": ["1"],
        "cursor": [NODE.address],
    }
    statuses = fuzz(app, url, operation, speakers=SPEAKERS, known=known, fixed={"wait": 0})
    assert any(status < 300 for status in statuses) or operation[0] in {"PUT", "POST"}


def test_the_fuzzed_service_still_serves(place: tuple[FastAPI, str]) -> None:
    _, url = place
    answer = put(url, NODE, "PUT", f"/v1/nodes/{NODE.address}", registration())
    assert NodeRecord.model_validate_json(answer.content).address == NODE.address
    made = invite(datetime.now(UTC))
    assert put(url, ORCHESTRATOR, "POST", f"/v1/nodes/{NODE.address}/invites", made).status_code == 204
