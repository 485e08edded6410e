"""Two trainers on one run: one is refused, whatever they share."""

from __future__ import annotations

import asyncio

import pytest

from protocol.identifiers import run_id
from tests.ledger.client.conftest import POOL
from tests.orchestrator.runs.edge import RUN, sha
from tests.trainer.run.world import TrainedPool, until
from trainer.errors import AnotherTrainer


async def test_a_second_trainer_is_refused_until_the_first_has_ended(pool: TrainedPool) -> None:
    stop = asyncio.Event()
    first = asyncio.create_task(pool.train(stop=stop))  # nobody works, so it waits for rollouts
    await until((pool.folder / "state" / "progress.jsonl").exists)
    with pytest.raises(AnotherTrainer, match="a trainer works in"):
        await pool.train()
    with pytest.raises(AnotherTrainer, match="another trainer works on this run"):
        await pool.train(state=pool.folder / "other-state", policies=pool.folder / "other-policies")
    stop.set()
    assert (await first).step == 0
    ledger = await pool.world.as_("publisher")
    await ledger.checkpoints.announce(pool_id=POOL, run=run_id(RUN), version=1, attempt=0, digest=sha(1))
    with pytest.raises(AnotherTrainer, match="made none after 0"):
        await pool.train()


async def test_a_trainer_that_was_fenced_says_nothing_more_and_stops(pool: TrainedPool) -> None:
    first = asyncio.create_task(pool.train())
    await until((pool.folder / "state" / "progress.jsonl").exists)
    # Its lease ran out unnoticed, and another trainer has the run.
    await pool.run.pool.parts.redis.delete(pool.run.pool.parts.database.key("lease:trainer"))
    await pool.run.pool.owner("PUT", "/v1/run/trainer", {"holder": "ab" * 16, "life_ms": 60_000})
    async with pool.working():
        with pytest.raises(AnotherTrainer):
            await first
    assert pool.progress("step") == []
