"""A run on a real chain: joined, leased, carried, judged and read, and rebuilt after Redis was lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ledger.amounts import UNIT
from ledger.client.pools import Role
from ledger.client.work import WorkStatus
from orchestrator.app import build_orchestrator
from orchestrator.chain.pool import LedgerPool
from orchestrator.chain.run import LedgerRun
from orchestrator.loops.relayer import RETRY_PAUSE
from orchestrator.settings import OrchestratorSettings
from protocol.http.tokens import TokenSetting
from protocol.identifiers import Digest, run_id
from protocol.identity.keys import Key
from protocol.identity.scopes import Scope
from protocol.invites import Join
from protocol.leases import Dispute
from protocol.redis.connection import connect_redis
from protocol.runtime.clock import ManualClock, SystemClock
from protocol.verdicts import Outcome
from protocol.wire.invites import SignedInvite
from protocol.wire.relayed import JoinRequest
from protocol.wire.slots import SlotGrant
from tests.ledger.client.conftest import POOL, URL, World, founded, world
from tests.ledger.client.verdicts import verdict_on
from tests.ledger.conftest import development_chain, development_process
from tests.orchestrator.conftest import TOKEN, TOKEN_HASH
from tests.orchestrator.edge import PoolUnderTest
from tests.orchestrator.runs.edge import RUN, UNITS, RunUnderTest, sha

__all__ = ["development_chain", "development_process", "founded", "world"]


@dataclass
class _NoLoops:
    """Stands where loops are that these tests do not turn."""

    async def round(self) -> int:
        return 0


@asynccontextmanager
async def orchestrating(
    world: World, redis_url: str, secrets: Path, *, public_url: str = URL
) -> AsyncIterator[RunUnderTest]:
    """An orchestrator of the world's pool on its chain; its time is the chain's."""
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
    """The world's node takes an invite and has it carried; it is heard of, and healthy."""
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


async def hand_in(run: RunUnderTest, key: Key, grant: SlotGrant, *, file: int) -> Digest:
    answer = await run.hand_in(key, run.signed(key, grant, file=file))
    assert answer.status_code == 200, answer.text
    return grant.lease.lease.key.hash


async def test_from_joining_without_gas_to_accepted_work_and_back_from_the_ledger_alone(
    world: World, redis_url: str, tmp_path: Path
) -> None:
    async with orchestrating(world, redis_url, tmp_path) as run:
        await run.sync.round()
        key = await join_by_relay(run, world)
        await publish(run, world, 0)
        await run.sync.round()
        ledger = await world.as_("validator")

        first, second = await run.lease(key, groups=3), await run.lease(key, groups=2)
        membership = await ledger.pools.membership(POOL, key.address)
        announced = await ledger.checkpoints.get(POOL, run_id(RUN), 0)
        assert membership is not None
        assert announced is not None
        assert first.lease.beacon_block == max(membership.joined_block, announced.block)
        block = await ledger.web3.eth.get_block(first.lease.beacon_block)
        assert first.beacon == "0x" + bytes(block["hash"]).hex()

        good, bad = await hand_in(run, key, first, file=1), await hand_in(run, key, second, file=2)
        assert await run.relayer.round() == 2
        for work in (good, bad):
            found = await ledger.work.get(work)
            assert found is not None
            assert (found.node, found.status, found.units) == (key.address, WorkStatus.SUBMITTED, 7)
        refused = await run.chain.work_refusals([run.signed(key, first, file=1)])
        assert [(each.subject, each.error) for each in refused] == [(good, "WorkExists")], "asked, and not paid for"
        await run.sync.round()
        assert (await run.view())["pending"] == 5

        verdicts = [(good, Outcome.ACCEPTED, 0), (bad, Outcome.FORGED, 900)]
        given = [await verdict_on(ledger, k, outcome, reason=why, audit_hash=sha(77)) for k, outcome, why in verdicts]
        await ledger.work.judge(given)
        await run.sync.round()
        [accepted], [rejected] = await run.rollouts(), await run.rollouts(status="rejected")
        assert (accepted["key"], accepted["groups"], accepted["audit_hash"]) == (good, 3, sha(77))
        assert (rejected["key"], rejected["reason"], rejected["outcome"]) == (bad, 900, 3)
        listed = await run.rollouts(status="all")

        # Redis is lost, and everything with it.
        await run.pool.dependencies.redis.flushall()
        run.chain.forget_position()
        await run.sync.round()
        view = await run.view()
        assert (view["accepted"], view["rejected"], view["leased"]) == (3, 2, 0)
        again = await run.rollouts(status="all")
        assert {item["beacon_block"] for item in listed} == {first.lease.beacon_block}
        forgotten = {"submitted_at_ms"}  # the time at which the ledger was read
        assert [_without(item, forgotten) for item in again] == [_without(item, forgotten) for item in listed]


async def test_a_version_names_the_key_that_announced_it_while_both_of_the_publishers_count(
    world: World, redis_url: str, tmp_path: Path
) -> None:
    async with orchestrating(world, redis_url, tmp_path) as run:
        await run.sync.round()
        await publish(run, world, 0)
        owner, former = await world.as_("owner"), world.keys["publisher"].address
        until = await owner.now() + timedelta(hours=1)
        await owner.pools.set_role(POOL, Role.PUBLISHER, world.keys["validator"].address, previous_until=until)
        chain = run.chain
        announced = await chain.announced(0)
        assert announced is not None
        assert await chain.publisher_of(announced) == former
        await world.warp(timedelta(hours=2))
        assert await chain.publisher_of(announced) == world.keys["validator"].address


