"""A real process, really killed: lost is at most the step that it was at."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

import uvicorn

from tests.ledger.client.conftest import World
from tests.orchestrator.runs.test_on_chain import join_by_relay, orchestrating
from tests.trainer.run.world import TrainedPool, base_folder, until


async def test_kill_9_costs_no_batch_and_the_weights_are_those_of_a_run_without_it(
    world: World, redis_url: str, tmp_path: Path
) -> None:
    listener = uvicorn.Config("", port=0, log_config=None).bind_socket()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    (tmp_path / "orchestrator").mkdir()
    async with orchestrating(world, redis_url, tmp_path / "orchestrator", public_url=url) as run:
        server = uvicorn.Server(uvicorn.Config(run.pool.app, log_config=None, access_log=False))
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await run.sync.round()
        pool = TrainedPool(run, world, await join_by_relay(run, world), tmp_path)
        base_folder(tmp_path / "base")
        settings = pool.settings(orchestrator=url, steps=50)
        told = tmp_path / "settings.json"
        told.write_text(json.dumps(settings.model_dump(mode="json") | {"chain_url": world.url}))
        ahead = (run.pool.clock.now() - datetime.now(UTC)).total_seconds()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.trainer.run.process", str(told), str(ahead)),
            env={**os.environ, "MUSTER_PUBLISHER_KEY": world.keys["publisher"].reveal().hex(), "OMP_NUM_THREADS": "1"},
            stdout=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            async with pool.working():
                await until(lambda: len(pool.progress("step")) >= 2 or process.returncode is not None)
                assert process.returncode is None
                process.send_signal(signal.SIGKILL)
                assert await process.wait() == -signal.SIGKILL
                before = pool.recorded().batches
                left = max(before) + 2
                state = await pool.train(orchestrator=url, steps=left, evaluate_every=50, evaluation_prompts=4)
        finally:
            server.should_exit = True
            await serving
        found = pool.progress("evaluation")
        assert found[-1]["version"] == left, "the last version is evaluated, by another process"
        assert found[-1]["prompts"] == 4
        recorded = pool.recorded()
        assert state.step == left
        assert {step: recorded.batches[step] for step in before} == before
        assert pool.learned_at_once(recorded)[left] == recorded.written[left]
