"""A version is published without training."""

from __future__ import annotations

import asyncio
import shutil

import pytest

from protocol.errors import Conflict
from protocol.identifiers import run_id
from tests.kit.memory_run_ledger import RUN
from tests.kit.trained_pool import TrainedPool, until
from tests.kit.world import POOL, QUICK
from trainer.errors import AnotherTrainer
from trainer.run.connections import Outside
from trainer.run.one_version import PublishedVersion, publish_one


async def publish(pool: TrainedPool, folder: str) -> PublishedVersion:
    outside = Outside(clock=pool.clock, transport=pool.transport, policy=QUICK)
    return await publish_one(
        pool.settings(start=pool.folder / folder), key=pool.world.keys["publisher"], outside=outside
    )


async def test_nodes_lease_slots_of_a_version_that_is_published_by_hand(pool: TrainedPool) -> None:
    first = await publish(pool, "base")
    assert (first.version, first.is_new) == (0, True)
    again = await publish(pool, "base")
    assert again == PublishedVersion(version=0, digest=first.digest, is_new=False)

    shutil.copytree(pool.folder / "base", pool.folder / "next")
    (pool.folder / "next" / "recipe.json").write_text(
        (pool.folder / "base" / "recipe.json").read_text().replace('"temperature": 1.0', '"temperature": 0.9')
    )
    second = await publish(pool, "next")
    assert second.version == 1
    assert second.digest != first.digest
    await pool.run.sync.round()
    checkpoint = (await pool.run.leasing.step()).checkpoint
    assert checkpoint is not None
    assert (checkpoint.version, checkpoint.digest) == (1, second.digest)
    ledger = await pool.world.as_("publisher")
    latest = await ledger.checkpoints.latest(POOL, run_id(RUN))
    assert latest is not None
    assert latest.digest == second.digest


async def test_a_foreign_folder_of_the_same_number_is_kept(pool: TrainedPool) -> None:
    policies = pool.settings().policies
    (policies / "0").mkdir(parents=True)
    (policies / "0" / "config.json").write_text("{}")
    with pytest.raises(Conflict, match="is not version 0 of this run"):
        await publish(pool, "base")
    assert (policies / "0" / "config.json").read_text() == "{}"
    ledger = await pool.world.as_("publisher")
    assert await ledger.checkpoints.latest(POOL, run_id(RUN)) is None


async def test_nothing_is_published_while_a_trainer_works(pool: TrainedPool) -> None:
    stop = asyncio.Event()
    training = asyncio.create_task(pool.train(stop=stop))
    await until((pool.folder / "state" / "progress.jsonl").exists)
    with pytest.raises(AnotherTrainer):
        await publish(pool, "base")
    stop.set()
    await training
