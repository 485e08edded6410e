"""Silent nodes become dead in time, but not because the orchestrator was down."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from orchestrator.chain.interface import MemberEvent, MembershipChange
from protocol.identity.keys import Key
from protocol.wire.nodes import NodeState
from tests.kit.memory_ledger import PROVIDER, PoolUnderTest
from tests.kit.orchestrator import MakePool

S = NodeState


async def pass_time(pool: PoolUnderTest, seconds: float, *, step: float = 0.5) -> None:
    """Lets time pass while the loop runs every half second."""
    for _ in range(round(seconds / step)):
        await pool.clock.turn(timedelta(seconds=step))
        await pool.liveness.tick()


async def state_of(pool: PoolUnderTest, key: Key) -> NodeState:
    return (await pool.dependencies.nodes.get(key.address)).state


async def watched(pool: PoolUnderTest) -> None:
    """Runs the loop until its initial grace period has ended."""
    await pool.liveness.tick()
    await pass_time(pool, 25)


async def test_a_silent_node_becomes_unhealthy_and_then_dead_on_time(pool: PoolUnderTest) -> None:
    await watched(pool)
    key = await pool.member()
    interval = (await pool.beat(key)).next_interval_seconds
    await pass_time(pool, 2 * interval - 1)
    assert await state_of(pool, key) is S.HEALTHY
    await pass_time(pool, 2)
    assert await state_of(pool, key) is S.UNHEALTHY
    await pass_time(pool, 3 * interval - 2.5)
    assert await state_of(pool, key) is S.UNHEALTHY
    await pass_time(pool, 2.5)
    assert await state_of(pool, key) is S.DEAD


async def test_one_heartbeat_makes_an_unhealthy_node_healthy(pool: PoolUnderTest) -> None:
    await watched(pool)
    key = await pool.member()
    await pass_time(pool, 25)
    assert await state_of(pool, key) is S.UNHEALTHY
    assert (await pool.beat(key)).state is S.HEALTHY
    history = (await pool.owner("GET", f"/v1/nodes/{key.address}/history"))["entries"]
    assert [(one["event"], one["after"], one["actor"]) for one in history[:2]] == [
        ("heartbeat", "healthy", key.address),
        ("missed", "unhealthy", "liveness"),
    ]


async def test_a_thousand_nodes_lost_at_once_are_dead_one_tick_after_their_deadline(pool: PoolUnderTest) -> None:
    await watched(pool)
    now = int(pool.clock.now().timestamp() * 1000)
    prefix = pool.dependencies.database.prefix
    async with pool.dependencies.redis.pipeline(transaction=False) as pipe:
        for number in range(1000):
            address = f"0x{number:040x}"
            pipe.hset(
                f"{prefix}node:{address}",
                mapping={"state": "unhealthy", "rev": 1, "since": now, "seen": now, "member": 1},
            )
            pipe.zadd(f"{prefix}nodes", {address: 0})
            pipe.zadd(f"{prefix}deadlines", {address: now + 100})
        await pipe.execute()
    await pool.clock.turn(timedelta(seconds=0.5))
    assert await pool.liveness.tick() == 1000
    assert await pool.dependencies.nodes.expected() == 0
    assert await pool.dependencies.nodes.removals_waiting() == 1000


async def test_a_tick_over_ten_thousand_idle_nodes_is_short(pool: PoolUnderTest) -> None:
    await watched(pool)
    key = pool.dependencies.database.key("deadlines")
    await pool.dependencies.redis.zadd(key, {f"0x{number:040x}": 2**45 for number in range(10_000)})
    best, tries = 1.0, 0
    while best >= 0.02 and tries < 500:  # on a busy machine at least one of them runs undisturbed
        started = time.perf_counter()
        assert await pool.liveness.tick() == 0
        best, tries = min(best, time.perf_counter() - started), tries + 1
    assert best < 0.02  # benchmarks/liveness.py requires a millisecond, on an idle machine


@pytest.mark.parametrize("gap", [timedelta(seconds=30), timedelta(hours=5)])
async def test_no_node_dies_because_the_orchestrator_was_down(pool: PoolUnderTest, gap: timedelta) -> None:
    await watched(pool)
    keys = [await pool.member() for _ in range(3)]
    await pool.clock.turn(gap)  # no tick and no heartbeat: the orchestrator or Redis was down
    assert await pool.liveness.tick() == 0
    await pass_time(pool, 10)
    for key in keys[:2]:
        await pool.beat(key)
    await pass_time(pool, 15)
    assert [await state_of(pool, key) for key in keys] == [S.HEALTHY, S.HEALTHY, S.UNHEALTHY]


async def test_a_forward_clock_jump_kills_no_node(pool: PoolUnderTest) -> None:
    await watched(pool)
    key = await pool.member()
    pool.clock.jump(timedelta(hours=1))
    await pool.liveness.tick()
    assert await state_of(pool, key) is S.HEALTHY
    await pool.beat(key)
    await pass_time(pool, 15)
    assert await state_of(pool, key) is S.HEALTHY


async def test_a_backward_clock_jump_keeps_no_dead_node_alive(pool: PoolUnderTest) -> None:
    await watched(pool)
    key = await pool.member()
    pool.clock.jump(timedelta(hours=-6))
    for _ in range(80):
        await pass_time(pool, 10)
        if await state_of(pool, key) is S.UNHEALTHY:
            break
    assert await state_of(pool, key) in {S.UNHEALTHY, S.DEAD}


async def test_a_dead_node_is_removed_from_the_ledger_and_returns_by_invite(pool: PoolUnderTest) -> None:
    await watched(pool)
    key = await pool.member()
    await pass_time(pool, 60)
    assert await state_of(pool, key) is S.DEAD
    assert await pool.removals.round() == 1
    assert pool.ledger.removed == [[key.address]]
    await pool.sync.round()
    row = await pool.dependencies.nodes.get(key.address)
    assert (row.state, row.member) == (S.DEAD, False)
    answer = await pool.beat(key)
    assert (answer.state, answer.assignment) == (S.DEAD, None)
    pool.ledger.happen(key.address, MemberEvent.JOINED, member=True)
    await pool.sync.round()
    assert (await pool.beat(key)).state is S.HEALTHY


async def test_a_removal_is_retried_until_the_chain_accepts_it(pool: PoolUnderTest) -> None:
    await watched(pool)
    key = await pool.member()
    await pass_time(pool, 60)
    pool.ledger.down = True
    with pytest.raises(Exception, match="chain is down"):
        await pool.removals.round()
    assert await pool.removals.round() == 0  # not yet due again
    pool.ledger.down = False
    await pool.clock.turn(timedelta(seconds=31))
    assert await pool.removals.round() == 1
    assert pool.ledger.removed == [[key.address]]
    assert await pool.dependencies.nodes.removals_waiting() == 0


async def test_a_node_that_returns_before_its_removal_is_not_removed(pool: PoolUnderTest) -> None:
    await watched(pool)
    key = await pool.member()
    await pass_time(pool, 60)
    assert await pool.dependencies.nodes.removals_waiting() == 1
    assert (await pool.beat(key)).state is S.HEALTHY
    await pool.clock.turn(timedelta(seconds=5))
    assert await pool.removals.round() == 0
    assert not pool.ledger.removed


async def test_a_joined_node_that_never_sends_a_heartbeat_is_declared_dead(pool: PoolUnderTest) -> None:
    await watched(pool)
    other = Key.generate()
    pool.ledger.register(other.address)
    pool.ledger.happen(other.address, MemberEvent.JOINED, member=True)
    await pool.sync.round()
    assert await state_of(pool, other) is S.UNHEALTHY
    await pass_time(pool, 60)
    assert await state_of(pool, other) is S.DEAD


async def test_bans_on_the_ledger_persist_and_can_be_lifted(pool: PoolUnderTest) -> None:
    key = await pool.member()
    pool.ledger.happen(key.address, MemberEvent.BANNED, member=False, banned=True)
    await pool.sync.round()
    for _ in range(3):
        assert (await pool.beat(key)).state is S.BANNED
    pool.ledger.happen(key.address, MemberEvent.UNBANNED, banned=False)
    await pool.sync.round()
    assert await state_of(pool, key) is S.DISCOVERED
    pool.ledger.happen(key.address, MemberEvent.JOINED, member=True)
    await pool.sync.round()
    assert (await pool.beat(key)).state is S.HEALTHY


async def test_a_ban_of_a_provider_bans_all_its_nodes(pool: PoolUnderTest) -> None:
    keys = [await pool.member() for _ in range(2)]
    for key in keys:
        await pool.dependencies.nodes.learn(key.address, {"provider": PROVIDER.address})
        pool.ledger.happen(key.address, MemberEvent.BANNED, member=False, banned=True)
    pool.ledger.waiting.clear()
    pool.ledger.waiting.append(MembershipChange(event=MemberEvent.BANNED, provider=PROVIDER.address))
    await pool.sync.round()
    assert [await state_of(pool, key) for key in keys] == [S.BANNED, S.BANNED]


async def test_events_replayed_after_a_loss_of_redis_do_not_restore_old_states(
    pool: PoolUnderTest,
) -> None:
    key = await pool.member()
    await pool.dependencies.redis.flushall()
    pool.ledger.waiting.extend(
        MembershipChange(event=event, node=key.address)
        for event in (MemberEvent.JOINED, MemberEvent.BANNED, MemberEvent.UNBANNED, MemberEvent.JOINED)
    )
    await pool.sync.round()
    assert await state_of(pool, key) is S.UNHEALTHY
    assert (await pool.beat(key)).state is S.HEALTHY


async def test_only_one_orchestrator_checks_liveness_and_the_other_takes_over(make_pool: MakePool) -> None:
    first, second = make_pool(), make_pool()
    await watched(first)
    key = await first.member()
    await first.clock.turn(timedelta(seconds=25))
    assert await second.liveness.tick() == 0
    await first.dependencies.redis.delete(first.dependencies.database.key("lease", "liveness"))
    await pass_time(second, 60)
    assert await state_of(second, key) is S.DEAD
