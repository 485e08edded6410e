"""Two trainers on one run: one is refused, whatever they share."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

from protocol.clients.orchestrator import OrchestratorClient
from protocol.clock import TurnedClock
from protocol.errors import Conflict
from protocol.identifiers import run_id
from protocol.wire.runs import TrainerLease, TrainerWish
from tests.ledger.client.conftest import POOL
from tests.orchestrator.runs.edge import RUN, sha
from tests.trainer.run.world import TrainedPool, until
from trainer.errors import AnotherTrainer
from trainer.run.lease import RunLease
from trainer.run.patience import Patience


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


class _Leases:
    """The orchestrator's script `run_trainer.lua`, with a network before it."""

    def __init__(self) -> None:
        self.current, self.given = "", 0

    async def hold_trainer_lease(self, wish: TrainerWish) -> TrainerLease:
        await asyncio.sleep(0)
        if not self.current or self.current != wish.lease:
            if self.current and (wish.lease or not self.current.startswith(wish.holder)):
                raise Conflict("another trainer works on this run", code="trainer-fenced")
            self.given += 1
            self.current = f"{wish.holder}#{self.given}"
        await asyncio.sleep(0)
        return TrainerLease(lease=self.current, life_ms=wish.life_ms)


async def test_a_trainer_whose_lease_ran_out_does_not_fence_itself_by_asking_twice_at_once(tmp_path: Path) -> None:
    leases, clock = _Leases(), TurnedClock()
    patience = Patience(clock=clock, longest=timedelta(minutes=1))
    lease = RunLease(cast("OrchestratorClient", leases), folder=tmp_path, clock=clock, patience=patience)
    await lease.take()

    async def put(value: str) -> str:
        await asyncio.sleep(0)
        if value != leases.current:
            raise Conflict("this lease ran out", code="trainer-fenced")
        return value

    leases.current = ""  # the orchestrator lost its Redis
    said = await asyncio.gather(lease.say(put), lease.say(put), lease.confirm())
    assert said[0] == said[1] == leases.current
    await lease.give_up()
