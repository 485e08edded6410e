"""Today's services accept the requests that the clients of former releases sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import Match

from discovery.app import build_discovery
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import ManualClock
from tests.kit.discovery import SmallLedger, settings
from tests.kit.memory_ledger import POOL, MemoryLedger
from tests.kit.memory_run_ledger import RUN, MemoryRunLedger
from tests.kit.orchestrator import TOKEN, under_test
from tests.kit.wire_examples import DOMAIN
from tests.protocol import record_requests
from tests.protocol.record_requests import AT, NODE, SERVICE, VALIDATOR

RELEASES = sorted((Path(__file__).parent / "requests").glob("*.json"))
INCOMPATIBLE = {400, 401, 405, 411, 413, 415, 422, 426, 431}
"""Statuses of an answer to a request that the service can't read or authenticate."""

Recorded = dict[str, Any]


def recorded(path: Path, *, discovery: bool) -> list[Recorded]:
    every: list[Recorded] = json.loads(path.read_text())
    return [each for each in every if each["call"].startswith("discovery.") is discovery]


async def refusals(app: FastAPI, requests: list[Recorded]) -> dict[str, str]:
    """Sends recorded requests; returns the answers that show an incompatibility, by call."""
    found = {}
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        for each in requests:
            headers = dict(each["headers"])
            if "authorization" in headers:  # a token is a secret of the service, not of the release
                headers["authorization"] = f"Bearer {TOKEN}"
            answer = await http.request(each["method"], each["target"], headers=headers, content=each["body"].encode())
            known = has_route(app, each["method"], each["target"].partition("?")[0])
            if not known or answer.status_code in INCOMPATIBLE or answer.status_code >= 500:
                found[each["call"]] = f"{answer.status_code} {answer.text}"
    return found


def has_route(app: FastAPI, method: str, path: str) -> bool:
    scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
    return any(route.matches(scope)[0] is Match.FULL for route in app.routes)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(AT)


@pytest.fixture
def orchestrator(redis_url: str, clock: ManualClock, tmp_path: Path) -> FastAPI:
    ledger = MemoryLedger(orchestrator=SERVICE.address, validators={VALIDATOR.address})
    ledger.register(NODE.address, member=True)
    more = {"run": RUN, "run_units_per_group": 100, "node_burst": 100}
    secrets, run = tmp_path / "secrets.key", MemoryRunLedger()
    return under_test(redis_url, clock, ledger, SERVICE, secrets, run_ledger=run, **more).app


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
async def test_an_orchestrator_reads_the_requests_of_former_releases(release: Path, orchestrator: FastAPI) -> None:
    requests = recorded(release, discovery=False)
    assert len(requests) > 40
    assert await refusals(orchestrator, requests) == {}


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
async def test_a_discovery_reads_the_requests_of_former_releases(
    release: Path, redis_url: str, clock: ManualClock
) -> None:
    redis = connect_redis(redis_url)
    app = build_discovery(settings(), key=SERVICE, pools=DOMAIN, redis=redis, ledger=SmallLedger(), clock=clock)
    try:
        assert await refusals(app, recorded(release, discovery=True)) == {}
    finally:
        await redis.aclose()


async def test_the_replay_notices_a_missing_route_an_unknown_field_and_a_wrong_signature(
    orchestrator: FastAPI,
) -> None:
    by_call = {each["call"]: each for each in recorded(RELEASES[-1], discovery=False)}
    task = by_call["owner.create_task"]
    wrong = [
        by_call["node.me"] | {"call": "signature", "target": "/v1/run/step"},
        task | {"call": "field", "body": task["body"][:-1] + ',"former_field":1}'},
        by_call["owner.tasks"] | {"call": "route", "target": "/v1/former"},
        by_call["owner.tasks"] | {"call": "parameter", "target": "/v1/tasks?former=1"},
    ]
    found = await refusals(orchestrator, wrong)
    assert {call: text[:3] for call, text in found.items()} == {
        "signature": "401",
        "field": "422",
        "route": "404",
        "parameter": "422",
    }


async def test_every_recorded_kind_of_request_is_still_sent_or_was_removed_on_purpose() -> None:
    """The newest recording has every call of today's clients; if this fails, record the release again."""
    sent = {(each["call"], each["method"]) for each in await record_requests.record()}
    known = {(each["call"], each["method"]) for each in json.loads(RELEASES[-1].read_text())}
    assert sent <= known
    assert POOL == record_requests.POOL
