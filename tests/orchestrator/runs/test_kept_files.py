"""Rollout files in the object store: conditions for an upload, and deletion of unused files."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from orchestrator.domain.slots import SlotEvent
from orchestrator.storage import StorageUnavailable
from orchestrator.storage.service import FILE_BYTES
from protocol.identity.keys import Key
from protocol.verdicts import Outcome
from protocol.wire.slots import SlotGrant
from protocol.wire.uploads import ObjectKey
from tests.kit.memory_ledger import POOL
from tests.kit.memory_run_ledger import VALIDATOR, RunUnderTest, place_file, sha
from tests.kit.runs import MakeRun

AGE = timedelta(days=7)
"""The default of `upload_kept_s`."""


async def request_ticket(
    run: RunUnderTest, key: Key, grant: SlotGrant, *, file: int = 1, size: int = 1000
) -> httpx.Response:
    slot = {"step": grant.lease.step, "index": grant.lease.index}
    return await run.pool.send(key, "/v1/uploads", {"kind": "rollout", "sha256": sha(file), "size": size, "slot": slot})


def status_and_code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json().get("code", "")


async def pass_time(run: RunUnderTest, time: timedelta) -> None:
    await run.pool.clock.turn(time)
    await run.sync.round()


# Tickets


async def test_a_live_lease_permits_its_upload(run: RunUnderTest) -> None:
    key = await run.member()
    assert status_and_code(await request_ticket(run, key, await run.lease(key))) == (200, "")


@pytest.mark.parametrize(
    "change",
    [
        {"slot": None},
        {"kind": "file", "slot": {"step": 0, "index": 0}},
        {"kind": "audit", "slot": {"step": 0, "index": 0}},
    ],
    ids=["work without a slot", "another file with a slot", "an audit file with a slot"],
)
async def test_rollout_files_must_name_a_slot_and_other_files_must_not(
    run: RunUnderTest, change: dict[str, Any]
) -> None:
    key = await run.member()
    await run.lease(key)
    body = {"kind": "rollout", "sha256": sha(1), "size": 10, "slot": {"step": 0, "index": 0}} | change
    assert status_and_code(await run.pool.send(key, "/v1/uploads", body)) == (422, "unprocessable")


async def test_an_upload_under_another_nodes_lease_is_refused(run: RunUnderTest) -> None:
    key, other = await run.member(), await run.member()
    assert status_and_code(await request_ticket(run, other, await run.lease(key))) == (409, "no-lease")


async def test_an_upload_under_a_released_or_expired_lease_is_refused(run: RunUnderTest) -> None:
    key = await run.member()
    released, expired = await run.lease(key, groups=1), await run.lease(key, groups=1)
    await run.pool.send(key, "/v1/slots/release", {"slots": [{"step": 0, "index": released.lease.index}]})
    assert status_and_code(await request_ticket(run, key, released)) == (409, "no-lease")
    assert status_and_code(await request_ticket(run, key, expired)) == (200, "")
    await run.pool.clock.turn(timedelta(seconds=101))
    assert status_and_code(await request_ticket(run, key, expired, file=2)) == (409, "no-lease"), (
        "before the expiry was processed"
    )


async def test_after_submission_only_the_submitted_file_can_be_uploaded(run: RunUnderTest) -> None:
    key = await run.member()
    grant = await run.lease(key)
    run.submit_alone(grant, uploaded=False)
    await run.sync.round()
    assert status_and_code(await request_ticket(run, key, grant, file=2)) == (409, "no-lease")
    assert status_and_code(await request_ticket(run, key, grant, file=1)) == (200, "")


async def test_a_file_that_is_already_stored_needs_no_lease(run: RunUnderTest) -> None:
    key = await run.member()
    grant = await run.lease(key)
    place_file(run.pool.dependencies.objects, node=key.address, sha256=sha(1)).write_bytes(bytes(1000))
    await run.pool.clock.turn(timedelta(seconds=101))
    answer = await request_ticket(run, key, grant)
    assert (answer.status_code, answer.json()["already_there"]) == (200, True)


async def test_a_file_larger_than_its_lease_allows_is_refused(make_run: MakeRun) -> None:
    run = make_run(upload_bytes_per_unit=2, upload_bytes_per_group=1000)
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    grant = await run.lease(key, groups=3)
    most = FILE_BYTES + 3 * 1000 + 2 * 300
    assert status_and_code(await request_ticket(run, key, grant, size=most)) == (200, "")
    refused = await request_ticket(run, key, grant, size=most + 1)
    assert status_and_code(refused)[0] == 413
    assert str(most) in refused.json()["detail"]


async def test_the_number_of_different_files_under_one_lease_is_limited(run: RunUnderTest) -> None:
    key = await run.member()
    grant = await run.lease(key)
    for file in (1, 2, 3, 4, 1):
        assert status_and_code(await request_ticket(run, key, grant, file=file)) == (200, "")
    assert status_and_code(await request_ticket(run, key, grant, file=5)) == (409, "no-lease")
    assert status_and_code(await request_ticket(run, key, grant, file=2)) == (200, "")


async def test_other_files_of_a_node_have_a_separate_quota(make_run: MakeRun) -> None:
    run = make_run(upload_other_bytes_per_hour=1000)
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    other = {"kind": "file", "sha256": sha(1), "size": 1000}
    assert status_and_code(await run.pool.send(key, "/v1/uploads", other)) == (200, "")
    assert status_and_code(await run.pool.send(key, "/v1/uploads", other | {"sha256": sha(2)})) == (429, "upload-quota")
    assert status_and_code(await request_ticket(run, key, await run.lease(key), file=3)) == (200, ""), (
        "work has a separate quota"
    )


# Deletion of files


def set_age(run: RunUnderTest, path: Path, age: timedelta = AGE + timedelta(seconds=1)) -> Path:
    """Sets the age of a file."""
    at = (run.pool.clock.now() - age).timestamp()
    os.utime(path, (at, at))
    return path


def put(run: RunUnderTest, key: Key, file: int, age: timedelta = AGE + timedelta(seconds=1)) -> Path:
    return set_age(run, place_file(run.pool.dependencies.objects, node=key.address, sha256=sha(file)), age)


@pytest.mark.parametrize("end", ["released", "expired"])
async def test_files_of_a_slot_that_ends_without_work_are_deleted(run: RunUnderTest, end: str) -> None:
    key = await run.member()
    grant = await run.lease(key)
    await request_ticket(run, key, grant)
    path = put(run, key, 1, timedelta())
    if end == "released":
        await run.pool.send(key, "/v1/slots/release", {"slots": [{"step": 0, "index": 0}]})
    await pass_time(run, timedelta(seconds=111))
    assert await run.sweeper.round() == 0, "the ledger may still report its work"
    await pass_time(run, timedelta(seconds=900))
    assert await run.sweeper.round() == 1
    assert not path.exists()
    assert await run.pool.dependencies.redis.keys("*run:uploads:*") == []


async def test_a_submission_that_is_read_late_protects_its_file(run: RunUnderTest) -> None:
    key = await run.member()
    grant = await run.lease(key)
    await request_ticket(run, key, grant)
    path = put(run, key, 1, timedelta())
    await pass_time(run, timedelta(seconds=111))
    run.submit_alone(grant)
    await pass_time(run, timedelta(seconds=1000))
    assert await run.sweeper.round() == 0
    assert path.exists()


async def test_only_old_files_without_work_are_deleted(run: RunUnderTest) -> None:
    key = await run.member()
    await run.delivered(key, await run.lease(key), file=1)
    used, young, old = put(run, key, 1), put(run, key, 2, AGE - timedelta(seconds=1)), put(run, key, 3)
    foreign = place_file(run.pool.dependencies.objects, node=Key.generate().address, sha256=sha(4))
    audit = run.pool.dependencies.objects.path(  # type: ignore[attr-defined]  # these tests have a local store
        ObjectKey(pool_id=POOL, owner=VALIDATOR.address, sha256=sha(5), audit=True)
    )
    audit.parent.mkdir(parents=True)
    audit.touch()
    for path in (foreign, audit):
        set_age(run, path)
    assert await run.sweeper.round() == 2
    assert [path.exists() for path in (used, young, old, foreign, audit)] == [True, True, False, False, True]


async def test_files_are_kept_as_long_as_their_work_can_be_open(make_run: MakeRun) -> None:
    run = make_run(upload_kept_s=60)
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    needed = 2 * (timedelta(seconds=100) + timedelta(hours=3))
    young, old = put(run, key, 1, needed - timedelta(seconds=1)), put(run, key, 2, needed + timedelta(seconds=1))
    assert await run.sweeper.round() == 1
    assert (young.exists(), old.exists()) == (True, False)


async def test_after_a_loss_of_redis_no_needed_file_is_deleted(make_run: MakeRun) -> None:
    run = make_run(run_units_per_group=100)
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    work = await run.delivered(key, await run.lease(key), file=1)
    needed, unused = put(run, key, 1), put(run, key, 2)
    held = put(run, key, 3, timedelta(minutes=1))  # of a lease that Redis loses
    await run.pool.dependencies.redis.flushall()
    run.chain.read = 0
    assert await run.sweeper.round() == 0, "the ledger was not read completely"
    await run.sync.round()
    assert await run.sweeper.round() == 1
    assert [path.exists() for path in (needed, unused, held)] == [True, False, True]
    run.chain.happen(work, key.address, SlotEvent.JUDGED, Outcome.ACCEPTED)
    await run.sync.round()
    assert await run.sweeper.round() == 0


async def test_a_file_replaced_by_a_reorg_no_longer_belongs_to_the_work(run: RunUnderTest) -> None:
    key = await run.member()
    grant = await run.lease(key)
    work = await run.delivered(key, grant, file=1)
    run.chain.take_back(work)
    await run.sync.round()
    run.submit_alone(grant, file=2)
    await run.sync.round()
    first, second = put(run, key, 1), put(run, key, 2)
    assert await run.sweeper.round() == 1
    assert (first.exists(), second.exists()) == (False, True)


async def test_files_of_a_forgotten_step_are_deleted_by_age_once_their_work_is_final(make_run: MakeRun) -> None:
    run = make_run(run_kept_steps=1)
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    works = [await run.delivered(key, await run.lease(key, groups=1), file=file) for file in (1, 2)]
    old, young = put(run, key, 1), put(run, key, 2, timedelta(hours=1))
    await run.publish(5)
    await run.sync.round()
    assert await run.pool.dependencies.redis.exists(run.pool.dependencies.database.key("run", "named")) == 0
    assert await run.sweeper.round() == 0, "the work is open, although no slot of it is left"
    for work in works:
        run.chain.happen(work, key.address, SlotEvent.EXPIRED)
    assert await run.sweeper.round() == 0, "the end of the work was not read yet"
    await run.sync.round()
    assert await run.sweeper.round() == 1
    assert await run.pool.dependencies.redis.keys("*run:needs*") == []
    assert (old.exists(), young.exists()) == (False, True)


async def test_no_file_is_deleted_if_the_retention_setting_is_zero(make_run: MakeRun) -> None:
    run = make_run(upload_kept_s=0)
    await run.sync.round()
    await run.publish(0)
    path = put(run, await run.member(), 3, timedelta(days=1000))
    assert await run.sweeper.round() == 0
    assert path.exists()


async def test_files_in_an_unavailable_store_are_deleted_later(
    run: RunUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await run.member()
    path = put(run, key, 3)

    async def down(*_: object, **__: object) -> None:
        raise StorageUnavailable("the store is down")

    with monkeypatch.context() as patch:
        patch.setattr(run.pool.dependencies.objects, "delete", down)
        with pytest.raises(StorageUnavailable):
            await run.sweeper.round()
    assert path.exists()
    stuck = put(run, key, 2)
    stuck.unlink()
    stuck.mkdir()
    set_age(run, stuck)
    with pytest.raises(StorageUnavailable):
        await run.sweeper.round()
    assert not path.exists(), "an object that can't be deleted does not stop the others"
    stuck.rmdir()
    assert await run.sweeper.round() == 0


async def test_the_store_is_listed_in_pages(run: RunUnderTest) -> None:
    store = run.pool.dependencies.objects
    nodes = [Key.generate() for _ in range(3)]
    expected = {(node.address, sha(file << 248)) for node in nodes for file in range(1, 6)}
    for owner, sha256 in expected:
        place_file(store, node=owner, sha256=sha256)
    found, cursor, pages = [], "", 0
    while pages < 50:
        page = await store.page(POOL, after=cursor, limit=2)
        found += [(each.key.owner, each.key.sha256) for each in page.objects]
        pages, cursor = pages + 1, page.following
        if not cursor:
            break
    assert sorted(found) == sorted(expected)
    assert pages == 8
    assert (await store.page(POOL + 1, after="", limit=2)).objects == ()
