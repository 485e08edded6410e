"""Relaying of work and joins to the ledger: checks before gas is paid, one transaction."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.loops.relayer import RETRY_PAUSE, Relayer
from orchestrator.relayer.strategies import MAX_BATCH, all_strategies
from orchestrator.store.database import Database
from orchestrator.store.relayer import RelayedKind, RelayerStore
from protocol.errors import Unavailable
from protocol.identifiers import Digest
from protocol.identity.keys import Key
from protocol.identity.signing import unix_ms
from protocol.identity.typed_data import SigningDomain
from protocol.invites import Invite, Join
from protocol.leases import WorkClaim
from protocol.redis.connection import RedisKeys, connect_redis
from protocol.redis.leader_lease import LeaderLease as LoopLease
from protocol.wire.invites import SignedInvite
from protocol.wire.leases import SignedLease, SignedWorkClaim
from protocol.wire.relayed import JoinRequest, ReceiptState, SubmissionRequest
from protocol.wire.slots import SlotGrant
from tests.kit.memory_ledger import POOL
from tests.kit.memory_run_ledger import RunUnderTest, sha
from tests.kit.redis_proxy import Cut, CutLine, cut_line
from tests.kit.runs import MakeRun


async def leased(run: RunUnderTest) -> tuple[Key, SlotGrant]:
    key = await run.member()
    return key, await run.lease(key)


def receipt(answer: Any) -> tuple[str, str]:
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return body["state"], body["reason"]


async def test_submitted_work_is_relayed_and_counted(run: RunUnderTest) -> None:
    key, grant = await leased(run)
    work = run.signed(key, grant)
    assert receipt(await run.hand_in(key, work, reward=0.5)) == ("queued", "")
    assert (await run.pool.owner("GET", "/v1/run"))["queued_submissions"] == 1
    await run.relayer.round()
    assert receipt(await run.hand_in(key, work)) == ("carried", "")
    await run.sync.round()
    view = await run.view()
    assert (view["leased"], view["pending"], view["need"]) == (0, 4, 4)
    answer = await run.pool.send(key, f"/v1/submissions/{work.lease.lease.key.hash}", None, method="GET")
    assert answer.json()["state"] == "carried"
    assert answer.json()["transaction"] is not None
    [item] = await run.rollouts(status="all")
    assert (item["units"], item["groups"], item["figures"]) == (7, 4, {"reward": 0.5})


async def test_work_without_an_uploaded_file_is_not_relayed(run: RunUnderTest) -> None:
    key, grant = await leased(run)
    answer = await run.hand_in(key, run.signed(key, grant), uploaded=False)
    assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (409, "no-file", True)
    assert await run.relayer.round() == 0
    assert receipt(await run.hand_in(key, run.signed(key, grant)))[0] == "queued"


async def test_many_works_are_sent_in_one_transaction(run: RunUnderTest) -> None:
    await run.demand(0, 100)
    keys = [await run.member() for _ in range(3)]
    for key in keys:
        for file in (1, 2):
            await run.hand_in(key, run.signed(key, await run.lease(key, groups=1), file=file))
    assert await run.relayer.round() == 6
    assert run.chain.batches == [6]
    assert await run.relayer.round() == 0


def _signed_by(world: RunUnderTest, key: Key, grant: SlotGrant, /, **change: Any) -> SignedWorkClaim:
    """Returns work under a lease that was altered after signing, or signed by another key."""
    lease = grant.lease.model_copy(update=change)
    words = WorkClaim(lease_hash=lease.lease.hash, sha256=sha(1), units=7)
    return SignedWorkClaim(
        lease=lease, sha256=sha(1), units=7, signature="0x" + words.sign(key, world.chain.domain).hex()
    )


STRANGER = Key.generate()


def _resigned(run: RunUnderTest, key: Key, grant: SlotGrant) -> SignedWorkClaim:
    lease = replace(grant.lease.lease, max_units=10**6)
    signed = SignedLease.of(lease, domain=run.chain.domain, signature=lease.sign(key, run.chain.domain))
    return _signed_by(run, key, SlotGrant(lease=signed, beacon=grant.beacon))


@pytest.mark.parametrize(
    ("make", "status", "code"),
    [
        (lambda run, key, grant: run.signed(key, grant, units=401), 422, "unprocessable"),
        (lambda run, key, grant: run.signed(STRANGER, grant), 422, "unprocessable"),
        (lambda run, key, grant: _signed_by(run, key, grant, max_units=10**6), 403, "foreign-lease"),
        (lambda run, key, grant: _signed_by(run, key, grant, index=9), 403, "foreign-lease"),
        (lambda run, key, grant: _signed_by(run, key, grant, pool_id=POOL + 1), 403, "foreign-lease"),
        (lambda run, key, grant: _signed_by(run, key, grant, run=sha(1)), 403, "foreign-lease"),
        (lambda run, key, grant: _signed_by(run, key, grant, chain_id=1), 403, "foreign-lease"),
        (lambda run, key, grant: _signed_by(run, key, grant, node=STRANGER.address), 403, "foreign-lease"),
        (lambda run, key, grant: _signed_by(run, key, grant, signature="0x" + "00" * 65), 422, "unprocessable"),
        (_resigned, 403, "foreign-lease"),
    ],
    ids=[
        "more units than leased",
        "signed by another node",
        "units raised in the lease",
        "another index",
        "another pool",
        "another run",
        "another chain",
        "the lease of another node",
        "no signature of the lease",
        "a lease signed by the node",
    ],
)
async def test_work_that_the_ledger_would_refuse_is_refused_before_it_costs_gas(
    run: RunUnderTest, make: Callable[..., SignedWorkClaim], status: int, code: str
) -> None:
    key, grant = await leased(run)
    answer = await run.hand_in(key, make(run, key, grant))
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert await run.relayer.round() == 0
    assert run.chain.batches == []


async def test_a_node_can_neither_submit_nor_read_another_nodes_work(run: RunUnderTest) -> None:
    key, grant = await leased(run)
    other = await run.member()
    assert (await run.hand_in(other, run.signed(key, grant))).status_code == 403
    await run.hand_in(key, run.signed(key, grant))
    path = f"/v1/submissions/{grant.lease.lease.key.hash}"
    assert (await run.pool.send(other, path, None, method="GET")).status_code == 404
    assert (await run.pool.send(key, path, None, method="GET")).json()["state"] == "queued"


async def test_work_under_an_expired_lease_is_refused(run: RunUnderTest) -> None:
    key, grant = await leased(run)
    await run.pool.clock.turn(timedelta(seconds=102))
    answer = await run.hand_in(key, run.signed(key, grant))
    assert (answer.status_code, answer.json()["code"]) == (409, "lease-expired")


async def test_a_second_file_under_one_lease_is_refused(run: RunUnderTest) -> None:
    key, grant = await leased(run)
    await run.hand_in(key, run.signed(key, grant, file=1))
    answer = await run.hand_in(key, run.signed(key, grant, file=2))
    assert (answer.status_code, answer.json()["code"]) == (409, "other-work")
    await run.relayer.round()
    await run.sync.round()
    assert receipt(await run.hand_in(key, run.signed(key, grant, file=2)))[0] == "refused"
    assert receipt(await run.hand_in(key, run.signed(key, grant, file=1)))[0] == "carried"


async def test_work_that_the_node_submitted_itself_is_not_relayed_again(run: RunUnderTest) -> None:
    key, grant = await leased(run)
    run.submit_alone(grant, file=1, units=7)
    await run.sync.round()
    assert receipt(await run.hand_in(key, run.signed(key, grant))) == ("carried", "")
    assert await run.relayer.round() == 0


async def test_a_crash_after_the_transaction_and_before_recording_it_relays_nothing_twice(run: RunUnderTest) -> None:
    key, grant = await leased(run)
    work = run.signed(key, grant)
    await run.hand_in(key, work)
    run.chain.die_after_carrying = True
    with pytest.raises(Unavailable):
        await run.relayer.round()
    assert receipt(await run.hand_in(key, work))[0] == "queued"
    run.chain.die_after_carrying = False
    await run.pool.clock.turn(RETRY_PAUSE + timedelta(seconds=1))
    await run.relayer.round()
    assert run.chain.batches == [1], "it was looked up, and not relayed again"
    assert receipt(await run.hand_in(key, work)) == ("carried", "")


async def test_work_that_the_node_submitted_first_is_recorded_as_carried(run: RunUnderTest) -> None:
    key, grant = await leased(run)
    await run.hand_in(key, run.signed(key, grant))
    run.submit_alone(grant, file=1, units=7)  # submitted by the node itself and not yet read from the ledger
    await run.relayer.round()
    await run.relayer.round()
    assert receipt(await run.hand_in(key, run.signed(key, grant))) == ("carried", "")


async def test_while_the_chain_is_down_work_waits_and_no_node_is_blamed(run: RunUnderTest) -> None:
    key, grant = await leased(run)
    await run.hand_in(key, run.signed(key, grant))
    run.chain.down = True
    for _ in range(10):
        with pytest.raises(Unavailable):
            await run.relayer.round()
        await run.pool.clock.turn(RETRY_PAUSE + timedelta(seconds=1))
    run.chain.down = False
    await run.relayer.round()
    await run.sync.round()
    assert receipt(await run.hand_in(key, run.signed(key, grant)))[0] == "refused"
    await run.pool.clock.turn(timedelta(seconds=20))
    await run.sync.round()
    mine = await run.pool.owner("GET", f"/v1/nodes/{key.address}/leases")
    assert [each["state"] for each in mine["leases"]] == ["lapsed"]
    assert (mine["delivered"], mine["undelivered"]) == (0, 0)


async def test_waiting_work_is_relayed_when_the_chain_returns_in_time(run: RunUnderTest) -> None:
    key, grant = await leased(run)
    await run.hand_in(key, run.signed(key, grant))
    run.chain.down = True
    with pytest.raises(Unavailable):
        await run.relayer.round()
    run.chain.down = False
    await run.pool.clock.turn(RETRY_PAUSE + timedelta(seconds=1))
    assert await run.relayer.round() == 1


async def test_work_refused_for_missing_funds_is_relayed_once_funds_arrive(run: RunUnderTest) -> None:
    key, grant = await leased(run)
    work = run.signed(key, grant)
    run.chain.refuse[work.lease.lease.key.hash] = "EscrowTooLow"
    await run.hand_in(key, work)
    await run.relayer.round()
    state, reason = receipt(await run.hand_in(key, work))
    assert state == "queued"
    assert "EscrowTooLow" in reason
    run.chain.refuse.clear()
    await run.pool.clock.turn(RETRY_PAUSE + timedelta(seconds=1))
    assert await run.relayer.round() == 1


async def test_resubmitting_refused_work_costs_no_gas_until_a_dry_run_succeeds(make_run: MakeRun) -> None:
    run = make_run(run_lease_s=3600)
    await run.sync.round()
    await run.publish(0)
    key, grant = await leased(run)
    work = run.signed(key, grant)
    run.chain.refuse[work.lease.lease.key.hash] = "StakeTooLow"
    for _ in range(12):
        await run.hand_in(key, work)
        await run.relayer.round()
        await run.pool.clock.turn(RETRY_PAUSE * 7)
    assert run.chain.batches == [1]
    run.chain.refuse.clear()
    await run.relayer.round()
    assert receipt(await run.hand_in(key, work))[0] == "carried"
    assert run.chain.batches == [1, 1]


async def test_a_permanent_refusal_by_the_ledger_is_reported_with_its_reason(run: RunUnderTest) -> None:
    key, grant = await leased(run)
    work = run.signed(key, grant)
    run.chain.refuse[work.lease.lease.key.hash] = "NotMember"
    await run.hand_in(key, work)
    await run.relayer.round()
    assert receipt(await run.hand_in(key, work)) == ("refused", "NotMember(…)")
    await run.pool.clock.turn(timedelta(seconds=50))
    assert await run.relayer.round() == 0
    assert run.chain.batches == [1]


async def test_two_orchestrators_relay_a_work_once(make_run: MakeRun) -> None:
    first, second = make_run(), make_run()
    await first.sync.round()
    await first.publish(0)
    key, grant = await leased(first)
    await second.hand_in(key, second.signed(key, grant))
    assert await first.relayer.round() == 1
    assert await second.relayer.round() == 0


async def test_a_slow_transaction_renews_the_leader_lease(make_run: MakeRun) -> None:
    first, second = make_run(), make_run()
    await first.sync.round()
    await first.publish(0)
    key, grant = await leased(first)
    await first.hand_in(key, first.signed(key, grant))
    mined, submit = asyncio.Event(), first.chain.submit_work

    async def slowly(works: Any) -> Any:
        await mined.wait()
        return await submit(works)

    first.chain.submit_work = slowly
    carrying = asyncio.create_task(first.relayer.round())
    lease = first.pool.dependencies.database.key("lease", "relayer")
    for _ in range(5):
        await first.pool.dependencies.redis.pexpire(lease, 30_000)
        for _ in range(100):
            await first.pool.clock.turn(timedelta(seconds=4))
            if await first.pool.dependencies.redis.pttl(lease) > 30_000:
                break
            await asyncio.sleep(0.01)
        assert await first.pool.dependencies.redis.pttl(lease) > 30_000, "the lease was renewed"
    assert await second.relayer.round() == 0
    mined.set()
    assert await carrying == 1
    assert first.chain.batches == [1]


async def test_overlapping_rounds_share_one_leader_lease(run: RunUnderTest) -> None:
    lease = run.relayer._lease
    for _ in range(3):
        assert await asyncio.gather(*[lease.hold() for _ in range(4)]) == [True] * 4
        assert lease.value


async def start_slow_round(run: RunUnderTest) -> tuple[asyncio.Task[int], asyncio.Event]:
    """Starts a round whose transaction stays pending until the returned event is set.

    Transactions of other rounds are mined at once.
    """
    mined, taken, submit = asyncio.Event(), asyncio.Event(), run.chain.submit_work

    async def slowly(works: Any) -> Any:
        taken.set()
        await mined.wait()
        return await submit(works)

    run.chain.submit_work = slowly
    first = asyncio.create_task(run.relayer.round())
    await taken.wait()
    run.chain.submit_work = submit
    return first, mined


async def test_work_that_arrives_during_a_transaction_is_relayed_in_parallel(run: RunUnderTest) -> None:
    await run.sync.round()
    await run.publish(0)
    key, grant = await leased(run)
    await run.hand_in(key, run.signed(key, grant))
    first, mined = await start_slow_round(run)
    assert await run.relayer.round() == 0, "work in a pending transaction is not relayed twice"
    another = await run.lease(key)
    await run.hand_in(key, run.signed(key, another, file=2))
    assert await run.relayer.round() == 1
    mined.set()
    assert await first == 1
    assert run.chain.batches == [1, 1]


async def test_work_in_a_slow_transaction_is_not_relayed_a_second_time(run: RunUnderTest) -> None:
    key, grant = await leased(run)
    await run.hand_in(key, run.signed(key, grant))
    first, mined = await start_slow_round(run)
    for _ in range(3):
        await run.pool.clock.turn(RETRY_PAUSE + timedelta(seconds=1))
        assert await run.relayer.round() == 0
    mined.set()
    assert await first == 1
    assert run.chain.batches == [1]


async def test_work_that_failed_to_relay_is_retried(run: RunUnderTest) -> None:
    key, grant = await leased(run)
    await run.hand_in(key, run.signed(key, grant))
    submit = run.chain.submit_work

    async def down(works: Any) -> Any:
        raise Unavailable("the chain is down")

    run.chain.submit_work = down
    with pytest.raises(Unavailable):
        await run.relayer.round()
    run.chain.submit_work = submit
    await run.pool.clock.turn(RETRY_PAUSE + timedelta(seconds=1))
    assert await run.relayer.round() == 1


async def test_concurrent_rounds_relay_new_work_once(run: RunUnderTest) -> None:
    key, grant = await leased(run)
    await run.hand_in(key, run.signed(key, grant))
    assert sorted(await asyncio.gather(*(run.relayer.round() for _ in range(4)))) == [0, 0, 0, 1]
    assert run.chain.batches == [1]


# Joins


def joining(run: RunUnderTest, key: Key, *, signer: Key | None = None, nonce: int = 1, **change: Any) -> JoinRequest:
    dependencies = run.pool.dependencies
    expiry = int(run.pool.clock.now().timestamp()) + 60
    invite = Invite(pool_id=POOL, domain_id=1, node=key.address, nonce=nonce, expiry=expiry, url="http://pool")
    invite = replace(invite, **change)
    domain = run.pool.ledger.domain
    signed = SignedInvite.of(invite, domain=domain, signature=invite.sign(dependencies.key, domain))
    return JoinRequest(invite=signed, signature="0x" + Join(invite_hash=invite.hash).sign(signer or key, domain).hex())


async def test_a_node_without_gas_joins_through_the_orchestrator(run: RunUnderTest) -> None:
    key = Key.generate()
    body = joining(run, key).model_dump(mode="json")
    assert receipt(await run.pool.send(key, "/v1/joins", body))[0] == "queued"
    await run.relayer.round()
    assert key.address in run.chain.memberships
    assert receipt(await run.pool.send(key, "/v1/joins", body))[0] == "carried"


async def test_a_join_relayed_before_a_crash_is_not_relayed_again(run: RunUnderTest) -> None:
    key = Key.generate()
    body = joining(run, key).model_dump(mode="json")
    await run.pool.send(key, "/v1/joins", body)
    run.chain.add_member(key.address)
    await run.relayer.round()
    await run.relayer.round()
    assert receipt(await run.pool.send(key, "/v1/joins", body))[0] == "carried"


def _of_another(run: RunUnderTest, key: Key) -> JoinRequest:
    made = joining(run, key)
    signature = "0x" + made.invite.invite.sign(STRANGER, made.invite.domain).hex()
    return made.model_copy(update={"invite": made.invite.model_copy(update={"signature": signature})})


def _for_another_contract(run: RunUnderTest, key: Key) -> JoinRequest:
    made = joining(run, key)
    domain = SigningDomain(1, STRANGER.address)
    invite = SignedInvite.of(made.invite.invite, domain=domain, signature=made.invite.raw_signature)
    return made.model_copy(update={"invite": invite})


@pytest.mark.parametrize(
    ("make", "status"),
    [
        (lambda run, key: joining(run, STRANGER), 403),
        (lambda run, key: joining(run, key, pool_id=POOL + 1), 403),
        (lambda run, key: joining(run, key, signer=STRANGER), 422),
        (lambda run, key: joining(run, key, expiry=1), 409),
        (_of_another, 403),
        (_for_another_contract, 403),
    ],
    ids=[
        "another node",
        "another pool",
        "another's signature",
        "expired",
        "an invite of another signer",
        "another contract",
    ],
)
async def test_only_this_pools_invites_are_relayed_and_only_for_their_own_node(
    run: RunUnderTest, make: Callable[..., JoinRequest], status: int
) -> None:
    key = Key.generate()
    answer = await run.pool.send(key, "/v1/joins", make(run, key).model_dump(mode="json"))
    assert answer.status_code == status
    await run.relayer.round()
    assert run.chain.batches == []


@pytest.fixture
async def line(redis_url: str, tmp_path: Path) -> AsyncIterator[CutLine]:
    async with cut_line(redis_url, tmp_path) as made:
        yield made


@pytest.fixture
async def relayer_behind_proxy(run: RunUnderTest, line: CutLine) -> AsyncIterator[tuple[Relayer, RelayerStore]]:
    """Sets up a relayer and its queue behind the proxy, with a Redis client that does not retry."""
    redis = connect_redis(line.url, retries=0)
    database = Database(redis, keys=RedisKeys(f"pool-{POOL}"))
    lease, store = LoopLease(database, "relayer", lifetime=timedelta(hours=1)), RelayerStore(database)
    yield Relayer(store, strategies=all_strategies(run.chain, run.pool.clock), lease=lease, clock=run.pool.clock), store
    await redis.aclose()


async def _queued(run: RunUnderTest, key: Key, grant: SlotGrant, indices: range) -> list[Digest]:
    far = grant.lease.expiry + 10**6
    works = [_signed_by(run, key, grant, index=index, expiry=far) for index in indices]
    for work in works:
        name, body = work.lease.lease.key.hash, SubmissionRequest(work=work).model_dump_json()
        await run.pool.dependencies.relayer.store.put(
            RelayedKind.WORK, name, body, now_ms=unix_ms(run.pool.clock.now())
        )
    return [work.lease.lease.key.hash for work in works]


@pytest.mark.parametrize("cut", Cut)
async def test_losing_redis_within_a_batch_loses_no_work_and_pays_for_none_twice(
    run: RunUnderTest, line: CutLine, relayer_behind_proxy: tuple[Relayer, RelayerStore], cut: Cut
) -> None:
    relayer, store = relayer_behind_proxy
    key, grant = await leased(run)
    at, reached = 0, True
    while reached:
        names = await _queued(run, key, grant, range(10 * at, 10 * at + 3))
        run.chain.batches.clear()
        line.break_at(at, cut)
        with contextlib.suppress(Unavailable):
            await relayer.round()
        reached, line.at = line.at < 0, -1
        for _ in range(2):
            await run.pool.clock.turn(RETRY_PAUSE + timedelta(seconds=1))
            # the leader lease expired
            await run.pool.dependencies.redis.delete(f"{RedisKeys(f'pool-{POOL}').prefix}lease:relayer")
            await relayer.round()
        rows = [await store.get(RelayedKind.WORK, name) for name in names]
        assert [row.state if row else None for row in rows] == [ReceiptState.CARRIED] * 3, at
        assert sum(run.chain.batches) == 3, at
        at += 1
    assert at > 12


async def test_a_batch_takes_few_redis_round_trips_at_any_size(
    run: RunUnderTest, line: CutLine, relayer_behind_proxy: tuple[Relayer, RelayerStore]
) -> None:
    relayer, _ = relayer_behind_proxy
    key, grant = await leased(run)
    await _queued(run, key, grant, range(MAX_BATCH))
    assert await relayer.round() == MAX_BATCH
    settled = sum(command[0] == b"EVALSHA" for command in line.seen)
    assert run.chain.batches == [MAX_BATCH]
    assert settled >= 2 * MAX_BATCH
    assert line.reads < 40
