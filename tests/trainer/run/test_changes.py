"""Settings that are others at the next start: what was journalled is learned as it was, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.checkpoints import folder_files, version_digest
from protocol.errors import Conflict
from tests.kit.trained_pool import TrainedPool
from tests.trainer.run.killed import Killed, dies
from trainer.run.config_history import changes
from trainer.run.journal import Journal, StepBatch, Written


def learning(rate: float) -> dict[str, Any]:
    return {"row_tokens": 64, "optimiser": {"learning_rate": rate, "clip": 1.0, "warm_up_steps": 1}}


def rates(pool: TrainedPool) -> list[tuple[int, Any]]:
    """What the journal says of learning rates: since which step, and which."""
    return [(each.step, each.values["learning.optimiser.learning_rate"]) for each in pool.recorded().learned_under]


async def killed(
    pool: TrainedPool, monkeypatch: pytest.MonkeyPatch, kind: type[StepBatch | Written], **at: int
) -> None:
    """A run that dies when it has journalled this."""
    with monkeypatch.context() as patch:
        append = dies(
            Journal.append,
            lambda _, entry: isinstance(entry, kind) and all(getattr(entry, name) == at[name] for name in at),
            after=True,
        )
        patch.setattr(Journal, "append", append)
        with pytest.raises(Killed):
            await pool.train()


async def test_steps_that_a_version_was_made_of_are_not_learned_again_under_other_settings(
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


async def test_a_state_is_written_of_what_was_learned_again_so_that_settings_may_be_changed_then(
    pool: TrainedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool.working():
        await killed(pool, monkeypatch, Written, version=1)
        monkeypatch.setattr("trainer.run.app.TrainingRun", None)  # stopped as soon as it was taken up
        with pytest.raises(TypeError):
            await pool.train()
        monkeypatch.undo()
        assert not any((pool.folder / "state" / "rollouts").iterdir()), "what the state holds is not kept twice"
        assert (await pool.train(steps=2, learning=learning(0.02))).step == 2
    assert rates(pool) == [(0, 0.01), (1, 0.02)]


async def test_a_batch_that_nobody_has_seen_the_result_of_is_learned_under_the_new_settings(
    pool: TrainedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool.working():
        await killed(pool, monkeypatch, StepBatch, step=0)
        assert (await pool.train(steps=1, learning=learning(0.02))).step == 1
    assert rates(pool) == [(0, 0.01), (0, 0.02)]
    recorded = pool.recorded()
    assert pool.learned_at_once(recorded, learning=learning(0.02))[1] == recorded.written[1]


async def test_a_limit_of_files_that_was_lowered_is_for_files_to_come(
    pool: TrainedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool.working():
        await killed(pool, monkeypatch, StepBatch, step=0)
        assert (await pool.train(steps=1, most_file_bytes=10)).step == 1
    recorded = pool.recorded()
    assert recorded.batches[0].groups
    assert pool.learned_at_once(recorded)[1] == recorded.written[1]


async def test_a_version_that_was_recorded_gets_its_name_also_where_settings_would_not_publish_it_any_more(
    pool: TrainedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pool.working():
        await killed(pool, monkeypatch, Written, version=1)
        version = pool.folder / "policies" / "1"
        assert not version.exists()
        await pool.train(steps=2, reload_every=2)
    assert version_digest(folder_files(version)) == pool.recorded().written[1], "it is announced, and workers fetch it"


def test_what_only_one_release_knows_is_no_change() -> None:
    assert changes({"a": 1, "old": 2, "c": [1, 2]}, {"a": 1, "new": 3, "c": [1, 3]}) == {
        "c": "c was [1, 2] and is [1, 3]"
    }
