"""Fuzzes the orchestrator: no request causes a 5xx, and every answer matches its OpenAPI schema."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from requests.auth import AuthBase
from requests.models import PreparedRequest

from orchestrator.app import build_orchestrator
from orchestrator.dependencies import build_dependencies
from orchestrator.settings import OrchestratorSettings
from protocol.clients import NodeClient, OrchestratorClient
from protocol.http.tokens import TokenSetting, hash_token, new_token
from protocol.identity.keys import Key
from protocol.identity.scopes import Scope
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import SystemClock
from protocol.wire.heartbeat import Heartbeat
from protocol.wire.tasks import NewTask, TaskSpec
from tests.kit.fuzzing import Signed, fuzz, operations
from tests.kit.http_server import served
from tests.kit.memory_ledger import HARDWARE, MANAGER, POOL, SOFTWARE, MemoryLedger
from tests.kit.memory_run_ledger import RUN, MemoryRunLedger

SERVICE, NODE, STRANGER = Key.generate(), Key.generate(), Key.generate()
TOKEN, READER = new_token(), new_token()


class Bearer(AuthBase):
    """Adds a bearer token to requests."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: PreparedRequest) -> PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return request


def settings(home: Path) -> OrchestratorSettings:
    return OrchestratorSettings(
        public_url="http://127.0.0.1:1",
        pool_id=POOL,
        deployment=Path("unused"),
        secrets_key_file=home / "sealing.key",
        storage_directory=home / "objects",
        node_rate_per_s=10_000,
        node_burst=10_000,
        run=RUN,
        run_units_per_group=100,
        ledger_every_s=0.1,
        tokens=(
            TokenSetting(name="owner", scope=Scope.ADMIN, hash=hash_token(TOKEN)),
            TokenSetting(name="reader", scope=Scope.READ, hash=hash_token(READER)),
        ),
    )


LEDGER = MemoryLedger(orchestrator=SERVICE.address)
LEDGER.register(NODE.address, member=True)
CHAIN = MemoryRunLedger()
CHAIN.add_member(NODE.address)
CHAIN.announce(0)


def build(redis_url: str, home: Path) -> FastAPI:
    redis = connect_redis(redis_url)
    return build_orchestrator(settings(home), redis=redis, ledger=LEDGER, run_ledger=CHAIN, key=SERVICE)


def all_operations() -> list[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as home:
        return operations(build("redis://127.0.0.1:1/0", Path(home)), but=("/metrics", "/readyz", "/healthz"))


SPEAKERS: dict[str, AuthBase | None] = {
    "nobody": None,
    "the owner": Bearer(TOKEN),
    "a reader": Bearer(READER),
    "the manager": Signed(MANAGER, SERVICE.address),
    "the node": Signed(NODE, SERVICE.address),
    "a stranger": Signed(STRANGER, SERVICE.address),
}


@pytest.fixture(scope="module")
def place(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FastAPI, str, str]]:
    home = tmp_path_factory.mktemp("fuzzed")
    app = build(redis_server, home)
    with served(app) as url:
        task = asyncio.run(begin(url, redis_server, home))
        yield app, url, task


async def begin(url: str, redis_url: str, home: Path) -> str:
    """Creates one node with one task; returns the task's id."""
    async with NodeClient(url, key=NODE) as node, OrchestratorClient(url, token=TOKEN) as owner:
        await node.heartbeat(Heartbeat(pool_id=POOL, worker_version="0.1.0"))
        redis = connect_redis(redis_url)
        dependencies = build_dependencies(settings(home), redis=redis, ledger=LEDGER, key=SERVICE, clock=SystemClock())
        told = {"hardware": HARDWARE.model_dump_json(), "software": SOFTWARE.model_dump_json()}
        await dependencies.nodes.learn(NODE.address, told | {"labels": json.dumps({})})
        await redis.aclose()
        return (await owner.create_task(NewTask(spec=TaskSpec(name="hello", image="busybox")))).id


@pytest.mark.parametrize("operation", all_operations(), ids=" ".join)
def test_no_fuzzed_request_causes_a_server_error(place: tuple[FastAPI, str, str], operation: tuple[str, str]) -> None:
    app, url, task = place
    known: dict[str, list[object]] = {
        "node": [NODE.address],
        "task_id": [task],
        "task": [task],
        "cursor": [NODE.address],
        "after": ["0-0"],
        "state": ["healthy"],
    }
    fuzz(app, url, operation, speakers=SPEAKERS, known=known, fixed={"follow": "false"}, examples=4)


def test_the_fuzzed_service_still_serves(place: tuple[FastAPI, str, str]) -> None:
    _, url, _ = place

    async def look() -> list[str]:
        async with OrchestratorClient(url, token=TOKEN) as owner:
            await owner.create_task(NewTask(spec=TaskSpec(name="after", image="busybox")))
            return [task.spec.name async for task in owner.tasks()]

    assert asyncio.run(look())[-1] == "after"
