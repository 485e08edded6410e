"""A real process is killed: at most its current step is lost."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tests.kit.served_pool import served_pool
from tests.kit.trained_pool import until
from tests.kit.world import World


async def test_kill_9_loses_no_batch_and_leaves_the_weights_unchanged(
    world: World, redis_url: str, tmp_path: Path
) -> None:
    async with served_pool(world, redis_url, tmp_path) as served:
        pool = served.pool
        process = await served.start(sys.executable, steps=50)
        async with pool.working():
            await until(lambda: len(pool.progress("step")) >= 2 or process.returncode is not None)
            assert process.returncode is None
            process.send_signal(signal.SIGKILL)
            assert await process.wait() == -signal.SIGKILL
            before = pool.recorded().batches
            left = max(before) + 2
            state = await pool.train(orchestrator=served.url, steps=left, evaluate_every=50, evaluation_prompts=4)
        found = pool.progress("evaluation")
        assert found[-1]["version"] == left, "another process evaluates the last version"
        assert found[-1]["prompts"] == 4
        recorded = pool.recorded()
        assert state.step == left
        assert {step: recorded.batches[step] for step in before} == before
        assert pool.learned_at_once(recorded)[left] == recorded.written[left]
