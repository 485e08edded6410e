"""The durable queue: order of stages, bounded retries, parking, `kill -9` at every stage."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, cast

import pytest

from protocol.errors import Conflict, InvalidInput, NotFound, RateLimited, TooLarge, Unavailable
from protocol.identifiers import ZERO_DIGEST, address
from protocol.runtime.clock import ManualClock
from worker.daemon import Daemon
from worker.delivery.queue.item import DeliveryStage, QueueItem
from worker.delivery.queue.runner import (
    FIRST_WAIT,
    LONGEST_LOOK,
    LONGEST_WAIT,
    GivenUp,
    NotYet,
    QueueRunner,
    StepBack,
)
from worker.delivery.queue.store import FORMAT, QueueFull, QueueStore
from worker.dependencies import Dependencies
from worker.membership.joining import OrchestratorLocation

CONTENT = b"rollouts" * 1000


class Recorded:
    """A delivery that records its calls, and fails on request."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failures: dict[str, list[Exception]] = {}

    def fail(self, step: str, *errors: Exception) -> None:
        self.failures[step] = list(errors)

    async def request(self, item: QueueItem) -> Mapping[str, str]:
        return self._do("request", item, url="https://store/x")

    async def put(self, item: QueueItem) -> Mapping[str, str]:
        assert item.data["url"] == "https://store/x"
        assert item.path.read_bytes() == CONTENT
        return self._do("put", item)

    async def submit(self, item: QueueItem) -> Mapping[str, str]:
        assert item.sha256 == "0x" + hashlib.sha256(CONTENT).hexdigest()
        return self._do("submit", item)

    async def acknowledge(self, item: QueueItem) -> Mapping[str, str]:
        return self._do("acknowledge", item)

    def _do(self, step: str, item: QueueItem, **found: str) -> Mapping[str, str]:
        self.calls.append(step)
        if self.failures.get(step):
            raise self.failures[step].pop(0)
        return found


@pytest.fixture
def store(tmp_path: Path) -> QueueStore:
    return QueueStore(tmp_path / "queue.sqlite", tmp_path / "spool")


def hand_over(store: QueueStore, tmp_path: Path, key: str = "k", *, most: int = 1 << 20, room: int = 1 << 30) -> str:
    path = tmp_path / "made-by-the-task"
    path.write_bytes(CONTENT)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return store.add(
            descriptor, name="f", kind="rollout", key=key, metadata={}, now_ms=1, most_bytes=most, most_spooled=room
        )[0]
    finally:
        os.close(descriptor)


async def test_an_item_passes_every_stage_in_order_and_its_copy_is_deleted_last(
    store: QueueStore, tmp_path: Path, clock: ManualClock
) -> None:
    hand_over(store, tmp_path)
    delivery = Recorded()
    await QueueRunner(store, delivery, clock=clock).work()
    assert delivery.calls == ["request", "put", "submit", "acknowledge"]
    assert store.items() == []
    assert list((tmp_path / "spool").iterdir()) == []
    assert store.counts()["delivered"] == 1


async def test_later_changes_by_the_task_do_not_change_the_copy(store: QueueStore, tmp_path: Path) -> None:
    item_id = hand_over(store, tmp_path)
    with (tmp_path / "made-by-the-task").open("r+b") as file:
        file.write(b"forged")
    assert store.get(item_id).path.read_bytes() == CONTENT


def test_the_same_key_is_the_same_item_even_after_delivery(store: QueueStore, tmp_path: Path) -> None:
    first = hand_over(store, tmp_path)
    assert hand_over(store, tmp_path) == first
    store.finish(store.get(first), now_ms=2)
    assert hand_over(store, tmp_path) == first
    assert store.items() == []


def test_a_file_over_a_limit_is_refused_and_not_copied(store: QueueStore, tmp_path: Path) -> None:
    with pytest.raises(TooLarge):
        hand_over(store, tmp_path, most=100)
    with pytest.raises(QueueFull):
        hand_over(store, tmp_path, room=100)
    assert list((tmp_path / "spool").iterdir()) == []
    with pytest.raises(NotFound):
        store.get("0" * 32)


