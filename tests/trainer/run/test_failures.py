"""Failures during a run: bad files, a full disk, an orchestrator outage, an unusable base."""

from __future__ import annotations

import asyncio
import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs
from tokenizers import Tokenizer

from orchestrator.store.run_rows import SlotRow
from protocol.identifiers import Digest
from protocol.wire.uploads import ObjectKey
from rollouts.environments import is_held_out, load_environment
from rollouts.errors import BadVersionFolder
from rollouts.recipe import PromptRange, SamplingChoice, write_recipe
from tests.kit.trained_pool import RECIPE, TrainedPool, base_folder, half_right, until
from tests.kit.world import POOL
from trainer.errors import BadSettings, NothingToLearn, NotWritten
from trainer.policy.base_model import open_base


async def test_one_bad_file_is_dropped_and_groups_without_signal_are_requested_again(pool: TrainedPool) -> None:
    """Files of step 0: one is no Parquet, one has vanished, one has undecided rows, one has no signal."""
    order: list[int] = []

    def number(step: int, index: int) -> int:
        """Returns how many files were made before this one."""
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
    assert first["demand"]["rounds"] >= 1, "more groups were requested"
    assert second["files"]["dropped"] == {}


async def test_a_validator_that_inverts_rewards_is_reported_and_not_learned_from(
    pool: TrainedPool,
) -> None:
    """The first file of step 0 has inverted rewards: it is dropped and logged, and more groups are requested."""
    first: list[int] = []

    def upside_down(step: int, index: int, group: int) -> list[float | None]:
        right = half_right(step, index, group)
        first[:] = first or [index]
        return [None if one is None else 1.0 - one for one in right] if (step, index) == (0, first[0]) else right

    pool.audited = upside_down
    with capture_logs() as lines:
        async with pool.working():
            assert (await pool.train(steps=1)).step == 1
    [step] = pool.progress("step")
    assert step["files"]["dropped"] == {"other-rewards": 1}
    assert step["groups"]["used"] == 2
    [line] = [line for line in lines if line["event"] == "file-dropped"]
    assert "row 0 has the reward" in line["why"]
    assert pool.world.keys["validator"].address in line["why"]


async def test_rewards_that_do_not_match_the_ledger_are_not_learned(
    pool: TrainedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The orchestrator names another audit file than the verdict did, with higher rewards."""
    owner, judge = pool.run.pool.dependencies.run_control, pool.world.keys["validator"].address
    assert owner is not None
    listed = owner.rollouts
    forged: list[Digest] = []

    async def forging(**asked: Any) -> tuple[list[SlotRow], str | None]:
        rows, cursor = await listed(**asked)
        if rows and not forged:
            audit = pool.path(ObjectKey(pool_id=POOL, owner=judge, sha256=rows[0].audit_hash, audit=True))
            better = audit.read_bytes().replace(b'"reward":0.0', b'"reward":1.0')
            forged.extend([rows[0].key, pool.named(better)])
            pool.store(ObjectKey(pool_id=POOL, owner=judge, sha256=forged[1], audit=True), better)
        return [replace(row, audit_hash=forged[1]) if row.key in forged else row for row in rows], cursor

    monkeypatch.setattr(owner, "rollouts", forging)
    async with pool.working():
        await pool.train(steps=1)
    [step] = pool.progress("step")
    assert step["files"]["dropped"] == {"not-on-ledger": 1}
    assert step["reward"] == 0.5


async def test_after_an_orchestrator_outage_with_lost_redis_the_trainer_repeats_its_settings(
    pool: TrainedPool,
) -> None:
    class Down(httpx.AsyncBaseTransport):
        def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
            self.inner, self.down, self.refused = inner, False, 0

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if self.down:
                self.refused += 1
                raise httpx.ConnectError("refused")
            return await self.inner.handle_async_request(request)

    line = Down(pool.transport)
    async with pool.working():
        training = asyncio.create_task(pool.train(transport=line))
        await until(lambda: bool(pool.progress("step")))
        line.down = True
        await until(lambda: line.refused > 3)
        await pool.lose_redis()
        line.down = False
        assert (await training).step == 3
    assert [each["step"] for each in pool.progress("step")] == [0, 1, 2]


async def test_a_full_disk_ends_the_run_and_the_same_command_resumes_it(
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
                await pool.train(steps=1)
        assert not full.exists()
        assert (await pool.train(steps=1)).step == 1


async def test_steps_without_reward_differences_end_the_run_with_a_reason(pool: TrainedPool) -> None:
    pool.rewards = lambda step, index, group: [0.0] * 4
    pool.run.leasing.terms = replace(pool.run.leasing.terms, max_rounds=1)
    async with pool.working():
        with pytest.raises(NothingToLearn, match="the last 1 steps had no group whose rewards differ"):
            await pool.train(most_empty_steps=0)


async def test_streamed_groups_are_relearned_in_the_same_parts(
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


def test_an_unsuitable_base_is_refused_before_the_run_starts(tmp_path: Path) -> None:
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
    with pytest.raises(BadVersionFolder, match="the model has only 64 tokens"):
        open_base(base)


def test_a_run_over_a_range_excludes_held_out_prompts(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base")
    write_recipe(base, RECIPE.model_copy(update={"held_out": 0.3, "prompts": PromptRange(first=10, count=90)}))
    letters = load_environment("letters")
    candidates = open_base(base).candidates
    assert candidates is not None
    expected = [index for index in range(10, 100) if not is_held_out(letters.prompt(index), 0.3)]
    assert candidates.tolist() == expected
    alone = next(index for index in range(10, 100) if index not in expected)
    write_recipe(base, RECIPE.model_copy(update={"held_out": 0.3, "prompts": PromptRange(first=alone, count=1)}))
    with pytest.raises(BadSettings, match="holds out all of its prompts"):
        _ = open_base(base).candidates
