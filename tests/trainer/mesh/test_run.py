"""Two processes under the real torchrun train like one, can be killed, and resume as one or as two."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.kit.served_pool import served_pool
from tests.kit.world import World
from tests.trainer.mesh.launched import farthest, launched
from trainer.run.state.journal import StepBatch

TOLERANCE = 2e-3
"""Gradients are summed in another order."""


async def test_two_processes_train_like_one_and_no_death_loses_a_batch(
    world: World, redis_url: str, tmp_path: Path
) -> None:
    before: dict[int, StepBatch] = {}
    async with served_pool(world, redis_url, tmp_path) as served, served.pool.working():
        pool = served.pool
        for dying in (1, 0):
            async with launched(served, steps=500) as mesh:
                mesh.kill(dying)
                assert await mesh.ended() != 0
                if dying == 1:
                    assert "mesh-broken: another process of the mesh ended" in mesh.said
            assert len(pool.recorded().batches) > len(before), "each time it resumed by itself"
            before = pool.recorded().batches
        alone = max(before) + 2
        state = await pool.train(orchestrator=served.url, steps=alone)
        assert state.step == alone
        async with launched(served, steps=alone + 2) as mesh:
            assert await mesh.ended() == 0, mesh.said[-4000:]
    recorded = pool.recorded()
    assert max(recorded.batches) == alone + 1
    assert {step: recorded.batches[step] for step in before} == before
    steps = [line["step"] for line in pool.progress("step")]
    assert len(steps) == len(set(steps)), "only process 0 reports"
    assert farthest(served, recorded) < TOLERANCE


async def test_sigterm_ends_all_processes_after_the_current_step(world: World, redis_url: str, tmp_path: Path) -> None:
    async with served_pool(world, redis_url, tmp_path) as served, served.pool.working():
        async with launched(served, steps=500, asynchrony="periodic") as mesh:
            mesh.agent.send_signal(signal.SIGTERM)
            await mesh.ended()
            assert "mesh-broken" not in mesh.said
        [stopped] = served.pool.progress("stopped")
        recorded = served.pool.recorded()
        assert stopped["version"] == max(recorded.written) == max(recorded.batches) + 1
    assert farthest(served, recorded) < TOLERANCE