def test_the_number_of_waiting_files_is_limited(
    store: QueueStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.delivery.queue.store.MOST_ITEMS", 2)
    for key in ("a", "b", "a"):
        hand_over(store, tmp_path, key)
    with pytest.raises(QueueFull):
        hand_over(store, tmp_path, "c")
    assert len(list((tmp_path / "spool").iterdir())) == 2


async def test_a_failure_is_retried_from_its_own_stage_after_a_growing_delay(
    store: QueueStore, tmp_path: Path, clock: ManualClock
) -> None:
    hand_over(store, tmp_path)
    delivery = Recorded()
    delivery.fail("put", Unavailable("store down"), RuntimeError("bug"))
    runner = QueueRunner(store, delivery, clock=clock)
    await runner.work()
    waiting = store.items()[0]
    assert (waiting.stage, waiting.attempts, waiting.error) == (DeliveryStage.REQUESTED, 1, "store down")
    assert await runner.work() == 0  # not due yet
    await clock.turn(timedelta(seconds=5))
    await runner.work()
    await clock.turn(timedelta(seconds=5))
    await runner.work()
    assert delivery.calls == ["request", "put", "put", "put", "submit", "acknowledge"]


async def test_retry_after_is_respected(store: QueueStore, tmp_path: Path, clock: ManualClock) -> None:
    hand_over(store, tmp_path)
    delivery = Recorded()
    delivery.fail("request", RateLimited("enough for now", retry_after=timedelta(seconds=300)))
    runner = QueueRunner(store, delivery, clock=clock)
    await runner.work()
    await clock.turn(timedelta(seconds=299))
    assert await runner.work() == 0
    await clock.turn(timedelta(seconds=1))
    assert await runner.work() == 1
    assert store.items() == []


async def test_an_absurd_retry_after_neither_parks_an_item_nor_blocks_it_for_ever(
    store: QueueStore, tmp_path: Path, clock: ManualClock
) -> None:
    hand_over(store, tmp_path)
    delivery = Recorded()
    delivery.fail("request", *(RateLimited("no", retry_after=timedelta(days=1000)) for _ in range(3)))
    runner = QueueRunner(store, delivery, clock=clock, attempts=3)
    for _ in range(5):
        await runner.work()
    assert delivery.calls == ["request"]
    await clock.turn(LONGEST_WAIT)
    await runner.work()
    assert delivery.calls == ["request"] * 2
    assert store.items()[0].parked == ""


async def test_after_the_orchestrator_moved_every_item_is_due(
    store: QueueStore, tmp_path: Path, clock: ManualClock
) -> None:
    for key in ("refused", "put off", "new"):
        hand_over(store, tmp_path, key)
    delivery = Recorded()
    delivery.fail("request", InvalidInput("404 without problem details"), Unavailable("down"))
    runner = QueueRunner(store, delivery, clock=clock)
    await runner.work()
    assert store.counts()["delivered"] == 1
    assert store.retry_all() == 2
    assert await runner.work() == 2
    assert store.counts()["delivered"] == 3


async def test_answers_of_the_former_url_park_no_file_after_the_worker_followed(
    store: QueueStore, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(Recorded):
        gates: ClassVar = {"slow": asyncio.Event(), "stuck": asyncio.Event()}
        begun = asyncio.Semaphore(0)

        async def request(self, item: QueueItem) -> Mapping[str, str]:
            self.begun.release()
            await self.gates[item.key].wait()
            self.gates[item.key].clear()
            raise InvalidInput("404 without problem details")

    def killed(*_: object) -> None:
        raise OSError("the process ends here")

    for key in ("slow", "stuck"):
        hand_over(store, tmp_path, key)
    delivery = Refusing()
    runner = QueueRunner(store, delivery, clock=clock)
    running = asyncio.create_task(runner.run())
    for _ in range(2):
        await delivery.begun.acquire()
    asyncio.get_running_loop().call_later(0.05, delivery.gates["slow"].set)
    monkeypatch.setattr("worker.daemon._DRAIN_TIMEOUT", timedelta(seconds=1))
    monkeypatch.setattr("worker.daemon.save_membership", killed)
    daemon = Daemon.__new__(Daemon)
    daemon._runner, daemon._queue = runner, store
    daemon._dependencies = cast("Dependencies", SimpleNamespace(state=None))
    location = OrchestratorLocation(pool_id=1, url="http://127.0.0.1:3", orchestrator=address("0x" + "1" * 40))
    with pytest.raises(OSError, match="ends here"):
        await daemon._follow(location, location)
    assert [item.parked for item in store.items()] == ["", ""]
    async with asyncio.timeout(30):  # the runner goes on, also with the item whose attempt was cancelled
        for _ in range(2):
            await delivery.begun.acquire()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_expired_url_returns_an_item_to_an_earlier_stage_a_bounded_number_of_times(
    store: QueueStore, tmp_path: Path, clock: ManualClock
) -> None:
    hand_over(store, tmp_path)
    delivery = Recorded()
    delivery.fail("put", *(StepBack(DeliveryStage.HASHED, "the URL has expired") for _ in range(100)))
    runner = QueueRunner(store, delivery, clock=clock, attempts=3)
    for _ in range(10):
        await runner.work()
        await clock.turn(LONGEST_WAIT)
    assert Counter(delivery.calls) == {"request": 3, "put": 3}
    assert "expired" in store.items()[0].parked


async def test_an_item_with_a_permanent_error_is_parked_until_a_person_retries_it(
    store: QueueStore, tmp_path: Path, clock: ManualClock
) -> None:
    item_id = hand_over(store, tmp_path)
    delivery = Recorded()
    delivery.fail("submit", InvalidInput("no such lease"))
    runner = QueueRunner(store, delivery, clock=clock)
    await runner.work()
    assert store.get(item_id).parked == "no such lease"
    assert store.counts()["parked"] == 1
    await clock.turn(timedelta(days=1))
    assert await runner.work() == 0
    store.unpark(item_id)
    assert await runner.work() == 1
    assert store.items() == []


async def test_a_backward_clock_jump_delays_no_item(store: QueueStore, tmp_path: Path, clock: ManualClock) -> None:
    hand_over(store, tmp_path)
    delivery = Recorded()
    delivery.fail("request", Unavailable("down"))
    runner = QueueRunner(store, delivery, clock=clock)
    await runner.work()
    clock.jump(-timedelta(days=30))
    assert await runner.work() == 1


async def test_a_failing_item_does_not_delay_others(store: QueueStore, tmp_path: Path, clock: ManualClock) -> None:
    class First(Recorded):
        async def put(self, item: QueueItem) -> Mapping[str, str]:
            if item.key == "bad":
                raise Unavailable("never")
            return await super().put(item)

    hand_over(store, tmp_path, "bad")
    for number in range(6):
        hand_over(store, tmp_path, f"good-{number}")
    runner = QueueRunner(store, First(), clock=clock)
    for _ in range(4):
        await runner.work()
        await clock.turn(timedelta(milliseconds=100))
    assert [item.key for item in store.items()] == ["bad"]


async def test_a_slow_file_does_not_delay_others(store: QueueStore, tmp_path: Path, clock: ManualClock) -> None:
    class OneIsSlow(Recorded):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.delivered = asyncio.Event(), asyncio.Semaphore(0)

        async def put(self, item: QueueItem) -> Mapping[str, str]:
            if item.key == "slow":
                await self.gate.wait()
            return await super().put(item)

        async def acknowledge(self, item: QueueItem) -> Mapping[str, str]:
            self.delivered.release()
            return await super().acknowledge(item)

    delivery = OneIsSlow()
    runner = QueueRunner(store, delivery, clock=clock)
    slow = hand_over(store, tmp_path, "slow")
    running = asyncio.create_task(runner.run())
    for key in "abcdef":
        hand_over(store, tmp_path, key)
        runner.wake()
        async with asyncio.timeout(90):
            await delivery.delivered.acquire()
    assert store.get(slow).stage is DeliveryStage.REQUESTED
    delivery.gate.set()
    async with asyncio.timeout(90):
        await delivery.delivered.acquire()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert Counter(delivery.calls)["put"] == 7


async def test_delivery_at_shutdown_ignores_delays_and_counts_remaining_items(
    store: QueueStore, tmp_path: Path, clock: ManualClock
) -> None:
    hand_over(store, tmp_path, "good")
    store.park(store.get(hand_over(store, tmp_path, "parked")), why="x")
    delivery = Recorded()
    delivery.fail("put", Unavailable("down"))
    runner = QueueRunner(store, delivery, clock=clock)
    await runner.work()
    assert await runner.deliver_now() == 1
    assert [item.key for item in store.items()] == ["parked"]


def test_a_copy_without_an_item_is_removed(store: QueueStore, tmp_path: Path) -> None:
    kept = hand_over(store, tmp_path)
    (tmp_path / "spool" / ("f" * 32)).write_bytes(b"copied, then killed")
    assert store.recover() == 1
    assert [path.name for path in (tmp_path / "spool").iterdir()] == [kept]


def test_items_delivered_by_an_earlier_release_are_still_known(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "queue.sqlite")) as old:
        old.execute("CREATE TABLE finished (key TEXT PRIMARY KEY, id TEXT, sha256 TEXT, at_ms INTEGER)")
        old.execute("INSERT INTO finished VALUES ('k', 'i', ?, 1)", (ZERO_DIGEST,))
        old.commit()
    store = QueueStore(tmp_path / "queue.sqlite", tmp_path / "spool")
    assert store._query("PRAGMA user_version")[0][0] == FORMAT
    ended = store.finished("i")
    assert (ended.given_up, ended.sha256) == ("", ZERO_DIGEST)
    assert (store.counts()["delivered"], store.given_up()) == (1, [])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        ("PRAGMA user_version = 2", "has format '2', and this release reads formats up to 1"),
        ("", "can't be used: file is not a database"),
    ],
)
def test_a_queue_of_a_newer_release_or_no_queue_is_refused_and_not_changed(
    tmp_path: Path, spoil: str, words: str
) -> None:
    path = tmp_path / "queue.sqlite"
    if spoil:
        with closing(sqlite3.connect(path)) as newer:
            newer.execute("CREATE TABLE finished (other TEXT)")
            newer.execute(spoil)
            newer.commit()
    else:
        path.write_bytes(b"torn" * 1000)
    before = path.read_bytes()
    with pytest.raises(Conflict, match=words):
        QueueStore(path, tmp_path / "spool")
    assert path.read_bytes() == before


