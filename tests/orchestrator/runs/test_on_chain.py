"""A run on a real chain: join, lease, submission, verdict, and a loss of Redis."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from ledger.amounts import UNIT
from ledger.client.pools import Role
from ledger.client.work import WorkStatus
from orchestrator.chain.pool import LedgerPool
from orchestrator.loops.relayer import RETRY_PAUSE
from protocol.identifiers import ZERO_DIGEST, Digest, run_id
from protocol.identity.keys import Key
from protocol.invites import Leave
from protocol.leases import Dispute
from protocol.node_registration import NodeConsent, ProviderConsent
from protocol.verdicts import Outcome
from protocol.wire.slots import SlotGrant
from tests.kit.chain import development_chain, development_process
from tests.kit.memory_run_ledger import RUN, RunUnderTest, sha
from tests.kit.run_on_chain import join_by_relay, orchestrating, publish
from tests.kit.verdicts import verdict_on
from tests.kit.world import POOL, World, founded, world

__all__ = ["development_chain", "development_process", "founded", "world"]


async def hand_in(run: RunUnderTest, key: Key, grant: SlotGrant, *, file: int) -> Digest:
    answer = await run.hand_in(key, run.signed(key, grant, file=file))
    assert answer.status_code == 200, answer.text
    return grant.lease.lease.key.hash


async def test_a_node_without_gas_joins_submits_and_its_work_is_restored_from_the_ledger(
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
        assert [(each.subject, each.error) for each in refused] == [(good, "WorkExists")], "a dry run costs no gas"
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
        told = (await run.pool.owner("GET", "/v1/events?limit=500"))["events"]
        verdicts_told = [(event["kind"], event["node"]) for event in told if event["kind"].startswith("verdict.")]
        assert verdicts_told == [("verdict.accepted", key.address), ("verdict.forged", key.address)]

        # Redis is lost with all its data.
        await run.pool.dependencies.redis.flushall()
        run.chain.forget_position()
        await run.sync.round()
        view = await run.view()
        assert (view["accepted"], view["rejected"], view["leased"]) == (3, 2, 0)
        again = await run.rollouts(status="all")
        assert {item["beacon_block"] for item in listed} == {first.lease.beacon_block}
        forgotten = {"submitted_at_ms"}  # the time at which the ledger was read
        assert [_without(item, forgotten) for item in again] == [_without(item, forgotten) for item in listed]


async def test_a_version_names_its_announcing_key_while_both_publisher_keys_are_valid(
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


async def test_a_node_without_gas_disputes_through_the_relayer(world: World, redis_url: str, tmp_path: Path) -> None:
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
        record = await ledger.work.get(work)
        assert record is not None
        assert (record.status, record.disputer) == (WorkStatus.DISPUTED, key.address)
        assert (await run.pool.send(key, "/v1/disputes", body)).json()["state"] == "carried"


async def test_a_provider_without_gas_registers_a_node_through_the_relayer(
    world: World, redis_url: str, tmp_path: Path
) -> None:
    async with orchestrating(world, redis_url, tmp_path) as run:
        ledger = await world.as_("provider")
        await ledger.stake.add(100 * UNIT)
        node, provider, domain = world.keys["node"], world.keys["provider"], ledger.registry.domain
        deadline = int(run.pool.clock.now().timestamp()) + 600
        both: dict[str, Any] = {
            "provider": provider.address,
            "node": node.address,
            "nonce": await ledger.registry.consent_nonce(node.address),
            "deadline": deadline,
        }
        wide: dict[str, Any] = {"specs_hash": ZERO_DIGEST, "capacity": 1}
        body = {
            **both,
            **wide,
            "node_signature": "0x" + NodeConsent(**both).sign(node, domain).hex(),
            "provider_signature": "0x" + ProviderConsent(**both, **wide).sign(provider, domain).hex(),
        }
        assert (await run.pool.send(node, "/v1/consents", body)).json()["state"] == "queued"
        pool = run.pool.dependencies.ledger
        assert isinstance(pool, LedgerPool)
        assert {"consents", "nodes"} & pool._connections.keys() == {"consents"}  # the reads have their own connection
        assert await run.relayer.round() == 1
        found = await ledger.registry.node(node.address)
        assert found is not None
        assert (found.provider, found.capacity, found.retired) == (provider.address, 1, False)
        assert (await run.pool.send(node, "/v1/consents", body)).json()["state"] == "carried"


async def test_a_node_without_gas_leaves_through_the_relayer(world: World, redis_url: str, tmp_path: Path) -> None:
    async with orchestrating(world, redis_url, tmp_path) as run:
        await run.sync.round()
        key = await join_by_relay(run, world)
        ledger, domain = await world.as_("validator"), run.pool.dependencies.ledger.domain
        deadline = int(run.pool.clock.now().timestamp()) + 600
        word = Leave(pool_id=POOL, node=key.address, nonce=1, deadline=deadline)
        body = {"pool_id": POOL, "node": key.address, "nonce": 1, "deadline": deadline}
        body["signature"] = "0x" + word.sign(key, domain).hex()
        wrong = {**body, "nonce": 2, "signature": "0x" + replace(word, nonce=2).sign(key, domain).hex()}
        assert (await run.pool.send(key, "/v1/leaves", wrong)).status_code == 422
        assert (await run.pool.send(key, "/v1/leaves", body)).json()["state"] == "queued"
        assert await run.relayer.round() == 1
        assert await ledger.pools.membership(POOL, key.address) is None
        assert (await run.pool.send(key, "/v1/leaves", body)).json()["state"] == "carried"


async def test_a_relayer_that_crashes_after_its_transaction_submits_nothing_twice(
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


async def test_escrow_announced_for_withdrawal_is_not_leased(world: World, redis_url: str, tmp_path: Path) -> None:
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


async def test_work_of_an_evicted_node_is_relayed_and_work_of_a_forger_is_not(
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
        assert await run.chain.membership(key.address) is None
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


async def test_leases_of_a_banned_provider_are_suspended(world: World, redis_url: str, tmp_path: Path) -> None:
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
    """Exception that simulates `kill -9`: no product code catches it."""


async def _die(*_: object, **__: object) -> None:
    raise _Killed


def _without(item: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in names}