async def test_a_node_without_gas_defends_itself(world: World, redis_url: str, tmp_path: Path) -> None:
    async with orchestrating(world, redis_url, tmp_path) as run:
        await run.sync.round()
        key = await join_by_relay(run, world)
        await publish(run, world, 0)
        await run.sync.round()
        work = await hand_in(run, key, await run.lease(key), file=1)
        await run.relayer.round()
        ledger = await world.as_("validator")
        await ledger.work.judge([await verdict_on(ledger, work, Outcome.FORGED, reason=900, audit_hash=sha(77))])
        await run.sync.round()

        deadline = int(run.pool.clock.now().timestamp()) + 600
        word = Dispute(key=work, evidence_hash=sha(78), deadline=deadline).sign(key, run.chain.domain)
        body = {"key": work, "evidence_hash": sha(78), "deadline": deadline, "signature": "0x" + word.hex()}
        assert (await run.pool.send(key, "/v1/disputes", body)).json()["state"] == "queued"
        assert await run.relayer.round() == 1
        standing = await ledger.work.get(work)
        assert standing is not None
        assert (standing.status, standing.disputer) == (WorkStatus.DISPUTED, key.address)
        assert (await run.pool.send(key, "/v1/disputes", body)).json()["state"] == "carried"


async def test_a_relayer_that_dies_after_the_transaction_carries_nothing_twice(
    world: World, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with orchestrating(world, redis_url, tmp_path) as run:
        await run.sync.round()
        key = await join_by_relay(run, world)
        await publish(run, world, 0)
        await run.sync.round()
        grant = await run.lease(key)
        work = await hand_in(run, key, grant, file=1)

        with monkeypatch.context() as patch:
            patch.setattr(run.relayer, "_settle", _die)
            with pytest.raises(_Killed):
                await run.relayer.round()
        sent = await (await world.as_("owner")).web3.eth.get_transaction_count(world.keys["orchestrator"].address)
        await run.pool.clock.turn(RETRY_PAUSE + timedelta(seconds=1))
        await run.relayer.round()
        after = await (await world.as_("owner")).web3.eth.get_transaction_count(world.keys["orchestrator"].address)
        assert after == sent, "it was looked up on the ledger, and no gas was paid again"
        answer = await run.pool.send(key, f"/v1/submissions/{work}", None, method="GET")
        assert answer.json()["state"] == "carried"


async def test_an_announced_withdrawal_is_leased_no_more(world: World, redis_url: str, tmp_path: Path) -> None:
    async with orchestrating(world, redis_url, tmp_path) as run:
        await run.sync.round()
        key = await join_by_relay(run, world)
        await publish(run, world, 0)
        await run.sync.round()
        await run.lease(key, groups=1)
        owner = await world.as_("owner")
        escrow = await owner.pools.escrow(POOL)
        await owner.pools.announce_withdrawal(POOL, escrow.free)
        await run.sync.round()
        assert (await run.chain.funds()).free == 0
        assert "escrow can't pay" in (await run.ask(key)).json()["detail"]
        await owner.pools.announce_withdrawal(POOL, 0)
        await run.sync.round()
        funds, terms = await run.chain.funds(), await owner.pools.terms(POOL)
        assert (funds.free, funds.fees, funds.notice) == (escrow.free, terms.reserved_fees, terms.notice_period)
        assert (await run.lease(key, groups=1)).lease.groups == 1


async def test_work_of_a_node_that_was_evicted_is_carried_and_of_a_forger_is_not(
    world: World, redis_url: str, tmp_path: Path
) -> None:
    async with orchestrating(world, redis_url, tmp_path) as run:
        await run.sync.round()
        key = await join_by_relay(run, world)
        await publish(run, world, 0)
        await run.sync.round()
        first, second, _ = [await run.lease(key, groups=1) for _ in range(3)]
        await (await world.as_("manager")).pools.evict(POOL, key.address, "we want others")
        await run.sync.round()
        assert (await run.view())["spare"] == 3
        assert await run.chain.seat(key.address) is None
        assert await run.chain.held_until(key.address) >= first.lease.expiry
        work, forged = await hand_in(run, key, first, file=1), await hand_in(run, key, second, file=2)
        assert await run.relayer.round() == 2

        ledger = await world.as_("validator")
        given = [(work, Outcome.ACCEPTED, 0), (forged, Outcome.FORGED, 900)]
        await ledger.work.judge([await verdict_on(ledger, k, what, reason=why) for k, what, why in given])
        await world.warp((await ledger.pools.terms(POOL)).challenge_period + timedelta(seconds=1))
        await ledger.work.finalize([work])
        assert await ledger.work.accrued(POOL, world.keys["provider"].address) > 0
        await run.sync.round()
        assert (await run.view())["spare"] == 1
        await ledger.work.finalize([forged])
        await run.sync.round()
        assert await run.chain.held_until(key.address) == 0
        assert (await run.view())["spare"] == 0


async def test_a_banned_providers_leases_are_set_aside(world: World, redis_url: str, tmp_path: Path) -> None:
    async with orchestrating(world, redis_url, tmp_path) as run:
        await run.sync.round()
        key = await join_by_relay(run, world)
        await publish(run, world, 0)
        await run.sync.round()
        grant = await run.lease(key, groups=1)
        await (await world.as_("manager")).pools.ban_provider(POOL, world.keys["provider"].address, "a test")
        await run.sync.round()
        assert (await run.view())["spare"] == 1
        await hand_in(run, key, grant, file=1)
        assert await run.relayer.round() == 1


class _Killed(BaseException):
    """As `kill -9`: nothing after it runs."""


async def _die(*_: object, **__: object) -> None:
    raise _Killed


def _without(item: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in names}