async def test_an_abandoned_item_is_recorded_with_its_reason_and_its_copy_deleted(
    store: QueueStore, tmp_path: Path, clock: ManualClock
) -> None:
    item = hand_over(store, tmp_path)
    delivery = Recorded()
    delivery.fail("submit", GivenUp("its lease ended"))
    await QueueRunner(store, delivery, clock=clock).work()
    assert (store.items(), list((tmp_path / "spool").iterdir())) == ([], [])
    (ended,) = store.given_up()
    assert (ended.id, ended.name, ended.given_up) == (item, "f", "its lease ended")
    assert (store.counts()["given_up"], store.counts()["delivered"]) == (1, 0)
    assert hand_over(store, tmp_path) == item  # adding the same file again does not queue it again


async def test_waiting_for_an_acknowledgement_is_checked_often_and_is_no_failure(
    store: QueueStore, tmp_path: Path, clock: ManualClock
) -> None:
    hand_over(store, tmp_path)
    delivery = Recorded()
    delivery.fail("acknowledge", *(NotYet("soon") for _ in range(5)))
    runner = QueueRunner(store, delivery, clock=clock, attempts=3)
    for _ in range(6):
        await runner.work()
        await clock.turn(LONGEST_LOOK)
    assert store.items() == []
    assert delivery.calls.count("acknowledge") == 6


