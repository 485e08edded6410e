"""What goes wrong while a run trains: bad files, a full disk, an orchestrator that is down, an unusable base."""

from __future__ import annotations

import asyncio
import errno
import os
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from protocol.wire.uploads import ObjectKey
from rollouts.errors import BadVersionFolder
from rollouts.recipe import SamplingChoice, write_recipe
from tests.ledger.client.conftest import POOL
from tests.trainer.run.world import RECIPE, TrainedPool, base_folder, half_right, until
from trainer.errors import BadSettings, NothingToLearn, NotWritten
from trainer.run.base import open_base


async def test_one_bad_file_costs_that_file_and_groups_without_signal_are_asked_for_again(pool: TrainedPool) -> None:
    """Of step 0: what is no Parquet, what has vanished, what could not be decided, what has no signal."""
    order: list[int] = []

    def number(step: int, index: int) -> int:
        """How many files were made before this one."""
        if index not in order:
            order.append(index)
        return order.index(index) if step == 0 else 9

    def rewards(step: int, index: int, group: int) -> list[float | None]:
        match number(step, index):
            case 2:
                return [None, 1.0, 0.0, 1.0]
            case 3:
                return [1.0, 1.0, 1.0, 1.0]
            case _:
                return half_right(step, index, group)

    pool.spoil = lambda step, index, content: b"PAR1" + content[:100] if number(step, index) == 0 else content
    pool.lose = lambda step, index: number(step, index) == 1
    pool.rewards = rewards
    async with pool.working():
        assert (await pool.train(steps=2)).step == 2
    first, second = pool.progress("step")
    assert first["files"]["dropped"] == {"not-parquet": 1, "vanished": 1}
    assert first["groups"]["used"] == 2
    assert first["groups"]["left"]["undecided"] >= 1
    assert first["groups"]["left"]["no-signal"] >= 1
    assert first["demand"]["rounds"] >= 1, "more was asked for"
    assert second["files"]["dropped"] == {}


async def test_rollouts_that_the_ledger_does_not_know_are_not_learned(
    pool: TrainedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An orchestrator that names another audit file than the verdict did, with better rewards."""
    judge = pool.judge

    async def forging(grant: Any, file: Any, sha256: Any) -> None:
        await judge(grant, file, sha256)
        if grant.lease.lease.step == 0 and not pool.forged:
            pool.forged.append(grant.lease.lease.key.hash)
            store = pool.run.desk.store
            row = await store.slot_of(grant.lease.lease.key.hash)
            assert row is not None
            audit = pool.path(
                ObjectKey(pool_id=POOL, owner=pool.world.keys["validator"].address, sha256=row.audit_hash, audit=True)
            )
            forged = audit.read_bytes().replace(b'"reward":0.0', b'"reward":1.0')
            name = pool.named(forged)
            pool.store(
                ObjectKey(pool_id=POOL, owner=pool.world.keys["validator"].address, sha256=name, audit=True), forged
            )
            await store.write(row, row.slot, {"audit": name}, due_ms=None)

    monkeypatch.setattr(pool, "judge", forging)
    async with pool.working():
        await pool.train(steps=1)
    [step] = pool.progress("step")
    assert step["files"]["dropped"] == {"not-on-ledger": 1}
    assert step["reward"] == 0.5


async def test_an_orchestrator_that_is_down_is_waited_for_and_nothing_is_lost(pool: TrainedPool) -> None:
    class Down(httpx.AsyncBaseTransport):
        def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
            self.inner, self.until, self.refused = inner, 0.0, 0

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if time.monotonic() < self.until:
                self.refused += 1
                raise httpx.ConnectError("refused")
            return await self.inner.handle_async_request(request)

    line = Down(pool.transport)
    async with pool.working():
        training = asyncio.create_task(pool.train(transport=line))
        await until(lambda: bool(pool.progress("step")))
        line.until = time.monotonic() + 1.0
        assert (await training).step == 3
    assert line.refused > 0
    assert [each["step"] for each in pool.progress("step")] == [0, 1, 2]


async def test_a_full_disk_ends_it_with_words_and_the_same_command_goes_on(
    pool: TrainedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync
    full = pool.folder / "state" / ".state.safetensors.part"

    def no_room(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    async with pool.working():
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", no_room)
            with pytest.raises(NotWritten, match=r"state.safetensors can't be written: No space left"):
                await pool.train()
        assert not full.exists()
        assert (await pool.train()).step == 3


async def test_steps_without_anything_to_learn_end_the_run_with_words(pool: TrainedPool) -> None:
    pool.rewards = lambda step, index, group: [0.0] * 4
    pool.run.desk.terms = pool.run.desk.terms.__class__(**{**_fields(pool.run.desk.terms), "max_rounds": 1})
    async with pool.working():
        with pytest.raises(NothingToLearn, match="the last 2 steps had no group whose rewards differ"):
            await pool.train(most_empty_steps=1)


async def test_groups_become_gradients_as_they_come_and_are_learned_again_in_the_same_parts(
    pool: TrainedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool.working():
        assert (await pool.train(steps=2, groups_per_step=4, asynchrony="periodic")).step == 2
    digests = [line["digest"] for line in pool.progress("published")]
    steps = pool.progress("step")
    assert [step["staleness"] for step in steps] == [{"0": 4}, {"0": 4}]
    recorded = pool.recorded()
    assert [sum(batch.parts) for batch in recorded.batches.values()] == [4, 4]
    assert list(pool.learned_at_once(recorded).values()) == digests[1:]


def test_a_base_that_can_not_be_learned_from_is_refused_before_anything_else(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base")
    write_recipe(base, RECIPE.model_copy(update={"sampling": SamplingChoice(max_new_tokens=6, top_p=0.9)}))
    with pytest.raises(BadSettings, match=r"top_p 0\.9"):
        open_base(base)
    write_recipe(base, RECIPE.model_copy(update={"group_size": 1}))
    with pytest.raises(BadSettings, match="groups of 1 sample"):
        open_base(base)
    write_recipe(base, RECIPE)
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    tokenizer.add_tokens([f"<extra-{number}>" for number in range(64)])
    tokenizer.save(str(base / "tokenizer.json"))
    with pytest.raises(BadVersionFolder, match="the model only 64 tokens"):
        open_base(base)


def _fields(terms: Any) -> dict[str, Any]:
    return {name: getattr(terms, name) for name in terms.__dataclass_fields__}
