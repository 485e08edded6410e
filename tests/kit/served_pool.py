"""A pool with a trainer whose orchestrator is served over HTTP, for trainers in other processes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn

from tests.kit.run_on_chain import join_by_relay, orchestrating
from tests.kit.trained_pool import TrainedPool, base_folder
from tests.kit.world import World


@dataclass
class ServedPool:
    """The pool, and where its orchestrator answers."""

    pool: TrainedPool
    url: str

    async def start(self, *command: str, log: Path | None = None, **changes: Any) -> asyncio.subprocess.Process:
        """Starts `tests.trainer.run.process` by a command such as `python`, in a session of its own.

        Args:
            command: What runs `-m`.
            log: Where its errors go.
            changes: Of the settings.
        """
        pool = self.pool
        told = pool.folder / "settings.json"
        settings = pool.settings(orchestrator=self.url, **({"patience_s": 3600} | changes))
        told.write_text(json.dumps(settings.model_dump(mode="json") | {"chain_url": pool.world.url}))
        ahead = (pool.run.pool.clock.now() - datetime.now(UTC)).total_seconds()
        key = pool.world.keys["publisher"].reveal().hex()
        with (log or Path(os.devnull)).open("ab") as errors:
            return await asyncio.create_subprocess_exec(
                *(*command, "-m", "tests.trainer.run.process", str(told), str(ahead)),
                env={**os.environ, "MUSTER_PUBLISHER_KEY": key, "OMP_NUM_THREADS": "1", "PYTHONPATH": "."},
                stdout=asyncio.subprocess.DEVNULL,
                stderr=errors if log else None,
                start_new_session=True,
            )


@asynccontextmanager
async def served_pool(world: World, redis_url: str, folder: Path) -> AsyncIterator[ServedPool]:
    """The pool until the block ends."""
    listener = uvicorn.Config("", port=0, log_config=None).bind_socket()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    (folder / "orchestrator").mkdir()
    async with orchestrating(world, redis_url, folder / "orchestrator", public_url=url) as run:
        app = run.pool.app
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await run.sync.round()
        base_folder(folder / "base")
        try:
            yield ServedPool(TrainedPool(run, world, await join_by_relay(run, world), folder), url)
        finally:
            app.state.stopping.set()  # release streams that wait for a clock that no longer moves
            server.should_exit = True
            await serving
