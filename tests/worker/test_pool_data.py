"""A worker learns the pool's discovery services, uses them when its own are dead, and finds a pool that has moved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi import FastAPI, Request, Response

from discovery.app import build_discovery
from ledger.artifacts import Contract
from ledger.devchain import free_port
from protocol.clients import DiscoveryClient
from protocol.errors import InvalidInput, MusterError
from protocol.identity.keys import Key
from protocol.identity.signing import read_stamp, sign_response
from protocol.identity.typed_data import SigningDomain
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import SystemClock
from protocol.wire.joining import JoiningInformation, LedgerDeployment
from tests.kit.discovery import NODE, ORCHESTRATOR, POOL, POOLS, SERVICE, SmallLedger, invite, registration
from tests.kit.discovery import settings as discovery_settings
from tests.kit.http_server import served
from tests.worker.test_heartbeat import ScriptedChain
from worker.chain.ledger_chain import LedgerChain
from worker.membership.joining import OrchestratorLocation
from worker.membership.pool_data import SAVED_AS, PoolData
from worker.membership.registration import Registrar
from worker.settings import WorkerSettings
from worker.situation import Situation
from worker.state import StateDirectory

DEAD = "http://127.0.0.1:9"
PUBLIC = "https://93.184.216.34"


class PoolChain(ScriptedChain):
    """A ledger with the contract that the discovery service of the tests serves."""

    @property
    def invites_domain(self) -> SigningDomain:
        return POOLS


@dataclass
class Pool:
    """An orchestrator's route `/v1/joining` on a real port, and the parts of a worker that ask it."""

    stack: ExitStack
    state: StateDirectory
    services: tuple[str, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)
    signer: Key = ORCHESTRATOR
    asked: int = 0

    def __post_init__(self) -> None:
        self.chain = PoolChain(ORCHESTRATOR.address)
        app = FastAPI()
        app.state.stopping = asyncio.Event()
        app.get("/v1/joining")(self.joining)
        self.url = self.stack.enter_context(served(app))
        self.orchestrator: str | None = None

    async def joining(self, request: Request) -> Response:
        self.asked += 1
        stamp = read_stamp(request.headers)
        contracts = {Contract.COMPUTE_POOLS.value: POOLS.contract}
        fields = {
            "pool_id": POOL,
            "deployment": LedgerDeployment(chain_id=POOLS.chain_id, block=0, contracts=contracts, version="2"),
            "discovery": self.services,
        }
        body = JoiningInformation(**(fields | self.changes)).model_dump_json().encode()
        headers = sign_response(self.signer, address=stamp.address, nonce=stamp.nonce, status=200, body=body)
        return Response(body, 200, headers, media_type="application/json")

    @asynccontextmanager
    async def worker(self, discovery: str) -> AsyncIterator[tuple[Registrar, PoolData]]:
        settings = WorkerSettings.load(
            flags={"pool_id": POOL, "discovery": [discovery], "deployment": Path("d.json"), "state": self.state.root}
        )
        clock = SystemClock()
        registrar = Registrar(
            [DiscoveryClient(each, key=NODE, clock=clock) for each in settings.discovery],
            describe=registration,
            clock=clock,
            situation=Situation(),
            longest_pause=timedelta(seconds=1),
        )
        data = PoolData(
            settings=settings,
            key=NODE,
            chain=cast("LedgerChain", self.chain),
            state=self.state,
            registrar=registrar,
            orchestrator=lambda: self.orchestrator,
            clock=clock,
        )
        try:
            yield registrar, data
        finally:
            for service in registrar.services:
                await service.aclose()


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    state = StateDirectory(tmp_path / "state")
    state.prepare()
    with ExitStack() as stack:
        yield Pool(stack, state)


@pytest.fixture
def discovery(redis_url: str) -> Iterator[str]:
    app = build_discovery(
        discovery_settings(), key=SERVICE, pools=POOLS, redis=connect_redis(redis_url), ledger=SmallLedger()
    )
    with served(app) as url:
        yield f"{url}#{SERVICE.address}"


def learned(registrar: Registrar) -> list[str]:
    return [service.location.url for service in registrar.services[1:]]


