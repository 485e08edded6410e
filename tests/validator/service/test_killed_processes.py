"""A validator process is killed by SIGKILL at any stage; another validator on the same Redis takes over."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from ledger.client.work import WorkStatus
from ledger.events.types import VerdictGiven
from protocol.identifiers import Digest
from protocol.verdicts import Outcome
from tests.kit.validators import PoolWithValidators, ValidatorUnderTest
from tests.kit.world import POOL
from tests.validator.service.reaching import reachable
from tests.validator.service.victim import FINALISING, READ_ONLY, SAID, STAGES, Order

LEASE = timedelta(seconds=31)
ROOT = Path(__file__).parents[3]


@dataclass
class Victims:
    """Starts validator processes with the key `validator`, each of which kills itself at its stage."""

    pool: PoolWithValidators
    orchestrator: str
    process: subprocess.Popen[bytes]

    async def die(self, stage: str) -> int:
        """Starts one validator; returns how its process ended."""
        deployment = self.pool.directory / "deployment.json"
        self.pool.world.deployment.save(deployment)
        order = Order(
            stage=stage,
            orchestrator=self.orchestrator,
            redis=f"{self.pool.url}?db=1",
            chain=self.pool.world.url,
            deployment=str(deployment),
            directory=str(self.pool.directory / "victim"),
            pool_id=POOL,
            secret="0x" + self.pool.world.keys["validator"].reveal().hex(),
            now_s=self.pool.run.pool.clock.now().timestamp(),
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(order.line())
        self.process.stdin.flush()
        return int(await asyncio.to_thread(self.process.stdout.readline))


@asynccontextmanager
async def victims(pool: PoolWithValidators) -> AsyncIterator[Victims]:
    """Yields an object that starts validator processes, each of which kills itself at a stage."""
    command = [sys.executable, "-m", "tests.validator.service.victim"]
    async with reachable(pool) as (url, _):
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            yield Victims(pool, url, process)


async def given(pool: PoolWithValidators) -> Counter[Digest]:
    """Returns the number of verdicts on each work."""
    return Counter(each.key for each in await (await pool.ledger()).history(VerdictGiven, pool_id=POOL))


async def takes_over(pool: PoolWithValidators, heir: ValidatorUnderTest, key: Digest, stage: str) -> None:
    """Runs the other validator until it has judged the work, after the dead one's leases have expired."""
    await heir.judge()
    taken_at_once = [each.facts.work.key for each in heir.examiner.asked]
    assert taken_at_once == ([key] if stage == READ_ONLY else []), f"{stage}: what it began is the dead one's, for now"
    await pool.turn(LEASE)
    await heir.judge()
    examined = [each.facts.work.key for each in heir.examiner.asked]
    heir.examiner.asked.clear()
    work = await pool.work(key)
    assert (work.status, work.outcome) == (WorkStatus.PROVISIONAL, Outcome.ACCEPTED), stage
    said_before = stage in SAID
    assert examined == ([] if said_before else [key]), stage
    assert work.judge == pool.world.keys["validator" if said_before else "second"].address, stage
    lengths = await heir.dependencies.queue.lengths()
    assert (lengths.waiting, lengths.ready, lengths.in_hand, lengths.parked) == (0, 0, 0, 0), stage


async def test_another_validator_takes_over_from_a_killed_one_without_judging_or_paying_twice(
    pool: PoolWithValidators,
) -> None:
    heir, ledger = pool.validator("second"), await pool.ledger()
    keys: list[Digest] = []
    await pool.run.demand(0, len(STAGES))
    async with victims(pool) as dying:
        for stage in [name for name in STAGES if name not in FINALISING]:
            keys.append(await pool.submit())
            await heir.loops.intake.aclose()  # so that the other validator reads the ledger for both
            assert await dying.die(stage) == -signal.SIGKILL, stage
            await takes_over(pool, heir, keys[-1], stage)
        assert await given(pool) == Counter(keys)
        provider = (await pool.work(keys[0])).provider
        before = await ledger.stake.of(provider)
        await pool.world.warp(timedelta(hours=2, seconds=2))
        for stage in FINALISING:
            await pool.turn(LEASE)
            await heir.loops.finalising.aclose()
            assert await dying.die(stage) == -signal.SIGKILL, stage
    await pool.turn(LEASE)
    await heir.loops.finalising.round()
    works = [await pool.work(key) for key in keys]
    assert {work.status for work in works} == {WorkStatus.FINAL}
    assert await ledger.work.accrued(POOL, provider) == sum(work.reward for work in works), "each work is paid once"
    assert (await ledger.stake.of(provider)).active == before.active, "and the node loses no stake"
