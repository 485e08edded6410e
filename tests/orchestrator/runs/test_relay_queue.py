"""The relayer's queue in Redis: the state of a row from one attempt to the next."""

from __future__ import annotations

from orchestrator.store.relayer import KEPT, RelayedKind
from protocol.wire.relayed import ReceiptState
from tests.kit.memory_run_ledger import RunUnderTest

WORK = RelayedKind.WORK


async def test_a_resubmission_keeps_the_time_of_the_first_submission(run: RunUnderTest) -> None:
    """The time of the first submission decides whether a lease is excused.

    Work that was refused before costs no gas until a dry run succeeds.
    """
    queue = run.pool.dependencies.relayer.store
    await queue.put(WORK, "a", "body", now_ms=1_000)
    await queue.settle(WORK, "a", ReceiptState.REFUSED, lease="", reason="EscrowTooLow", passing=True)
    row, same = await queue.put(WORK, "a", "body", now_ms=90_000)
    assert (row.state, row.at_ms, row.tries, row.reason, same) == (ReceiptState.QUEUED, 1_000, 0, "", True)
    assert row.refusals == 1
    assert await queue.waiting(WORK) == 1


async def test_a_settled_item_does_not_change_and_expires(run: RunUnderTest) -> None:
    queue, redis = run.pool.dependencies.relayer.store, run.pool.dependencies.redis
    await queue.put(WORK, "a", "body", now_ms=1_000)
    await queue.settle(WORK, "a", ReceiptState.CARRIED, lease="")
    await queue.settle(WORK, "a", ReceiptState.REFUSED, lease="", reason="late news")
    row, same = await queue.put(WORK, "a", "body", now_ms=2_000)
    assert (row.state, row.reason, same) == (ReceiptState.CARRIED, "", True)
    assert await queue.waiting(WORK) == 0
    name = run.pool.dependencies.database.key("relay", "work", "a")
    assert 0 < await redis.pttl(name) <= KEPT.total_seconds() * 1000
    assert await queue.requeue(WORK, "a", now_ms=3_000)
    assert await redis.pttl(name) == -1, "a queued item does not expire"
    assert not await queue.requeue(WORK, "a", now_ms=4_000), "it was not relayed"


async def test_a_loop_without_the_leader_lease_settles_nothing(run: RunUnderTest) -> None:
    queue = run.pool.dependencies.relayer.store
    await queue.put(WORK, "a", "body", now_ms=1_000)
    await queue.settle(WORK, "a", ReceiptState.CARRIED, lease="somebody#1")
    row, _ = await queue.put(WORK, "a", "body", now_ms=2_000)
    assert row.state is ReceiptState.QUEUED


async def test_the_age_of_the_queue_is_that_of_its_oldest_request_also_after_postponements(run: RunUnderTest) -> None:
    queue = run.pool.dependencies.relayer.store
    assert await queue.oldest_ms(WORK) is None
    for name, at_ms in (("a", 1_000), ("b", 2_000), ("c", 3_000)):
        await queue.put(WORK, name, "body", now_ms=at_ms)
    await queue.record_temporary_refusal(WORK, "a", reason="EscrowTooLow", until_ms=90_000, lease="")
    assert await queue.oldest_ms(WORK) == 1_000
    await queue.settle(WORK, "a", ReceiptState.CARRIED, lease="")
    assert await queue.oldest_ms(WORK) == 2_000
    assert await queue.oldest_ms(RelayedKind.JOIN) is None
