"""Settings that changed between two starts: journalled batches are learned under the old settings or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.checkpoints import folder_files, version_digest
from protocol.errors import Conflict
from tests.kit.trained_pool import TrainedPool
from tests.trainer.run.killed import Killed, dies
from trainer.run.state.config_history import changes
from trainer.run.state.journal import Journal, StepBatch, Written


def learning(rate: float) -> dict[str, Any]:
    return {"row_tokens": 64, "optimiser": {"learning_rate": rate, "clip": 1.0, "warm_up_steps": 1}}


def rates(pool: TrainedPool) -> list[tuple[int, Any]]:
    """Returns the learning rates in the journal, with the step from which each applies."""
    return [(each.step, each.values["learning.optimiser.learning_rate"]) for each in pool.recorded().learned_under]


async def killed(
    pool: TrainedPool, monkeypatch: pytest.MonkeyPatch, kind: type[StepBatch | Written], **at: int
) -> None:
    """Runs until this entry has been journalled, and then dies."""
    with monkeypatch.context() as patch:
        append = dies(
            Journal.append,
            lambda _, entry: isinstance(entry, kind) and all(getattr(entry, name) == at[name] for name in at),
            after=True,
        )
        patch.setattr(Journal, "append", append)
        with pytest.raises(Killed):
            await pool.train()


async def test_steps_of_a_written_version_are_not_learned_again_under_other_settings(
    pool: TrainedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool.working():
        await killed(pool, monkeypatch, Written, version=1)
        said = r"version 1 includes .* learning.optimiser.learning_rate was 0.01 and is 0.02"
        with pytest.raises(Conflict, match=said) as refused:
            await pool.train(learning=learning(0.02))
        assert "with the old settings" in refused.value.hint
        assert (await pool.train(steps=1)).step == 1
        assert (await pool.train(steps=2, learning=learning(0.02), groups_per_step=3)).step == 2
    assert rates(pool) == [(0, 0.01), (1, 0.02)]
    assert pool.learned_at_once(pool.recorded())[1] == pool.recorded().written[1]


async def test_a_state_is_saved_after_relearning_so_that_settings_may_then_change(
    pool: TrainedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool.working():
        await killed(pool, monkeypatch, Written, version=1)
        monkeypatch.setattr("trainer.run.app.TrainingRun", None)  # stopped as soon as it was resumed
        with pytest.raises(TypeError):
            await pool.train()
        monkeypatch.undo()
        assert not any((pool.folder / "state" / "rollouts").iterdir()), "files in the state are not stored twice"
        assert (await pool.train(steps=2, learning=learning(0.02))).step == 2
    assert rates(pool) == [(0, 0.01), (1, 0.02)]


async def test_an_unfinished_batch_is_learned_under_the_new_settings(
    pool: TrainedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool.working():
        await killed(pool, monkeypatch, StepBatch, step=0)
        assert (await pool.train(steps=1, learning=learning(0.02))).step == 1
    assert rates(pool) == [(0, 0.01), (0, 0.02)]
    recorded = pool.recorded()
    assert pool.learned_at_once(recorded, learning=learning(0.02))[1] == recorded.written[1]


async def test_a_lowered_limit_of_files_applies_to_future_files(
    pool: TrainedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool.working():
        await killed(pool, monkeypatch, StepBatch, step=0)
        assert (await pool.train(steps=1, most_file_bytes=10)).step == 1
    recorded = pool.recorded()
    assert recorded.batches[0].groups
    assert pool.learned_at_once(recorded)[1] == recorded.written[1]


async def test_a_recorded_version_is_published_even_if_new_settings_would_skip_it(
    pool: TrainedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool.working():
        await killed(pool, monkeypatch, Written, version=1)
        version = pool.folder / "policies" / "1"
        assert not version.exists()
        await pool.train(steps=2, reload_every=2)
    assert version_digest(folder_files(version)) == pool.recorded().written[1], "it is announced, and workers fetch it"


def test_settings_known_to_only_one_release_are_not_a_change() -> None:
    assert changes({"a": 1, "old": 2, "c": [1, 2]}, {"a": 1, "new": 3, "c": [1, 3]}) == {
        "c": "c was [1, 2] and is [1, 3]"
    }
