"""Counters in Redis equal the counted slots, over long random histories with fixed seeds."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta

import pytest

from orchestrator.domain.slots import Counted, SlotEvent
from protocol.identifiers import Digest
from protocol.identity.keys import Key
from protocol.verdicts import Outcome
from protocol.wire.slots import SlotGrant
from tests.kit.memory_run_ledger import RunUnderTest
from tests.kit.runs import MakeRun

MOVES = 60
STEPS = range(12)


class Walk:
    """A random history of leases, submissions, verdicts, demands and reorgs."""

    def __init__(self, run: RunUnderTest, draw: random.Random, nodes: list[Key]) -> None:
        self.run, self.draw, self.nodes = run, draw, nodes
        self.held: list[tuple[Key, SlotGrant]] = []
        self.works: list[tuple[Digest, Key]] = []
        self.version = 0
        self.submitted = 0

    async def move(self) -> None:
        moves = (self.lease, self.lease, self.release, self.submit, self.submit, self.judge, self.reorganise)
        await self.draw.choice((*moves, self.wait, self.steer, self.again))()
        await self.run.sync.round()

    async def lease(self) -> None:
        key = self.draw.choice(self.nodes)
        await self.run.pool.beat(key)
        step = (await self.run.step(key)).step
        answer = await self.run.ask(key, step=step, groups=self.draw.randint(1, 5))
        if answer.status_code == 200:
            self.held.append((key, SlotGrant.model_validate_json(answer.content)))

    async def release(self) -> None:
        if self.held:
            key, grant = self.held.pop(self.draw.randrange(len(self.held)))
            body = {"slots": [{"step": grant.lease.step, "index": grant.lease.index}]}
            await self.run.pool.send(key, "/v1/slots/release", body)

    async def submit(self) -> None:
        if self.held:
            key, grant = self.held.pop(self.draw.randrange(len(self.held)))
            if not self.run.submit_alone(grant, file=self.draw.randint(1, 99), uploaded=self.draw.random() < 0.7):
                self.works.append((grant.lease.lease.key.hash, key))
                self.submitted += 1

    async def judge(self) -> None:
        if self.works:
            work, key = self.draw.choice(self.works)
            what = self.draw.choice((SlotEvent.JUDGED, SlotEvent.DISPUTED, SlotEvent.FINAL, SlotEvent.EXPIRED))
            self.run.chain.happen(work, key.address, what, self.draw.choice(list(Outcome)))

    async def reorganise(self) -> None:
        if self.works:
            work, _ = self.works.pop(self.draw.randrange(len(self.works)))
            self.run.chain.take_back(work)

    async def wait(self) -> None:
        await self.run.pool.clock.turn(timedelta(seconds=self.draw.choice((5, 60, 120, 1000))))

    async def steer(self) -> None:
        if self.draw.random() < 0.5:
            self.version += 1
            await self.run.publish(self.version)
        else:
            await self.run.demand(self.version, self.draw.randint(0, 20), closed=self.draw.random() < 0.2)

    async def again(self) -> None:
        self.run.chain.read = 0  # the next round reads all events again, as after a restart

    async def check(self) -> None:
        """Checks that each counter equals the number of slots."""
        store = self.run.leasing.store
        open_units = open_leases = 0
        for step, row in (await store.steps(list(STEPS))).items():
            slots = await store.page(step, after=None, limit=1000)
            sums = Counter(dict.fromkeys(Counted, 0))
            for slot in slots:
                sums[slot.slot.counted] += slot.groups
            bound = {Counted.LEASED, Counted.SPARE, Counted.RETURNED}
            held = [slot for slot in slots if slot.slot.counted in bound]
            open_units += sum(slot.max_units for slot in held)
            open_leases += len(held)
            count = row.count
            told = (count.leased, count.spare, count.pending, count.accepted, count.rejected)
            assert told == (
                sums[Counted.LEASED],
                sums[Counted.SPARE],
                sums[Counted.PENDING],
                sums[Counted.ACCEPTED],
                sums[Counted.REJECTED],
            )
        assert await store.open_leases() == (open_units, open_leases)
        for key in self.nodes:
            live = await self.run.pool.dependencies.redis.smembers(
                self.run.pool.dependencies.database.key("run", "live", key.address)
            )
            names = {name.decode() for name in live if isinstance(name, bytes)}
            leased = {
                row.id
                for row in await store.leases_of(key.address, limit=500)
                if row.slot.counted in {"leased", "spare"}
            }
            assert names == leased


@pytest.mark.parametrize("seed", range(4))
async def test_counters_match_the_slots_after_random_histories(make_run: MakeRun, seed: int) -> None:
    run = make_run(run_throttle_pause_s=0, run_max_rounds=2, node_rate_per_s=1000, node_burst=1000)
    await run.sync.round()
    await run.publish(0)
    walk = Walk(run, random.Random(seed), [await run.member() for _ in range(6)])
    for _ in range(MOVES):
        await walk.move()
        await walk.check()
    assert walk.submitted > 1, "the history is not empty"
