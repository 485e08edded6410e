"""Validators on a real Redis and a real chain, with a real orchestrator and its store.

Tests run the loops step by step. Only the examiner is scripted; tests/validator/examination tests the real one.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from ledger.client import Ledger
from ledger.client.work import WorkRecord as LedgerWork
from ledger.events.types import VerdictGiven
from ledger.transactions.pending import SendPolicy
from orchestrator.storage.local import LocalStore
from protocol.clients import NodeClient, OrchestratorClient
from protocol.http.client import RequestSigner
from protocol.http.object_transfer import ObjectTransfer
from protocol.identifiers import Digest, digest
from protocol.identity.keys import Key
from protocol.leases import WorkClaim
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import Clock, ManualClock, SystemClock
from protocol.wire.audits import AuditFile
from protocol.wire.leases import SignedWorkClaim
from protocol.wire.slots import SlotGrant
from protocol.wire.uploads import ObjectKey
from tests.kit.memory_run_ledger import RunUnderTest
from tests.kit.redis_aging import age
from tests.kit.run_on_chain import join_by_relay, orchestrating, publish
from tests.kit.scripted_examiner import ScriptedExaminer
from tests.kit.world import POOL, URL, World
from validator.app import build_validator
from validator.chain.connection import PoolChain
from validator.dependencies import Dependencies, Remote
from validator.loops.background import ValidatorLoops, update_health
from validator.settings import ValidatorSettings

SENDING = SendPolicy(poll=timedelta(milliseconds=20))


@dataclass
class ValidatorUnderTest:
    """A validator; tests run its loops step by step."""

    app: FastAPI
    dependencies: Dependencies
    examiner: ScriptedExaminer
    loops: ValidatorLoops
    key: Key

    async def read(self) -> int:
        """Says how it is, and reads the ledger's events."""
        await update_health(self.dependencies)
        return await self.loops.intake.round()

    async def judge(self) -> int:
        """Reads, examines, and gives verdicts; returns how many the ledger took."""
        await self.read()
        await self.loops.judging.round()
        return await self.loops.verdict_senders[0].round()

    async def get(self, path: str, method: str = "GET", body: Any = None, *, key: Key | None = None) -> httpx.Response:
        """A request to its API, signed by its own key, or another."""
        signer = RequestSigner(key or self.key, audience=self.key.address, clock=self.dependencies.clock)
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://validator", auth=signer) as http:
            return await http.request(method, path, json=body)

    async def status(self) -> Any:
        answer = await self.get("/v1/status")
        assert answer.status_code == 200, answer.text
        return answer.json()


@dataclass(frozen=True)
class Host:
    """The machine that a validator runs on, where it is not like all others."""

    clock: ManualClock | None = None
    chain_url: str | None = None
    transport: httpx.AsyncBaseTransport | None = None
    orchestrator: str | None = None
    """Where it is reached over TCP."""
    store_timeout: timedelta = timedelta(minutes=1)
    sending: SendPolicy = SENDING
    numerics: tuple[str, ...] = ()
    """Numerics classes that its examiner can verify."""


