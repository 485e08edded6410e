"""Work submitted without a file does not occupy its step, and counts against its node."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest

from orchestrator.domain.slots import SlotEvent, StoredFileState
from orchestrator.storage import StorageUnavailable
from protocol.identity.keys import Key
from protocol.verdicts import Outcome
from protocol.wire.slots import SlotGrant
from tests.kit.memory_run_ledger import RunUnderTest, place_file, sha
from tests.kit.runs import MakeRun


async def submit_without_file(run: RunUnderTest, *, uploaded: bool = False) -> tuple[Key, SlotGrant]:
    key = await run.member()
    grant = await run.lease(key, groups=8)
    assert run.submit_alone(grant, uploaded=uploaded) == ""
    await run.sync.round()
    return key, grant


async def deliveries(run: RunUnderTest, key: Key) -> Any:
    return await run.pool.owner("GET", f"/v1/nodes/{key.address}/leases")


async def pass_time(run: RunUnderTest, seconds: float) -> None:
    await run.pool.clock.turn(timedelta(seconds=seconds))
    await run.sync.round()


async def test_a_submission_without_a_file_does_not_occupy_its_step(run: RunUnderTest) -> None:
    key, _ = await submit_without_file(run)
    view = await run.view()
    assert (view["pending"], view["need"]) == (0, 8), "other nodes can lease them at once"
    told = await deliveries(run, key)
    assert (told["delivered"], told["undelivered"], told["leases"][0]["state"]) == (0, 1, "file-absent")


async def test_a_submission_with_its_file_is_pending(run: RunUnderTest) -> None:
    key, _ = await submit_without_file(run, uploaded=True)
    assert (await run.view())["pending"] == 8
    assert (await deliveries(run, key))["delivered"] == 1


async def test_a_file_larger_than_its_lease_allows_counts_as_absent(run: RunUnderTest) -> None:
    """A node can upload such a file as another kind of file.

    Validators judge it forged, so its step must not wait for it.
    """
    key, _ = await submit_without_file(run)
    place_file(run.pool.dependencies.objects, node=key.address, sha256=sha(1), size=1 << 30)
    await pass_time(run, 2)
    assert (await run.view())["pending"] == 0
    assert (await deliveries(run, key))["undelivered"] == 1


async def test_a_file_that_arrives_later_makes_its_work_pending(run: RunUnderTest) -> None:
    key, _ = await submit_without_file(run)
    place_file(run.pool.dependencies.objects, node=key.address, sha256=sha(1))
    await pass_time(run, 2)
    assert (await run.view())["pending"] == 8
    assert (await deliveries(run, key))["undelivered"] == 0


async def test_a_file_that_arrives_after_the_steps_wait_does_not_make_its_work_pending(run: RunUnderTest) -> None:
    key, _ = await submit_without_file(run)
    await pass_time(run, 901)
    place_file(run.pool.dependencies.objects, node=key.address, sha256=sha(1))
    await pass_time(run, 61)
    assert (await run.view())["pending"] == 0
    assert (await deliveries(run, key))["undelivered"] == 0, "but the file exists"


async def test_the_store_is_checked_with_growing_pauses_until_the_judge_period_ends(
    run: RunUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, grant = await submit_without_file(run)
    asked, head = [], run.pool.dependencies.objects.head

    async def counting(key: Any) -> Any:
        asked.append(run.pool.clock.monotonic())
        return await head(key)

    monkeypatch.setattr(run.pool.dependencies.objects, "head", counting)
    for _ in range(2000):
        await pass_time(run, 2)
    pauses = [after - before for before, after in itertools.pairwise(asked)]
    assert len(asked) < 100
    assert max(pauses) <= 62
    assert asked[-1] <= 3661
    row = await run.leasing.store.slot_of(grant.lease.lease.key.hash)
    assert row is not None
    assert row.slot.file is StoredFileState.ABSENT


async def _down(*_: object) -> None:
    raise StorageUnavailable("the store is down")


async def test_while_the_store_is_down_work_is_pending_and_no_node_is_blamed(
    run: RunUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(run.pool.dependencies.objects, "head", _down)
        key, grant = await submit_without_file(run)
        assert (await run.view())["pending"] == 8
        assert (await deliveries(run, key))["undelivered"] == 0
        await pass_time(run, 901)
        assert (await run.view())["pending"] == 0, "no longer than for unjudged work"
        run.chain.happen(grant.lease.lease.key.hash, key.address, SlotEvent.EXPIRED)
        await run.sync.round()
    assert ((await deliveries(run, key))["delivered"], (await deliveries(run, key))["undelivered"]) == (0, 0)


async def test_after_an_outage_the_store_is_checked_again(run: RunUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(run.pool.dependencies.objects, "head", _down)
        await submit_without_file(run)
    await pass_time(run, 5)
    assert (await run.view())["pending"] == 0


@pytest.mark.parametrize(
    ("uploaded", "later", "counts"),
    [(True, False, 0), (False, False, 1), (False, True, 0)],
    ids=["file was there", "no file", "file arrived between checks"],
)
async def test_expired_work_counts_as_undelivered_only_if_its_file_never_arrived(
    run: RunUnderTest, counts: int, *, uploaded: bool, later: bool
) -> None:
    key, grant = await submit_without_file(run, uploaded=uploaded)
    if later:
        place_file(run.pool.dependencies.objects, node=key.address, sha256=sha(1))
    run.chain.happen(grant.lease.lease.key.hash, key.address, SlotEvent.EXPIRED)
    await run.sync.round()
    told = await deliveries(run, key)
    assert (told["delivered"], told["undelivered"]) == (0, counts)


async def test_nodes_that_submit_without_files_are_throttled(make_run: MakeRun) -> None:
    run = make_run(run_delivery_least=3, run_throttle_pause_s=300)
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    for file in range(3):
        run.submit_alone(await run.lease(key, groups=8), file=file + 1, uploaded=False)
        await run.sync.round()
    answer = await run.ask(key, groups=8)
    assert answer.status_code == 409
    assert "no slots for another" in answer.json()["detail"]


async def test_a_verdict_counts_even_without_a_file_in_the_store(run: RunUnderTest) -> None:
    key, grant = await submit_without_file(run)
    run.chain.happen(grant.lease.lease.key.hash, key.address, SlotEvent.JUDGED, Outcome.ACCEPTED)
    await run.sync.round()
    assert (await run.view())["accepted"] == 8
    assert (await deliveries(run, key))["delivered"] == 1
