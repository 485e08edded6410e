"""Serving runs: leases without work are excused, and steps follow each other without a trainer."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pydantic import ValidationError

from orchestrator.domain.slots import SlotEvent
from orchestrator.loops import run_sync
from protocol.runtime.clock import ManualClock
from protocol.verdicts import Outcome
from protocol.wire.slots import LeaseState
from tests.kit.memory_run_ledger import RunUnderTest
from tests.kit.runs import MakeRun

GATEWAY = "https://gateway.example"


async def serving(make_run: MakeRun, **settings: object) -> RunUnderTest:
    run = make_run(run_serving=True, run_gateway_url=GATEWAY, **settings)
    await run.sync.round()
    await run.publish(0)
    return run


async def test_nodes_without_clients_are_excused_and_keep_leasing(make_run: MakeRun, clock: ManualClock) -> None:
    run = await serving(make_run, run_groups=1 << 20, run_delivery_least=1)
    key = await run.member()
    assert (await run.step(key)).gateway == GATEWAY
    expired = (await run.lease(key)).lease
    for index in (1, 2):
        await run.lease(key)
        await run.pool.send(key, "/v1/slots/release", {"slots": [{"step": 0, "index": index}]})
    units, leases = await run.leasing.store.open_leases()
    assert (units, leases) == (3 * expired.max_units, 3), "released leases can still be used"
    await clock.turn(timedelta(seconds=200))
    await run.pool.beat(key)
    await run.sync.round()
    await run.sync.round()
    assert await run.leasing.store.open_leases() == (0, 0)
    record = await run.leasing.deliveries(key.address)
    assert [lease.state for lease in record.leases] == [LeaseState.LAPSED] * 3
    assert (record.undelivered, record.resting_until_ms) == (0, None)
    assert (await run.step(key)).need == 1 << 20
    assert (await run.lease(key)).lease.index == 3
    forged = await run.delivered(key, await run.lease(key))
    run.chain.happen(forged, key.address, SlotEvent.JUDGED, Outcome.FORGED)
    await run.sync.round()
    assert (await run.ask(key)).status_code == 409, "forged work is not excused"


async def test_quick_answers_do_not_shorten_leases_of_a_serving_run(make_run: MakeRun, clock: ManualClock) -> None:
    run = await serving(make_run, run_groups=1 << 20)
    key = await run.member()
    for number in range(10):
        work = await run.delivered(key, await run.lease(key), file=number + 1)
        run.chain.happen(work, key.address, SlotEvent.JUDGED, Outcome.ACCEPTED)
        await run.sync.round()
    lease = (await run.lease(key)).lease
    assert lease.expiry - clock.now().timestamp() >= 99


async def test_full_steps_of_a_serving_run_close_and_the_next_ones_follow(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_sync, "SERVED_STEP_SLOTS", 3)
    run = await serving(make_run, run_groups=4, run_async_level=0, run_slots_per_node=64)
    key = await run.member()
    for step in range(3):  # without a new version
        assert (await run.step(key)).step == step
        work = await run.delivered(key, await run.lease(key, step=step), file=step + 1)
        run.chain.happen(work, key.address, SlotEvent.JUDGED, Outcome.ACCEPTED)
        await run.sync.round()
    for index in range(3):
        await run.lease(key, step=3)
        await run.pool.send(key, "/v1/slots/release", {"slots": [{"step": 3, "index": index}]})
    await run.sync.round()
    assert (await run.step(key)).step == 4
    assert (await run.lease(key, step=4)).lease.version == 0


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"run_serving": True}, "needs both"),
        ({"run_gateway_url": GATEWAY}, "needs both"),
        ({"run_serving": True, "run_gateway_url": "ftp://gateway"}, "pattern"),
        ({"run_serving": True, "run_gateway_url": "https://user:secret@gateway"}, "without user"),
        ({"run_serving": True, "run_gateway_url": f"{GATEWAY}#0x12"}, "address"),
    ],
)
def test_settings_of_serving_runs_are_checked(make_run: MakeRun, settings: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        make_run(**settings)