async def test_waits_neither_park_an_item_nor_lengthen_the_pause_after_a_failure(
    store: QueueStore, tmp_path: Path, clock: ManualClock
) -> None:
    hand_over(store, tmp_path)
    delivery = Recorded()
    delivery.fail("acknowledge", *(NotYet("soon") for _ in range(20)), Unavailable("the chain is down"))
    runner = QueueRunner(store, delivery, clock=clock, attempts=3)
    for _ in range(21):
        await runner.work()
        await clock.turn(LONGEST_LOOK)
    failed = store.items()[0]
    assert (failed.attempts, failed.parked, failed.error) == (1, "", "the chain is down")
    assert failed.not_before_ms <= (clock.now() - LONGEST_LOOK + FIRST_WAIT).timestamp() * 1000
    assert await runner.work() == 1


async def test_the_pause_between_waits_grows_up_to_its_maximum(
    store: QueueStore, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.delivery.queue.runner.jittered", lambda pause: pause)
    hand_over(store, tmp_path)
    delivery = Recorded()
    delivery.fail("acknowledge", *(NotYet("soon") for _ in range(5)))
    runner = QueueRunner(store, delivery, clock=clock)
    pauses = []
    for _ in range(5):
        await runner.work()
        pauses.append(store.items()[0].not_before_ms / 1000 - clock.now().timestamp())
        await clock.turn(LONGEST_LOOK)
    assert pauses == pytest.approx([2, 4, 8, 10, 10], abs=0.01)


async def test_delivery_at_shutdown_waits_for_submitted_items_only(
    store: QueueStore, tmp_path: Path, clock: ManualClock
) -> None:
    delivery = Recorded()
    delivery.fail("acknowledge", NotYet("soon"), NotYet("soon"))
    hand_over(store, tmp_path)
    runner = QueueRunner(store, delivery, clock=clock)
    ending = asyncio.create_task(runner.deliver_now(linger=timedelta(seconds=30)))
    while not ending.done():
        await asyncio.sleep(0.01)
        await clock.turn(timedelta(seconds=1))
    assert await ending == 0
    delivery.fail("put", Unavailable("down"))
    hand_over(store, tmp_path, "late")
    assert await runner.deliver_now(linger=timedelta(seconds=30)) == 1


PROGRAM = """
import asyncio, os, signal, sys
from pathlib import Path
from protocol.identifiers import ZERO_DIGEST
from protocol.runtime.clock import SystemClock
from worker.delivery.queue.runner import QueueRunner
from worker.delivery.queue.store import QueueStore

home, die_at, when = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

def reached(point):
    if point == die_at:
        os.kill(os.getpid(), signal.SIGKILL)

class Delivery:
    async def _do(self, step, item):
        reached(f"before {step}")
        with (home / "effects").open("a") as file:
            file.write(f"{step}\\n")
            file.flush()
            os.fsync(file.fileno())
        reached(f"after {step}")
        return {step: "done"}
    async def request(self, item): return await self._do("request", item)
    async def put(self, item): return await self._do("put", item)
    async def submit(self, item): return await self._do("submit", item)
    async def acknowledge(self, item): return await self._do("acknowledge", item)

store = QueueStore(home / "queue.sqlite", home / "spool")
store.recover()
finish = store.finish
def finishing(item, **rest):
    reached("before delete")
    item.path.unlink(missing_ok=True)
    reached("between file and row")
    finish(item, **rest)
    reached("after delete")
store.finish = finishing
if when == "add":
    descriptor = os.open(home / "made", os.O_RDONLY)
    store.add(descriptor, name="f", kind="k", key="k", metadata={}, now_ms=1, most_bytes=1 << 20, most_spooled=1 << 30)
    reached("after add")
runner = QueueRunner(store, Delivery(), clock=SystemClock())
asyncio.run(runner.work())
"""

STEPS = ("request", "put", "submit", "acknowledge")
POINTS = [
    "after add",
    *(f"{moment} {step}" for step in STEPS for moment in ("before", "after")),
    "before delete",
    "between file and row",
    "after delete",
]


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_killed_at_any_point_delivers_eventually(tmp_path: Path, point: str) -> None:
    (tmp_path / "made").write_bytes(CONTENT)

    def run(die_at: str, when: str) -> int:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), die_at, when]
        return subprocess.run(command, check=False, timeout=60).returncode

    assert run(point, "add") == -signal.SIGKILL
    assert run("", "resume") == 0
    effects = Counter((tmp_path / "effects").read_text().split())
    assert set(effects) == set(STEPS)
    # Only the step that was interrupted between its effect and its record is repeated.
    repeated = {step for step, count in effects.items() if count > 1}
    assert repeated == ({point.removeprefix("after ")} & set(STEPS) if point.startswith("after") else set())
    store = QueueStore(tmp_path / "queue.sqlite", tmp_path / "spool")
    assert store.items() == []
    assert store.counts()["delivered"] == 1
    assert list((tmp_path / "spool").iterdir()) == []
    assert json.dumps(store.counts())
