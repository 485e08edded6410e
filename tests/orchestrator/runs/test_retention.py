"""Retention of objects: random lifecycles of work, audit files, crashes, dry runs and pools without a run."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from orchestrator.domain.slots import SlotEvent
from orchestrator.loops.retention import build_retention
from orchestrator.metrics import RetentionMetrics
from orchestrator.storage.local import LocalStore
from protocol.identifiers import Address, Digest, run_id
from protocol.identity.keys import Key
from protocol.leases import Lease
from protocol.redis.leader_lease import LeaderLease
from protocol.verdicts import Outcome
from protocol.wire.slots import SlotGrant
from protocol.wire.uploads import ObjectKey
from tests.kit.memory_ledger import POOL
from tests.kit.memory_run_ledger import VALIDATOR, RunUnderTest, sha
from tests.kit.orchestrator import MakePool
from tests.kit.runs import MakeRun

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
KEPT = {False: DAY, True: 2 * DAY}
"""Retention times of files and of audit files in these tests."""
KEPT_STEPS = 2
SEEDS = range(int(os.environ.get("MUSTER_RETENTION_SEEDS", "4")))
"""Random lifecycles; more seeds search longer."""
OUTCOMES = (Outcome.ACCEPTED, Outcome.ACCEPTED, Outcome.REJECTED, Outcome.FORGED)


def place(run: RunUnderTest, owner: Address, number: int, *, audit: bool = False, age: timedelta = timedelta()) -> Path:
    """Writes an object of ten bytes with an age by the manual clock."""
    store = run.pool.dependencies.objects
    assert isinstance(store, LocalStore)
    path = store.path(ObjectKey(pool_id=POOL, owner=owner, sha256=sha(number), audit=audit))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(10))
    at = (run.pool.clock.now() - age).timestamp()
    os.utime(path, (at, at))
    return path


@dataclass
class Work:
    """Work as the model knows it."""

    key: Digest
    node: Address
    step: int
    objects: list[Path]
    since: datetime
    state: str = "submitted"
    copied: bool = False
    """Whether other work of the node names the same file; then nobody keeps the file for the trainer."""
    outcome: Outcome | None = None


@dataclass
class Lifecycles:
    """A run whose work, verdicts, versions, time and losses of Redis happen at random.

    Nothing ends work after a time: if no validator is up, work stays open for as long as it takes.
    """

    run: RunUnderTest
    nodes: list[Key]
    draw: random.Random
    version: int = 0
    files: int = 0
    works: list[Work] = field(default_factory=list)
    placed: dict[Path, tuple[datetime, bool]] = field(default_factory=dict)
    lost: bool = False

    def put(self, owner: Address, *, audit: bool = False) -> Path:
        self.files += 1
        path = place(self.run, owner, self.files, audit=audit)
        self.placed[path] = (self.run.pool.clock.now(), audit)
        return path

    async def submit(self) -> None:
        if self.lost:
            return  # after a loss of Redis, nodes have to join first
        key = self.draw.choice(self.nodes)
        for step in range(self.version, self.version + 3):  # the first step that needs rollouts
            answer = await self.run.ask(key, step=step, groups=1)
            if answer.status_code == 200:
                break
        else:
            return
        path = self.put(key.address)
        if self.draw.random() < 0.2:
            return  # the lease ends without work
        grant = SlotGrant.model_validate_json(answer.content)
        assert self.run.submit_alone(grant, file=self.files, uploaded=False) == ""
        self.works.append(Work(grant.lease.lease.key.hash, key.address, step, [path], self.run.pool.clock.now()))

    async def judge(self) -> None:
        if work := self._one("submitted", "disputed"):
            decides = work.state == "disputed"
            work.outcome = self.draw.choice(OUTCOMES)
            work.objects.append(self.put(VALIDATOR.address, audit=True))
            event = SlotEvent.DECIDED if decides else SlotEvent.JUDGED
            self.run.chain.happen(work.key, work.node, event, work.outcome, audit=sha(self.files))
            work.state = "decided" if decides else "provisional"

    async def dispute(self) -> None:
        if work := self._one("provisional"):
            work.objects.append(self.put(work.node, audit=True))
            self.run.chain.happen(work.key, work.node, SlotEvent.DISPUTED, audit=sha(self.files))
            work.state = "disputed"

    async def submit_for_another_run(self) -> None:
        """Work under a lease of a run that this orchestrator does not follow."""
        key, step = self.draw.choice(self.nodes), len(self.works)
        path, now = self.put(key.address), int(self.run.pool.clock.now().timestamp())
        lease = Lease(
            pool_id=POOL,
            run=run_id("another"),
            node=key.address,
            step=step,
            index=0,
            version=0,
            digest=sha(1),
            groups=1,
            max_units=9,
            beacon_block=1,
            salt=sha(2),
            expiry=now + 100,
        )
        assert self.run.chain.submit(lease, sha(self.files), 1) == ""
        self.works.append(Work(lease.key.hash, key.address, -1, [path], self.run.pool.clock.now()))

    async def submit_again(self) -> None:
        """A node names a file under a second lease that its other work names already."""
        if self.works and not self.lost:
            work = self.draw.choice(self.works)
            key = next(each for each in self.nodes if each.address == work.node)
            answer = await self.run.ask(key, step=self.version, groups=1)
            if answer.status_code == 200 and work.objects[0].exists():
                grant = SlotGrant.model_validate_json(answer.content)
                file = int(work.objects[0].name[:64], 16)
                assert self.run.submit_alone(grant, file=file, uploaded=False) == ""
                now, lease = self.run.pool.clock.now(), grant.lease.lease
                self.works.append(Work(lease.key.hash, key.address, self.version, work.objects[:1], now, copied=True))
                work.copied = True

    async def finish(self) -> None:
        if work := self._one("submitted", "provisional", "decided"):
            self._end(work)

    async def learn(self) -> None:
        self.version += 1
        await self.run.publish(self.version)

    async def unused(self) -> None:
        self.put(self.draw.choice(self.nodes).address)

    async def wait(self) -> None:
        await self.run.sync.round()
        time = self.draw.choice([timedelta(minutes=3), 5 * HOUR, 20 * HOUR, 60 * HOUR])
        await self.run.pool.clock.turn(time)

    async def lose_redis(self) -> None:
        if not self.lost and len(self.works) > 10:
            await self.run.pool.dependencies.redis.flushall()
            self.run.chain.read, self.lost = 0, True

    def _one(self, *states: str) -> Work | None:
        found = [work for work in self.works if work.state in states]
        return self.draw.choice(found) if found else None

    def _end(self, work: Work) -> None:
        if work.outcome is None:
            self.run.chain.happen(work.key, work.node, SlotEvent.EXPIRED)
        else:
            self.run.chain.happen(work.key, work.node, SlotEvent.FINAL, work.outcome)
        work.state = "final"

    async def sweep(self) -> None:
        if self.draw.random() < 0.8:
            await self.run.sync.round()
        await self.run.sweeper.round()
        self.check()

    def check(self) -> None:
        for work in self.works:
            unlearned = work.outcome is Outcome.ACCEPTED and work.step >= self.version and not work.copied
            if work.state != "final" or unlearned:
                assert all(path.exists() for path in work.objects), work
        now = self.run.pool.clock.now()
        for work in self.works:
            for path in work.objects:
                written, audit = self.placed[path]
                assert path.exists() or now - written >= KEPT[audit]


@pytest.mark.parametrize("seed", SEEDS)
async def test_no_object_of_open_or_unlearned_work_is_deleted_and_all_others_are(make_run: MakeRun, seed: int) -> None:
    run = make_run(
        upload_kept_s=KEPT[False].total_seconds(),
        audit_kept_s=KEPT[True].total_seconds(),
        run_kept_steps=KEPT_STEPS,
        run_groups=3,
        run_units_per_group=100,
    )
    await run.sync.round()
    await run.publish(0)
    world = Lifecycles(run, [await run.member() for _ in range(3)], random.Random(seed))
    steps = [world.submit] * 6 + [world.judge] * 5 + [world.dispute] * 2 + [world.finish] * 3 + [world.sweep] * 5
    steps += [world.learn, world.unused, *[world.wait] * 4, world.lose_redis]
    steps += [world.submit_for_another_run, world.submit_again]
    for _ in range(80):
        await world.draw.choice(steps)()
    for work in world.works:
        if work.state != "final":
            world._end(work)
    assert world.works
    for learned in (0, 3):  # final work that is not learned, then learned work
        for _ in range(learned):
            await world.learn()
        await run.pool.clock.turn(3 * DAY)
        await run.sync.round()
        for _ in range(3):
            await run.sweeper.round()
            world.check()
    assert [path for path in world.placed if path.exists()] == []
    redis = run.pool.dependencies.redis
    assert [await redis.keys(f"*run:{kind}*") for kind in ("uploads:", "needs")] == [[], []]


async def test_audit_files_are_kept_with_their_work_and_counted(make_run: MakeRun) -> None:
    """Also: no age deletes them with `audit_kept_s = 0`, and a dry run deletes nothing, but reports it."""
    usual = {"upload_kept_s": DAY.total_seconds(), "audit_kept_s": 2 * DAY.total_seconds()}
    run = make_run(**usual)
    await run.sync.round()
    await run.publish(0)
    key = await run.member()
    work = await run.delivered(key, await run.lease(key), file=1)
    run.chain.happen(work, key.address, SlotEvent.JUDGED, Outcome.ACCEPTED, audit=sha(2))
    await run.sync.round()
    file = place(run, key.address, 1, age=3 * DAY)
    named, unnamed, young = (
        place(run, VALIDATOR.address, number, audit=True, age=age)
        for number, age in ((2, 3 * DAY), (3, 3 * DAY), (4, 47 * HOUR))
    )
    paths = (file, named, unnamed, young)

    def there() -> list[bool]:
        return [path.exists() for path in paths]

    def value(name: str, **labels: str) -> float:
        return run.metrics.get_sample_value(f"muster_orchestrator_{name}", labels) or 0.0

    dry, never = make_run(**usual, retention_dry_run=True), make_run(**(usual | {"audit_kept_s": 0}))
    for other, reported in ((dry, 1), (never, 0)):
        await run.sweeper._lease.give_up()
        with capture_logs() as logs:
            assert await other.sweeper.round() == 0
        await other.sweeper._lease.give_up()
        assert there() == [True, True, True, True]
        swept = [line for line in logs if line["event"] == "objects-swept"]
        assert [(line["kind"], line["dry_run"], line["expired_objects"]) for line in swept] == [
            ("audit", True, 1)
        ] * reported
    assert await run.sweeper.round() == 1, "the audit file that no verdict names"
    assert there() == [True, True, False, True]
    assert value("retention_deleted_total", kind="audit") == 1
    assert value("retention_deleted_bytes_total", kind="audit") == 10
    decisions = ("young", "needed", "expired")
    assert [value("stored_objects", kind="audit", retention=each) for each in decisions] == [1, 1, 1]
    assert value("stored_objects_bytes", kind="file", retention="needed") == 10
    run.chain.happen(work, key.address, SlotEvent.FINAL, Outcome.ACCEPTED)
    await run.sync.round()
    assert await run.sweeper.round() == 0, "the trainer has not learned from it"
    await run.publish(1)
    assert await run.sweeper.round() == 2
    assert there() == [False, False, False, True]


async def test_kills_and_a_full_disk_lose_nothing_that_is_needed_and_the_rest_goes(
    make_run: MakeRun, redis_url: str
) -> None:
    """Real processes, killed at any time: an object goes before its record, so the next process finds the record."""
    run = make_run(run_delivery_threshold=0)
    await run.sync.round()
    await run.publish(0)
    nodes, number, gone, kept = [await run.member() for _ in range(3)], 0, [], []
    for key in nodes:
        for _ in range(2):
            grant = await run.lease(key, groups=1)
            slot = {"step": 0, "index": grant.lease.index}
            for _ in range(2):  # of a lease that ends without work
                number += 1
                body = {"kind": "rollout", "sha256": sha(number), "size": 10, "slot": slot}
                assert (await run.pool.send(key, "/v1/uploads", body)).status_code == 200
                gone.append(place(run, key.address, number))
    await run.pool.clock.turn(timedelta(seconds=111))
    await run.sync.round()
    for key in nodes:
        number += 1
        await run.delivered(key, await run.lease(key, groups=1), file=number)
        kept.append(place(run, key.address, number, age=30 * DAY))
        gone += [place(run, key.address, number + 100 + each, age=30 * DAY) for each in range(5)]
        number += 5
    await run.pool.clock.turn(timedelta(seconds=1000))
    await run.sync.round()
    redis, directory = run.pool.dependencies.redis, run.pool.dependencies.settings.storage_directory
    now = str(run.pool.clock.now().timestamp())

    def start(*disk: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.orchestrator.runs.sweeping_process", redis_url, str(directory), now]
        return subprocess.Popen([*command, *disk], stdout=subprocess.PIPE, text=True)

    for _ in range(3):
        with start() as process:
            assert process.stdout is not None
            for _ in range(4):
                await asyncio.to_thread(process.stdout.readline)
            process.kill()
        assert all(path.exists() for path in kept)
        await redis.delete(run.pool.dependencies.database.key("lease", "sweep"))
    with start("full") as process:
        said, _ = await asyncio.to_thread(process.communicate)
    assert (process.returncode, said.splitlines()[-1]) == (0, "done")
    assert [path for path in gone if path.exists()] == []
    assert all(path.exists() for path in kept)
    assert await run.leasing.store.discarded(until_ms=1 << 60, limit=9) == []
    assert await redis.keys("*run:uploads:*") == []


async def test_another_instance_that_takes_over_ends_the_round(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = make_run(), make_run()
    await run.sync.round()
    await run.publish(0)
    owner = Key.generate().address
    for number in range(60):
        place(run, owner, number + 1, age=30 * DAY)
    store = run.pool.dependencies.objects
    deletes = type(store).delete

    async def slow(self: LocalStore, key: ObjectKey) -> None:
        await deletes(self, key)
        if sum(1 for _ in self.path(key).parent.iterdir()) == 50:
            await run.pool.dependencies.redis.delete(run.pool.dependencies.database.key("lease", "sweep"))
            assert await other.sweeper._lease.hold()

    monkeypatch.setattr(type(store), "delete", slow)
    assert await run.sweeper.round() == 24
    monkeypatch.undo()
    assert await other.sweeper.round() == 36


async def test_a_pool_without_a_run_deletes_old_files(make_pool: MakePool) -> None:
    pool = make_pool(upload_kept_s=DAY.total_seconds())
    store = pool.dependencies.objects
    assert isinstance(store, LocalStore)
    owner = Key.generate().address
    paths = []
    for number, age in ((1, 2 * DAY), (2, HOUR)):
        paths.append(store.path(ObjectKey(pool_id=POOL, owner=owner, sha256=sha(number))))
        paths[-1].parent.mkdir(parents=True, exist_ok=True)
        paths[-1].touch()
        at = (pool.clock.now() - age).timestamp()
        os.utime(paths[-1], (at, at))
    lease = LeaderLease(pool.dependencies.database, "sweep", lifetime=timedelta(seconds=60))
    loop = build_retention(pool.dependencies, lease=lease, metrics=RetentionMetrics(CollectorRegistry()))
    assert await loop.round() == 1
    assert [path.exists() for path in paths] == [False, True]
