"""Fixtures: a trained pool for each test; its changes to the chain are reverted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit.chain import development_chain, development_process
from tests.kit.run_on_chain import join_by_relay, orchestrating
from tests.kit.trained_pool import TrainedPool, base_folder
from tests.kit.world import World, founded, world

__all__ = ["development_chain", "development_process", "founded", "world"]


@pytest.fixture
async def pool(world: World, redis_url: str, tmp_path: Path) -> AsyncIterator[TrainedPool]:
    """Returns a run without a version, and a node that is a member."""
    (tmp_path / "orchestrator").mkdir()
    async with orchestrating(world, redis_url, tmp_path / "orchestrator") as run:
        await run.sync.round()
        node = await join_by_relay(run, world)
        base_folder(tmp_path / "base")
        yield TrainedPool(run, world, node, tmp_path)
