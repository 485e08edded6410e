"""Concurrent writes: of two writers that read the same state, the second is refused."""

from __future__ import annotations

from orchestrator.domain.slots import SlotEvent, after
from orchestrator.store.run_rows import slot_id
from tests.kit.memory_run_ledger import RunUnderTest


async def test_a_concurrent_write_to_a_slot_is_refused_so_that_the_caller_reads_again(run: RunUnderTest) -> None:
    key, store = await run.member(), run.leasing.store
    await run.lease(key)
    row = await store.slot(slot_id(0, key.address, 0))
    assert row is not None
    assert await store.write(row, after(row.slot, SlotEvent.RELEASED), {}, due_ms=None)
    assert not await store.write(row, after(row.slot, SlotEvent.SUBMITTED), {}, due_ms=None)
    assert ((await run.view())["leased"], (await run.view())["pending"]) == (0, 0)


async def test_a_loop_without_the_leader_lease_writes_neither_slots_nor_the_run(run: RunUnderTest) -> None:
    key, store = await run.member(), run.leasing.store
    await run.lease(key)
    row, state = await store.slot(slot_id(0, key.address, 0)), await store.state()
    assert row is not None
    assert not await store.write(row, after(row.slot, SlotEvent.LEASE_OVER), {}, due_ms=None, lease="another#1")
    assert not await store.change(state, {"escrow": "0"}, now_ms=1, lease="another#1")
    assert (await run.view())["leased"] == 4
    assert await store.state() == state


async def test_a_concurrent_change_of_the_run_is_refused_so_that_the_caller_reads_again(run: RunUnderTest) -> None:
    store = run.leasing.store
    state = await store.state()
    assert await store.change(state, {"floor": "3"}, now_ms=1)
    assert not await store.change(state, {"floor": "1"}, now_ms=1, demand=(0, 99, 1))
    assert (await store.state()).floor == 3
    assert (await store.steps([0]))[0].count.demand == 8
