"""An orchestrator with its run on a real chain, without background loops."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledger.amounts import UNIT
from orchestrator.app import build_orchestrator
from orchestrator.chain.pool import LedgerPool
from orchestrator.chain.run import LedgerRun
from orchestrator.loops.relayer import RETRY_PAUSE
from orchestrator.settings import OrchestratorSettings
from protocol.http.tokens import TokenSetting
from protocol.identifiers import run_id
from protocol.identity.keys import Key
from protocol.identity.scopes import Scope
from protocol.invites import Join
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import ManualClock, SystemClock
from protocol.wire.invites import SignedInvite
from protocol.wire.relayed import JoinRequest
from tests.kit.memory_ledger import PoolUnderTest
from tests.kit.memory_run_ledger import RUN, UNITS, RunUnderTest, sha
from tests.kit.orchestrator import TOKEN, TOKEN_HASH
from tests.kit.world import POOL, URL, World


@dataclass
class _NoLoops:
    """Replaces loops that these tests do not run."""

    async def round(self) -> int:
        return 0


@asynccontextmanager
async def orchestrating(
    world: World, redis_url: str, secrets: Path, *, public_url: str = URL
) -> AsyncIterator[RunUnderTest]:
    """Yields an orchestrator of the world's pool on its chain; its clock follows the chain's time."""
    # The newest block is as old as the session: leases that last from its time would be over in the chain's next block.
    await world.controls.mine(1)
    now = await (await world.as_("owner")).now()
    clock = ManualClock(start=now)
    redis = connect_redis(redis_url)
    key = world.keys["orchestrator"]
    shared: dict[str, Any] = {"pool_id": POOL, "redis": redis, "confirmations": 0, "clock": SystemClock()}
    ledger = LedgerPool(world.url, world.deployment, key=key, manager=None, **shared)
    chain = LedgerRun(world.url, world.deployment, run=run_id(RUN), relayer=key, **shared)
    settings = OrchestratorSettings(
        public_url=public_url,
        pool_id=POOL,
        deployment=Path("unused"),
        secrets_key_file=secrets / "secrets.key",
        storage_directory=secrets / "objects",
        storage_reserve_bytes=0,
        tokens=(TokenSetting(name="boss", scope=Scope.ADMIN, hash=TOKEN_HASH),),
        run=RUN,
        run_groups=8,
        run_lease_least_s=600,  # leases end in the chain's time, which goes on however slow the machine is
    )
    app = build_orchestrator(
        settings, redis=redis, ledger=ledger, run_ledger=chain, key=key, clock=clock, with_loops=False
    )
    idle: Any = _NoLoops()
    pool = PoolUnderTest(
        app=app,
        dependencies=app.state.dependencies,
        clock=clock,
        ledger=ledger,  # type: ignore[arg-type]  # the real one here
        token=TOKEN,
        liveness=idle,
        scheduler=idle,
        sync=idle,
        removals=idle,
    )
    yield RunUnderTest(pool, chain)
    await chain.aclose()
    await ledger.aclose()
    await redis.aclose()


async def join_by_relay(run: RunUnderTest, world: World) -> Key:
    """Joins the world's node through the relayer; it has sent a heartbeat and is healthy."""
    await (await world.as_("provider")).stake.add(100 * UNIT)
    await world.register()
    key = world.keys["node"]
    terms, signature = await world.invite()
    domain = run.pool.dependencies.ledger.domain
    invite = SignedInvite.of(terms, domain=domain, signature=signature)
    word = Join(invite_hash=terms.hash).sign(key, domain)
    body = JoinRequest(invite=invite, signature="0x" + word.hex()).model_dump(mode="json")
    assert (await run.pool.send(key, "/v1/joins", body)).json()["state"] == "queued"
    assert await run.relayer.round() == 1
    await run.pool.clock.turn(RETRY_PAUSE)
    assert (await run.pool.send(key, "/v1/joins", body)).json()["state"] == "carried"
    await run.pool.beat(key, pool_id=POOL)
    return key


async def publish(run: RunUnderTest, world: World, version: int) -> None:
    publisher = await world.as_("publisher")
    await publisher.checkpoints.announce(
        pool_id=POOL, run=run_id(RUN), version=version, attempt=0, digest=sha(version + 1)
    )
    body = {"version": version, "digest": sha(version + 1), "units_per_group": UNITS}
    await run.pool.owner("PUT", "/v1/run/checkpoint", body)
