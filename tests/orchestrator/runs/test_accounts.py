"""Accounts of pool, providers and nodes, and the public summary that is made of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest
from prometheus_client import CollectorRegistry

from ledger.amounts import UNIT, plain_amount
from ledger.events.types import DisputeLost, RewardsClaimed, WorkFinal
from orchestrator.domain.slots import SlotEvent
from orchestrator.loops.public_summary import PublicSummaryLoop
from orchestrator.metrics import MoneyGauges
from orchestrator.runs.money import burn_per_day
from orchestrator.runs.public_summary import HELD
from orchestrator.store.accounts import Account
from protocol.identifiers import Digest
from protocol.identity.keys import Key
from protocol.redis.leader_lease import LeaderLease
from protocol.verdicts import Outcome
from protocol.wire.public import PublicSummary
from tests.kit.memory_ledger import PROVIDER
from tests.kit.memory_run_ledger import RunUnderTest
from tests.kit.orchestrator import MakePool
from tests.kit.runs import MakeRun

DAY_S = 86_400
WEI = 10**9
"""Smallest counted amount."""


async def worked(run: RunUnderTest) -> tuple[Key, Digest]:
    key = await run.member()
    return key, await run.delivered(key, await run.lease(key, groups=1))


def final(
    run: RunUnderTest, key: Key, work: Digest, *, paid: int = 0, slashed: int = 0, day: int | None = None
) -> None:
    run.chain.head += 1
    if day is not None:
        run.chain.times[run.chain.head] = day * DAY_S
    outcome = Outcome.FORGED if slashed else Outcome.ACCEPTED
    run.chain.emit(WorkFinal, key=work, node=key.address, outcome=outcome, paid=paid, slashed=slashed)


async def accounts(run: RunUnderTest, key: Key) -> tuple[Account, Account, Account]:
    """Reads the ledger; returns the accounts of the pool, the provider and the node without their times."""
    await run.sync.round()
    store = run.pool.dependencies.accounts
    found = (await store.pool(), *(await store.providers([PROVIDER.address])), *(await store.nodes([key.address])))
    return tuple(replace(each, since_ms=0) for each in found)  # type: ignore[return-value]


async def test_events_count_once_for_pool_provider_and_node_and_a_reorg_takes_them_back(run: RunUnderTest) -> None:
    key, work = await worked(run)
    other, _ = await worked(run)
    run.chain.happen(work, key.address, SlotEvent.JUDGED, Outcome.REJECTED)
    run.chain.happen(work, key.address, SlotEvent.DISPUTED)
    run.chain.head += 1
    run.chain.emit(DisputeLost, key=work, node=key.address, taken=UNIT // 2)
    final(run, key, work, paid=3 * UNIT + WEI + 1, day=20_000)
    final(run, key, work, slashed=5 * UNIT)
    run.chain.head += 1
    run.chain.emit(RewardsClaimed, provider=PROVIDER.address, to=key.address, amount=2 * UNIT)
    node = Account(rejected=1, disputes=1, disputes_lost=1, earned=3 * UNIT + WEI, slashed=5 * UNIT + UNIT // 2)
    expected = (replace(node, claimed=2 * UNIT), replace(node, claimed=2 * UNIT), node)
    assert await accounts(run, key) == expected
    store = run.pool.dependencies.accounts
    assert (await store.nodes([other.address]))[0] == Account()
    assert (await store.pool()).since_ms > 0
    assert await store.earned_by_day() == await store.earned_by_day(PROVIDER.address) == {20_000: 3 * UNIT + WEI}
    assert await store.best(limit=5) == [PROVIDER.address]
    assert set(await store.nodes_of(PROVIDER.address)) == {key.address, other.address}

    run.chain.read = 0  # every event is read again
    assert await accounts(run, key) == expected
    run.chain.happened += [replace(each, reverted=True) for each in run.chain.happened[-3:]]
    lost = Account(rejected=1, disputes=1, disputes_lost=1, slashed=UNIT // 2)
    assert await accounts(run, key) == (lost, lost, lost)
    assert set((await store.earned_by_day()).values()) <= {0, 3 * UNIT + WEI}, "the block's time may be unknown by now"

    await run.pool.dependencies.redis.flushall()  # after a loss of Redis all events are counted again
    run.chain.read, run.chain.happened = 0, run.chain.happened[:-3]
    assert (await accounts(run, key))[0] == expected[0]


async def test_sums_are_exact_and_bounded(run: RunUnderTest) -> None:
    key, work = await worked(run)
    large = 9_007_199_254_740_993 * WEI  # not a double
    final(run, key, work, paid=large, day=1)
    final(run, key, work, paid=1 << 200, day=2)  # beyond Redis's integers: left out, and the loop goes on
    for day in range(3, 200):
        final(run, key, work, paid=WEI, day=day)
    pool, provider, node = await accounts(run, key)
    assert pool.earned == provider.earned == node.earned == large + 197 * WEI
    days = await run.pool.dependencies.accounts.earned_by_day(PROVIDER.address)
    assert list(days) == list(range(200 - 92, 200))


async def published(run: RunUnderTest, **headers: str) -> httpx.Response:
    async with run.pool.http() as http:
        return await http.get("/v1/public", headers=headers)


async def test_the_public_summary_is_written_by_one_instance_and_read_from_memory(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, reader = make_run(), make_run()
    await run.sync.round()
    assert (await published(reader)).status_code == 503
    await run.publish(0)
    key, work = await worked(run)
    run.chain.happen(work, key.address, SlotEvent.JUDGED, Outcome.ACCEPTED)
    final(run, key, work, paid=UNIT // 4, day=20_000)
    await run.sync.round()
    loops = [
        PublicSummaryLoop(
            each.pool.dependencies.public,
            lease=LeaderLease(
                each.pool.dependencies.database, "public", lifetime=run.pool.dependencies.settings.role_rate().per
            ),
        )
        for each in (run, reader)
    ]
    assert [await loop.round() for loop in loops] == [1, 0]
    assert (await published(reader)).status_code == 503, "strangers cause one read per `HELD`, also without a summary"
    await reader.pool.clock.turn(HELD)
    answer = await published(reader)
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "public, max-age=5")
    found = PublicSummary.model_validate_json(answer.content)
    assert (found.pool_id, found.run, found.version, found.nodes_live, found.active) == (7, "main", 0, 1, True)
    assert (found.earned, found.verdicts.accepted, [each.day for each in found.days]) == ("0.25", 1, [20_000])
    provider = found.providers[0]
    assert (provider.provider, provider.nodes_live, provider.earned) == (PROVIDER.address, 1, "0.25")
    assert found.terms is not None
    assert (found.terms.price_per_unit, found.terms.audited_share) == ("0.001", 0.1)
    assert (await published(reader, **{"If-None-Match": answer.headers["etag"]})).status_code == 304

    await run.pool.dependencies.redis.set(run.pool.dependencies.database.key("public"), b'{"newer": true}')
    assert (await published(reader)).content == answer.content, "kept for some seconds, however many ask"
    await reader.pool.clock.turn(timedelta(seconds=6))
    assert (await published(reader)).json() == {"newer": True}

    hanging = asyncio.Event()

    async def hang(*_: object) -> None:
        hanging.set()
        await asyncio.Event().wait()

    await reader.pool.clock.turn(HELD)
    monkeypatch.setattr(reader.pool.dependencies.database, "ask", hang)
    first = asyncio.create_task(published(reader))
    await hanging.wait()
    assert (await published(reader)).json() == {"newer": True}, "only one reader waits for a Redis that hangs"
    first.cancel()


async def test_the_summary_needs_neither_run_nor_chain_and_can_be_switched_off(make_pool: MakePool) -> None:
    pool = make_pool(public_page=False)
    await pool.member()
    async with pool.http() as http:
        assert (await http.get("/v1/public")).json()["code"] == "not-public"
        found = [(await http.get(path)).status_code for path in ("/public/", "/public/public.mjs", "/page/")]
    assert found == [404, 404, 200]
    pool.ledger.down = True
    summary = await make_pool().dependencies.public.compose()
    assert (summary.run, summary.terms, summary.active, summary.steps) == (None, None, False, ())
    assert (summary.nodes_live, summary.nodes_members) == (1, 0)


async def test_the_owner_reads_escrow_burn_rate_gas_and_accounts_of_nodes(run: RunUnderTest) -> None:
    key, work = await worked(run)
    other, _ = await worked(run)
    today = int(run.pool.clock.now().timestamp()) // DAY_S
    for day, paid in ((today - 1, 30 * UNIT), (today - 400, UNIT)):
        final(run, key, work, paid=paid, day=day)
    final(run, key, work, slashed=5 * UNIT)
    await run.sync.round()
    found = await run.pool.owner("GET", "/v1/money")
    assert (found["escrow"], found["reserved"], found["free"], found["claimed"]) == ("1000", "100", "900", "10")
    assert found["burn_per_day"] == plain_amount(30 * UNIT // 6), (
        "over the window of seven days that began six days ago"
    )
    assert found["days_left"] == 180
    assert {each["role"]: each["coin"] for each in found["gas"]} == {"orchestrator": "0.25", "relayer": "0.25"}
    registry = CollectorRegistry()
    gauges = MoneyGauges(registry, money=run.pool.dependencies.money, clock=run.pool.clock)
    await gauges.read()
    value = registry.get_sample_value
    parts = [value("muster_pool_escrow_must", {"part": each}) for each in ("free", "reserved", "withdrawal")]
    assert parts == [900, 100, 0]
    assert [value("muster_pool_burn_must_per_day"), value("muster_pool_escrow_left_seconds")] == [5, 180 * DAY_S]
    assert value("muster_pool_slashed_must") == 5
    relayer = next(each["address"] for each in found["gas"] if each["role"] == "relayer")
    assert value("muster_gas_coin", {"role": "relayer", "address": relayer}) == 0.25

    account = await run.pool.owner("GET", f"/v1/nodes/{key.address}/account")
    assert (account["earned"], account["slashed"]) == ("31", "5")
    seen, after = [], ""
    while page := await run.pool.owner("GET", f"/v1/money/nodes?limit=1{after}"):
        seen += [(each["node"], each["earned"]) for each in page["accounts"]]
        if page["next_cursor"] is None:
            break
        after = f"&after={page['next_cursor']}"
    assert seen == sorted([(key.address, "31"), (other.address, "0")])
    run.pool.ledger.down = True
    assert (await run.pool.owner("GET", "/v1/money"))["free"] == "900", "cached for ten minutes"
    async with run.pool.http() as http:
        for path in ("/v1/money", "/v1/money/nodes", f"/v1/nodes/{key.address}/account"):
            assert (await http.get(path)).status_code == 401


def test_the_burn_rate_is_a_mean_over_seven_days_or_since_the_first_payment() -> None:
    now = 20_000 * DAY_S + DAY_S // 2
    cases: list[tuple[dict[int, int], int]] = [
        ({}, 0),
        ({20_000: 100}, 100),
        ({19_999: 150, 20_000: 150}, 200),
        ({19_000: 7_000}, 0),
        ({19_000: 1, 19_994: 65}, 10),
        ({20_001: 5}, 0),
        ({20_000: -3}, 0),
    ]
    for days, expected in cases:
        assert burn_per_day(days, now_s=now) == expected, days
