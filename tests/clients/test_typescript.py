"""The TypeScript client: generated types, strict type check, test vectors, and calls to real services."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as sync_redis

from discovery.app import build_discovery
from orchestrator.app import build_orchestrator
from orchestrator.chain.interface import MemberEvent
from orchestrator.settings import OrchestratorSettings
from protocol.http.tokens import TokenSetting, hash_token, new_token
from protocol.identity.keys import Key
from protocol.identity.scopes import Scope
from protocol.redis.connection import connect_redis
from tests.kit import discovery, vectors
from tests.kit.http_server import served
from tests.kit.memory_ledger import POOL, MemoryLedger
from tests.kit.memory_run_ledger import RUN, MemoryRunLedger
from tests.kit.typescript import SOURCE, TypescriptClient

ROOT = Path(__file__).parents[2]
SERVICE, NODE = Key.generate(), Key.generate()
TOKEN, READER = new_token(), new_token()

pytestmark = pytest.mark.needs_node


@pytest.fixture(scope="module")
def services(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Runs an orchestrator and a discovery service; yields their places and the credentials."""
    home = tmp_path_factory.mktemp("services")
    with sync_redis.from_url(redis_server) as client:
        client.flushall()
    ledger, chain = MemoryLedger(orchestrator=SERVICE.address), MemoryRunLedger()
    ledger.register(NODE.address, member=True)
    ledger.happen(NODE.address, MemberEvent.JOINED)
    chain.add_member(NODE.address)
    chain.announce(0)
    settings = OrchestratorSettings(
        public_url="http://127.0.0.1:1",
        pool_id=POOL,
        deployment=Path("unused"),
        secrets_key_file=home / "sealing.key",
        storage_directory=home / "objects",
        node_rate_per_s=1000,
        node_burst=1000,
        ledger_every_s=0.1,
        run=RUN,
        run_units_per_group=100,
        tokens=(
            TokenSetting(name="owner", scope=Scope.ADMIN, hash=hash_token(TOKEN)),
            TokenSetting(name="reader", scope=Scope.READ, hash=hash_token(READER)),
        ),
    )
    orchestrator_app = build_orchestrator(
        settings, redis=connect_redis(redis_server), ledger=ledger, run_ledger=chain, key=SERVICE
    )
    discovery_app = build_discovery(
        discovery.settings(),
        key=discovery.SERVICE,
        pools=discovery.POOLS,
        redis=connect_redis(redis_server),
        ledger=discovery.SmallLedger(),
    )
    with served(orchestrator_app) as orchestrator_url, served(discovery_app) as discovery_url:
        yield {
            "MUSTER_ORCHESTRATOR": orchestrator_url,
            "MUSTER_ORCHESTRATOR_ADDRESS": SERVICE.address,
            "MUSTER_DISCOVERY": discovery_url,
            "MUSTER_DISCOVERY_ADDRESS": discovery.SERVICE.address,
            "MUSTER_POOL": str(POOL),
            "MUSTER_DISCOVERY_POOL": str(discovery.POOL),
            "MUSTER_NODE_KEY": "0x" + NODE.reveal().hex(),
            "MUSTER_TOKEN": TOKEN,
            "MUSTER_READER": READER,
            "MUSTER_VECTORS": str(vectors.PATH),
        }


def test_the_client_agrees_with_the_vectors_and_calls_real_services(
    typescript_client: TypescriptClient, services: dict[str, str]
) -> None:
    assert typescript_client.test("vectors", "services", settings=services) >= 30


def test_the_packages_of_the_client_are_those_of_the_suite() -> None:
    client = json.loads((SOURCE / "package.json").read_text())
    pinned = json.loads((ROOT / "deploy" / "npm" / "package.json").read_text())["devDependencies"]
    assert {**client["dependencies"], **client["devDependencies"]}.items() <= pinned.items()