async def test_a_worker_gets_its_invite_through_a_service_of_the_pool_when_its_own_is_dead(
    pool: Pool, discovery: str
) -> None:
    pool.services, pool.chain.url = (DEAD, discovery), pool.url
    async with pool.worker(DEAD) as (registrar, data), DiscoveryClient(discovery, key=ORCHESTRATOR) as orchestrator:
        running = [asyncio.create_task(registrar.run()), asyncio.create_task(data.run())]
        async with asyncio.timeout(60):
            while not [record async for record in orchestrator.nodes(POOL)]:  # noqa: ASYNC110 - another thread serves it
                await asyncio.sleep(0.02)
            posted = invite(datetime.now(UTC))
            await orchestrator.invite(posted)
            service, found = await registrar.next_invite()
        assert (found, service.location) == (posted, registrar.services[1].location)
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await registrar.sign_off()
        assert not [record async for record in orchestrator.nodes(POOL)]

    # After a restart, also the orchestrator and the chain are down: the saved services are used at once.
    pool.chain.down = True
    async with pool.worker(DEAD) as (registrar, data):
        asking = asyncio.create_task(data.run())
        async with asyncio.timeout(60):
            while not learned(registrar):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert learned(registrar) == [discovery.partition("#")[0]]
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize(
    ("own", "services", "expected"),
    [
        (DEAD, [DEAD, f"{DEAD}/#{SERVICE.address}", PUBLIC, PUBLIC], [PUBLIC]),
        (
            DEAD,
            ["ftp://x", "http://93.184.216.34", "https://u:p@93.184.216.34", "x", PUBLIC + "#0x1", PUBLIC],
            [PUBLIC],
        ),
        (DEAD, [f"{PUBLIC}:{port}" for port in range(1, 17)], [f"{PUBLIC}:{port}" for port in range(1, 17)]),
        # The pool is not in the contributor's network, and must not lead the worker into it.
        (PUBLIC, ["https://10.0.0.1", "https://127.0.0.1", "https://169.254.169.254", "http://127.0.0.1:1"], []),
        (PUBLIC, [PUBLIC + ":444"], [PUBLIC + ":444"]),
        # A discovery service of the contributor's own network opens that address only.
        (DEAD, ["https://10.0.0.1", "http://127.0.0.1:1", "https://169.254.169.254"], ["http://127.0.0.1:1"]),
    ],
)
async def test_only_usable_services_are_added(pool: Pool, own: str, services: list[str], expected: list[str]) -> None:
    pool.services, pool.orchestrator = tuple(services), pool.url
    async with pool.worker(own) as (registrar, data):
        assert await data.ask()
        await data.ask()  # adds nothing twice
        assert learned(registrar) == expected


async def test_a_learned_name_is_checked_at_each_request_and_resolved_once(
    pool: Pool, discovery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker does not connect to a name that later resolves to a private address (DNS rebinding)."""
    port = discovery.partition("#")[0].rpartition(":")[2]
    pool.services, pool.orchestrator = (f"http://rebound.localhost:{port}",), pool.url
    answers, asked = {"rebound.localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1"}, []

    async def resolved(host: str, _: int) -> list[str]:
        asked.append(host)
        return [answers[host]]

    monkeypatch.setattr("worker.membership.reach.addresses_of", resolved)
    monkeypatch.setenv("HTTP_PROXY", DEAD)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,rebound.localhost")  # also there the name is not resolved again
    async with pool.worker(DEAD) as (registrar, data):
        assert await data.ask()
        service = registrar.services[1]
        await service.register(registration())  # the system does not know the name, so this went to the checked address
        asked.clear()
        await service.record()
        assert asked.count("rebound.localhost") == 1
        for inside in ("10.0.0.7", "169.254.169.254"):
            answers["rebound.localhost"] = inside
            with pytest.raises(InvalidInput, match=f"private address {inside}"):
                await service.record()


@pytest.mark.parametrize(
    "lie",
    [
        {"signer": NODE},
        {"changes": {"pool_id": POOL + 1}},
        {"changes": {"deployment": LedgerDeployment(chain_id=1, block=0, contracts={}, version="2")}},
    ],
)
async def test_only_the_pools_own_orchestrator_names_services(pool: Pool, lie: dict[str, Any]) -> None:
    pool.services, pool.chain.url = (PUBLIC,), pool.url
    for name, value in lie.items():
        setattr(pool, name, value)
    async with pool.worker(DEAD) as (registrar, data):
        with pytest.raises(MusterError) as refused:
            await data.ask()
        assert refused.value.code in {"forged-answer", "another-pool"}
        assert pool.asked == 1
        old = OrchestratorLocation(pool_id=POOL, url=DEAD, orchestrator=ORCHESTRATOR.address)
        assert await data.find(old) is None
        assert learned(registrar) == []
        assert pool.state.read(SAVED_AS) is None


async def test_a_silent_orchestrator_is_found_at_its_url_on_the_ledger(pool: Pool) -> None:
    old = OrchestratorLocation(
        pool_id=POOL, url=f"http://127.0.0.1:{free_port()}", orchestrator=ORCHESTRATOR.address, expiry=5
    )
    async with pool.worker(DEAD) as (registrar, data):
        assert await data.find(old) is None
        assert data.outcome == "the ledger names no URL"
        pool.chain.url = old.url
        assert await data.find(old) is None
        assert data.outcome == "the ledger names the same URL"

        pool.chain.url, pool.services = pool.url, (PUBLIC,)
        assert await data.find(old) == OrchestratorLocation(
            pool_id=POOL, url=pool.url, orchestrator=ORCHESTRATOR.address, expiry=5
        )
        assert learned(registrar) == [PUBLIC]

        pool.signer = NODE  # somebody else answers there
        assert await data.find(old) is None
        assert "did not help" in data.outcome
        pool.chain.down = True
        assert await data.find(old) is None

        # The URL of the membership comes first; the ledger's helps if nothing answers there.
        pool.chain.down, pool.signer, pool.asked, pool.orchestrator = False, ORCHESTRATOR, 0, old.url
        assert await data.ask()
        assert pool.asked == 1
    async with pool.worker(PUBLIC) as (_, data):  # an owner can't lead a worker into its own network
        assert await data.find(old) is None
        assert "private address" in data.outcome
