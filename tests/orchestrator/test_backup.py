"""A drill: a working pool is backed up, loses Redis and its folder, and goes on from the backup."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from pathlib import Path

import pytest

from cli.admin.backup import make_backup
from cli.admin.restore import restore
from cli.admin.services import Pool, configured
from cli.admin.targets import ServicesRunning
from cli.admin.verify import opened
from orchestrator.app import build_orchestrator
from orchestrator.storage.local import LocalStore
from protocol.identifiers import digest
from protocol.redis.connection import connect_redis
from protocol.wire.uploads import ObjectKey
from tests.kit.memory_ledger import POOL, PoolUnderTest
from tests.kit.orchestrator import MakePool
from tests.orchestrator.test_idempotency import KEY, SPEC, send
from tests.orchestrator.test_tasks import assignment_of, report


def configured_as(pool: PoolUnderTest, redis_url: str, folder: Path) -> Pool:
    """Returns the services of a settings file that says what the pool under test has."""
    pool.ledger.deployment.save(folder / "deployment.json")
    settings = folder / "muster.toml"
    settings.write_text(
        f'[orchestrator]\npublic_url = "https://pool.example"\npool_id = {POOL}\nredis_url = "{redis_url}"\n'
        'deployment = "deployment.json"\nsecrets_key_file = "secrets.key"\nstorage_directory = "objects"\n'
    )
    return configured(settings)


async def started(pool: PoolUnderTest, redis_url: str) -> None:
    """Starts and stops the service, which checks the version of its data."""
    app = build_orchestrator(
        pool.dependencies.settings,
        redis=connect_redis(redis_url),
        ledger=pool.ledger,
        key=pool.dependencies.key,
        clock=pool.clock,
        with_loops=False,
    )
    async with app.router.lifespan_context(app):
        pass


async def test_a_pool_goes_on_from_a_backup_made_while_it_worked(
    make_pool: MakePool, redis_url: str, tmp_path: Path
) -> None:
    pool = make_pool()
    await started(pool, redis_url)
    here = configured_as(pool, redis_url, tmp_path)
    node = await pool.member()
    body = {"spec": SPEC, "secrets": {"A": "hush-1"}}
    created = await send(pool, "POST", "/v1/tasks", body, Idempotency_Key=KEY)
    await pool.scheduler.tick()
    assignment = assignment_of(await pool.beat(node))
    await pool.beat(node, **report(assignment, "running", started_at_ms=1))
    store, content = pool.dependencies.objects, b"a file of the node"
    assert isinstance(store, LocalStore)
    key = ObjectKey(pool_id=POOL, owner=node.address, sha256=digest(hashlib.sha256(content).digest()))
    url = await store.presign_get(key, expires=pool.dependencies.settings.heartbeat_interval().shortest)
    store.path(key).parent.mkdir(parents=True)
    store.path(key).write_bytes(content)

    posted: list[str] = []
    begun, ending = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        while not ending.is_set():
            posted.append((await pool.owner("POST", "/v1/tasks", {"spec": {**SPEC, "replicas": 1}}))["id"])
            if len(posted) == 3:
                begun.set()

    working = asyncio.create_task(work())
    await asyncio.wait({working, asyncio.create_task(begun.wait())}, return_when=asyncio.FIRST_COMPLETED)
    made = await make_backup(here, tmp_path / "b.tar")
    ending.set()
    await working
    with opened(made.path) as file:
        lease = pool.liveness._lease
        assert await lease.hold()
        with pytest.raises(ServicesRunning, match="the orchestrator is running"):
            await restore(file, here, replace=True)
        await lease.give_up()
        await pool.dependencies.redis.flushall()
        shutil.rmtree(tmp_path / "objects")
        (tmp_path / "secrets.key").unlink()
        await restore(file, here)

    again = make_pool()
    await started(again, redis_url)
    store = again.dependencies.objects
    assert isinstance(store, LocalStore)
    assert store.path(key).read_bytes() == content
    assert await store.presign_get(key, expires=again.dependencies.settings.heartbeat_interval().shortest) == url
    assert assignment_of(await again.beat(node)).secrets["A"].get_secret_value() == "hush-1"
    repeated = await send(again, "POST", "/v1/tasks", body, Idempotency_Key=KEY)
    assert (repeated.headers.get("idempotent-replayed"), repeated.content) == ("true", created.content)
    known = {each["id"] for each in (await again.owner("GET", "/v1/tasks?limit=500"))["tasks"]}
    kept = [each for each in posted if each in known]
    assert kept == posted[: len(kept)]
    assert len(kept) >= 3
    kinds = [each["kind"] for each in (await again.owner("GET", "/v1/events?limit=500"))["events"]]
    assert kinds.count("task.created") == len(kept) + 1, "a task and its event are in the backup, or neither is"
    await again.beat(node, **report(assignment, "completed", exit_code=0))
    await again.scheduler.tick()
    assert (await again.owner("GET", f"/v1/tasks/{created.json()['id']}"))["assignments"]["completed"] == 1
    third = await again.member()  # what the ledger says is read again
    await again.sync.round()
    assert third.address in {each["address"] for each in (await again.owner("GET", "/v1/nodes"))["nodes"]}
