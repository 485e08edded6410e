"""A trainer's state is backed up while it trains, and a run goes on from a backup as it would have without a loss."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cli.admin.archive import ServiceName
from cli.admin.backup import make_backup
from cli.admin.restore import NotEmpty, restore
from cli.admin.services import Pool, configured
from cli.admin.targets import OtherBackup
from cli.admin.verify import opened
from protocol.checkpoints import folder_files, version_digest
from protocol.errors import Conflict, InvalidInput
from tests.kit.memory_run_ledger import RUN
from tests.kit.trained_pool import TrainedPool, until
from tests.kit.world import POOL
from trainer.errors import AnotherTrainer
from trainer.run.state.folder import RESTORING_FILE, lock_state
from trainer.run.state.journal import Journal
from trainer.run.state.snapshot import open_snapshot


def services(pool: TrainedPool, redis_url: str) -> Pool:
    pool.world.deployment.save(pool.folder / "deployment.json")
    settings = pool.folder / "muster.toml"
    settings.write_text(
        f'[orchestrator]\npublic_url = "https://pool.example"\npool_id = {POOL}\nredis_url = "{redis_url}"\n'
        'deployment = "deployment.json"\nsecrets_key_file = "orchestrator/secrets.key"\n'
        'storage_directory = "orchestrator/objects"\n'
        f'[trainer]\nrun = "{RUN}"\npool_id = {POOL}\norchestrator = "https://pool.example"\n'
        'deployment = "deployment.json"\nstart = "base"\npolicies = "policies"\nstate = "state"\n'
    )
    return configured(settings)


async def test_a_run_goes_on_from_a_backup_with_the_same_next_step(pool: TrainedPool, redis_url: str) -> None:
    here, state = services(pool, redis_url), pool.folder / "state"
    with pytest.raises(InvalidInput, match="there is nothing to back up"):
        await make_backup(here, pool.folder / "b.tar")
    assert not list(pool.folder.glob("*b.tar*"))
    async with pool.working():
        await pool.train(steps=2)
    before = pool.recorded()
    made = await make_backup(here, pool.folder / "b.tar")
    assert [part.name for part in made.parts] == [
        "orchestrator-redis", "orchestrator-secrets", "orchestrator-objects", "trainer-state",
    ]  # fmt: skip
    with opened(made.path) as file:
        with pytest.raises(NotEmpty):
            await restore(file, here, only=[ServiceName.TRAINER])
        with lock_state(state), pytest.raises(AnotherTrainer):
            await restore(file, here, only=[ServiceName.TRAINER], replace=True)
        await pool.run.pool.dependencies.redis.flushall()
        shutil.rmtree(pool.folder / "orchestrator")
        shutil.rmtree(state)
        foreign, saved = state / "rollouts" / "notes", state / "state.safetensors"
        foreign.parent.mkdir(parents=True)
        foreign.write_text("of the operator")
        saved.touch()
        with pytest.raises(NotEmpty, match=r"state\.safetensors exists"):  # also without a journal
            await restore(file, here, only=[ServiceName.TRAINER])
        saved.unlink()
        await restore(file, here)
        assert foreign.read_text() == "of the operator"
        foreign.unlink()
    pool.run.chain.forget_position()
    with open_snapshot(state) as copy:
        assert copy.step == 2
    async with pool.working():
        assert (await pool.train(steps=4)).step == 4
    recorded = pool.recorded()
    assert {step: recorded.batches[step] for step in before.batches} == before.batches
    assert pool.learned_at_once(recorded) == {version: recorded.written[version] for version in range(1, 5)}
    folder = pool.folder / "policies" / "4"
    assert version_digest(folder_files(folder)) == recorded.written[4]
    assert (await pool.run.pool.owner("GET", "/v1/run"))["checkpoint"]["version"] == 4

    with opened(made.path) as file:
        text = (pool.folder / "muster.toml").read_text()
        (pool.folder / "muster.toml").write_text(text.replace(f'run = "{RUN}"', 'run = "other"'))
        with pytest.raises(OtherBackup, match="and is 'other' now"):
            await restore(file, configured(pool.folder / "muster.toml"), only=[ServiceName.TRAINER], replace=True)
        (state / RESTORING_FILE).touch()  # as after an interruption
        with pytest.raises(Conflict, match="not restored completely"):
            await pool.train(steps=5)
        await restore(file, here, only=[ServiceName.TRAINER])
    assert not (state / RESTORING_FILE).exists()
    with pytest.raises(AnotherTrainer, match="the ledger names version 4"):  # no second history begins
        await pool.train(steps=5)
    (state / "state.safetensors").unlink()
    with pytest.raises(InvalidInput, match="is missing: the run can't continue"):
        await make_backup(here, pool.folder / "c.tar")


async def test_copies_made_while_a_run_trains_fit_together(pool: TrainedPool, redis_url: str, tmp_path: Path) -> None:
    here, state = services(pool, redis_url), pool.folder / "state"
    trainer = Pool([one for one in here.services if one.name == "trainer"], ())
    steps: list[int] = []
    async with pool.working():
        training = asyncio.create_task(pool.train(steps=4, state_every=2))
        await until(lambda: (state / "journal.jsonl").exists() and b"written" in (state / "journal.jsonl").read_bytes())
        while not training.done():
            file = tmp_path / f"{len(steps)}.tar"
            made = await make_backup(trainer, file)
            (tmp_path / "copy").mkdir()
            other = Pool([replace(trainer.services[0], state=tmp_path / "copy")], ())
            with opened(made.path) as source:
                await restore(source, other)
            with open_snapshot(tmp_path / "copy") as copy:  # all files that the journal names after the state are there
                steps.append(copy.step)
            assert Journal(tmp_path / "copy").read().batches.keys() >= set(range(copy.step))
            shutil.rmtree(tmp_path / "copy")
            await asyncio.sleep(0.1)
        assert (await training).step == 4
    assert steps == sorted(steps)
    assert any(0 < step < 4 for step in steps)