@dataclass
class PoolWithValidators:
    """A pool on a chain with an orchestrator, a node that is a member, and as many validators as a test makes."""

    world: World
    run: RunUnderTest
    node: Key
    url: str
    directory: Path
    made: list[ValidatorUnderTest] = field(default_factory=list)
    submitted: int = 0

    def validator(
        self, name: str = "validator", *, redis: int = 1, live: bool = False, host: Host | None = None, **more: Any
    ) -> ValidatorUnderTest:
        """Makes a validator; those of one Redis database share a queue. A live one turns its loops by itself."""
        key, turned, host = self.world.keys[name], self.run.pool.clock, host or Host()
        clock: Clock = host.clock or turned
        if live:
            clock = SystemClock()
            turned.jump(clock.now() - turned.now())
        place = self.directory / f"validator-{len(self.made)}"
        told: dict[str, Any] = {"workers": 1, "reserve_bytes": 0, "takeover_s": 0, **more}
        url = host.orchestrator or URL
        settings = ValidatorSettings(pool_id=POOL, orchestrator=url, deployment=Path("unused"), directory=place, **told)
        examiner = ScriptedExaminer()
        here = httpx.ASGITransport(app=self.run.pool.app, raise_app_exceptions=False)
        transport = None if host.orchestrator else host.transport or here
        shared: Any = {"key": key, "clock": clock, "transport": transport, "allow_plain_http": True}
        app = build_validator(
            settings,
            redis=connect_redis(f"{self.url}?db={redis}", retries=0),
            chain=PoolChain(
                host.chain_url or self.world.url,
                self.world.deployment,
                key=key,
                pool_id=POOL,
                confirmations=settings.confirmations,
                clock=SystemClock(),
                policy=host.sending,
            ),
            remote=Remote(
                reader=OrchestratorClient(url, **shared),
                writer=NodeClient(url, **shared),
                transfer=ObjectTransfer(
                    url, clock=clock, transport=transport, allow_plain_http=True, timeout=host.store_timeout
                ),
            ),
            examiner=examiner,
            key=key,
            clock=clock,
            numerics=lambda: host.numerics,
            with_loops=live,
        )
        dependencies = app.state.dependencies
        loops = app.state.built_loops
        assert isinstance(dependencies, Dependencies)
        assert isinstance(loops, ValidatorLoops)
        dependencies.files.clear()
        made = ValidatorUnderTest(app, dependencies, examiner, loops, key)
        self.made.append(made)
        return made

    async def turn(self, by: timedelta) -> None:
        """Moves the clock of all parts, including Redis' entries."""
        await self.run.pool.clock.turn(by)
        made = [each.dependencies for each in self.made]
        for one in {each.redis.connection_pool.connection_kwargs["db"]: each for each in made}.values():
            await age(one.redis, one.keys.prefix, by)

    async def submit(self, content: bytes | None = None, *, uploaded: bool = True, step: int = 0) -> Digest:
        """Leases a slot, uploads a file, and has the work carried to the ledger; its key."""
        self.submitted += 1
        content = content if content is not None else b"file %d" % self.submitted
        grant = await self.run.lease(self.node, step=step, groups=1)
        signed = signed_work(self.node, grant, content)
        path = self.path_of(signed.sha256)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        answer = await self.run.hand_in(self.node, signed, uploaded=False)
        assert answer.status_code == 200, answer.text
        assert await self.run.relayer.round() == 1
        await self.run.sync.round()
        if not uploaded:
            path.unlink()
        return grant.lease.lease.key.hash

    def path_of(self, sha256: Digest) -> Path:
        """Where the store keeps a file of the node."""
        store = self.run.pool.dependencies.objects
        assert isinstance(store, LocalStore)
        return store.path(ObjectKey(pool_id=POOL, owner=self.node.address, sha256=sha256))

    async def work(self, key: Digest) -> LedgerWork:
        """The work as the ledger has it."""
        found = await (await self.ledger()).work.get(key)
        assert found is not None
        return found

    async def ledger(self) -> Ledger:
        return await self.world.as_("owner")

    async def audit(self, validator: ValidatorUnderTest, key: Digest) -> AuditFile:
        """Returns the audit file of a verdict on the ledger."""
        given = [each for each in await (await self.ledger()).history(VerdictGiven, pool_id=POOL) if each.key == key]
        store = self.run.pool.dependencies.objects
        assert isinstance(store, LocalStore)
        name = ObjectKey(pool_id=POOL, owner=validator.key.address, sha256=given[-1].audit_hash, audit=True)
        content = store.path(name).read_bytes()
        assert digest(hashlib.sha256(content).digest()) == given[-1].audit_hash
        return AuditFile.decode(content)


def signed_work(node: Key, grant: SlotGrant, content: bytes) -> SignedWorkClaim:
    """What a node hands in for a file."""
    sha256 = digest(hashlib.sha256(content).digest())
    words = WorkClaim(lease_hash=grant.lease.lease.hash, sha256=sha256, units=7)
    return SignedWorkClaim(
        lease=grant.lease, sha256=sha256, units=7, signature="0x" + words.sign(node, grant.lease.domain).hex()
    )


@pytest.fixture
async def pool(world: World, redis_url: str, tmp_path: Path) -> AsyncIterator[PoolWithValidators]:
    """A pool with one member and a first version."""
    async with AsyncExitStack() as stack:
        run = await stack.enter_async_context(orchestrating(world, redis_url, tmp_path))
        await run.sync.round()
        node = await join_by_relay(run, world)
        await publish(run, world, 0)
        await run.sync.round()
        pool = PoolWithValidators(world, run, node, redis_url, tmp_path)
        yield pool
        for each in pool.made:
            await each.dependencies.chain.aclose()
            await each.dependencies.remote.aclose()
            await each.dependencies.redis.aclose()
