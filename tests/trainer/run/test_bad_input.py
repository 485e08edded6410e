"""Infinite gradients, files changed in the store, no relays, and an unreachable orchestrator."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from protocol.errors import Unavailable
from protocol.identifiers import run_id
from protocol.runtime.clock import ManualClock
from tests.kit.memory_run_ledger import RUN
from tests.kit.trained_pool import TrainedPool
from tests.kit.world import POOL
from tests.trainer.run.killed import Killed, dies
from trainer.errors import TrainingDiverged
from trainer.run.orchestrator.outages import OutageRetry
from trainer.run.state.trainer_state import save_state


def learning(largest: float) -> dict[str, Any]:
    optimiser = {"learning_rate": 1e-2, "clip": 1.0, "largest_gradient": largest, "most_bad_steps": 2}
    return {"row_tokens": 64, "optimiser": optimiser}


@pytest.mark.parametrize("saved", [True, False])
async def test_steps_with_infinite_gradients_are_skipped_end_the_run_and_corrected_settings_resume_it(
    pool: TrainedPool, monkeypatch: pytest.MonkeyPatch, saved: bool
) -> None:
    """This includes a last state that was not saved, so that skipped steps are learned again and end the run again."""
    async with pool.working():
        if not saved:
            with monkeypatch.context() as patch:
                last = dies(save_state, lambda *_, state, **__: state.step == 2, after=False)
                patch.setattr("trainer.run.versions.save_state", last)
                with pytest.raises((TrainingDiverged, Killed)):
                    await pool.train(steps=5, learning=learning(1e-9))
        with pytest.raises(
            TrainingDiverged, match="3 steps in a row gave no usable gradient; the last was step 2"
        ) as end:
            await pool.train(steps=5, learning=learning(1e-9))
        assert "learning rate" in end.value.hint
        assert {line["bad"] for line in pool.progress("step")} <= {True}
        assert (await pool.train(steps=5, learning=learning(1e4))).step == 5
    assert [line["bad"] for line in pool.progress("step")][-2:] == [False, False]


async def test_an_accepted_file_whose_stored_bytes_changed_is_dropped(pool: TrainedPool) -> None:
    made: list[int] = []

    def lose(step: int, index: int) -> bool:
        made.append(index)
        if len(made) == 1:
            objects = pool.folder / "orchestrator" / "objects"
            [path] = [each for each in objects.rglob("*") if each.is_file() and each.read_bytes()[:4] == b"PAR1"]
            path.write_bytes(path.read_bytes()[:-1] + b"x")
        return False

    pool.lose = lose
    async with pool.working():
        assert (await pool.train(steps=1)).step == 1
    [step] = pool.progress("step")
    assert sum(step["files"]["dropped"].values()) == 1
    assert step["groups"]["used"] == 2


async def test_without_relays_a_version_is_announced_with_a_warning(pool: TrainedPool) -> None:
    with capture_logs() as lines:
        async with pool.working():
            assert (await pool.train(steps=1, relays=())).step == 1
    alone = [line for line in lines if line["event"] == "no-relay"]
    assert [line["version"] for line in alone] == [0, 1]
    assert "muster shardcast relay" in alone[0]["hint"]
    announced = await (await pool.world.as_("owner")).checkpoints.latest(POOL, run_id(RUN))
    assert announced is not None
    assert announced.version == 1


@pytest.mark.parametrize(("patience", "waited"), [(3600, True), (30, False)])
async def test_an_orchestrator_outage_is_waited_for_up_to_the_configured_time(patience: int, waited: bool) -> None:
    clock = ManualClock()

    async def ask() -> str:
        if clock.monotonic() < 60:
            raise Unavailable("connection refused")
        return "here"

    waiting = asyncio.create_task(OutageRetry(clock=clock, longest=timedelta(seconds=patience))(ask, what="asking"))
    await clock.turn(timedelta(seconds=70))
    if waited:
        assert await waiting == "here"
    else:
        with pytest.raises(Unavailable, match="refused"):
            await waiting
