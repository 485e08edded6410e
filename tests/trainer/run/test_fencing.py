"""Two trainers on one run: one of them is refused, whatever state they share."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from protocol.clients.orchestrator import OrchestratorClient
from protocol.errors import Conflict, Unavailable
from protocol.identifiers import run_id
from protocol.wire.runs import TrainerWish
from tests.kit.memory_run_ledger import RUN, sha
from tests.kit.trained_pool import TrainedPool, until
from tests.kit.world import POOL, URL
from trainer.errors import AnotherTrainer
from trainer.run.orchestrator.lease import RunLease
from trainer.run.orchestrator.outages import OutageRetry


async def test_a_second_trainer_is_refused_until_the_first_has_ended(pool: TrainedPool) -> None:
    stop = asyncio.Event()
    first = asyncio.create_task(pool.train(stop=stop))  # no worker is running, so the trainer waits for rollouts
    await until((pool.folder / "state" / "progress.jsonl").exists)
    with pytest.raises(AnotherTrainer, match="another trainer uses"):
        await pool.train()
    with pytest.raises(AnotherTrainer, match="another trainer works on this run"):
        await pool.train(state=pool.folder / "other-state", policies=pool.folder / "other-policies")
    stop.set()
    assert (await first).step == 0
    ledger = await pool.world.as_("publisher")
    await ledger.checkpoints.announce(pool_id=POOL, run=run_id(RUN), version=1, attempt=0, digest=sha(1))
    with pytest.raises(AnotherTrainer, match="the newest version that this trainer has made is 0"):
        await pool.train()


async def test_a_fenced_trainer_writes_nothing_more_and_stops(pool: TrainedPool) -> None:
    first = asyncio.create_task(pool.train())
    await until((pool.folder / "state" / "progress.jsonl").exists)
    # Its lease expired unnoticed, and another trainer has the run.
    await pool.run.pool.dependencies.redis.delete(pool.run.pool.dependencies.database.key("lease:trainer"))
    await pool.run.pool.owner("PUT", "/v1/run/trainer", {"holder": "ab" * 16, "life_ms": 60_000})
    async with pool.working():
        with pytest.raises(AnotherTrainer):
            await first
    assert pool.progress("step") == []


class _LosesAnswers(httpx.AsyncBaseTransport):
    """A transport that delivers requests and loses some answers."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self.inner, self.losing, self.lost = inner, 0, 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self.inner.handle_async_request(request)
        if self.losing and request.url.path == "/v1/run/trainer":
            self.losing, self.lost = self.losing - 1, self.lost + 1
            raise httpx.ReadError("reset by peer")
        return answer


def _client(pool: TrainedPool, transport: httpx.AsyncBaseTransport) -> OrchestratorClient:
    return OrchestratorClient(URL, key=pool.world.keys["publisher"], clock=pool.clock, transport=transport)


def _lease(pool: TrainedPool, client: OrchestratorClient, folder: Path) -> RunLease:
    folder.mkdir(exist_ok=True)
    patience = OutageRetry(clock=pool.clock, longest=timedelta(seconds=20), first=timedelta(milliseconds=10))
    return RunLease(client, folder=folder, clock=pool.clock, retry=patience)


async def _current(pool: TrainedPool) -> str:
    dependencies = pool.run.pool.dependencies
    found = await dependencies.redis.get(dependencies.database.key("lease:trainer"))
    assert isinstance(found, bytes)
    return found.decode()


@pytest.mark.parametrize("ran_out", [False, True])
async def test_a_lost_answer_neither_stops_a_trainer_nor_costs_it_the_lease(
    pool: TrainedPool, tmp_path: Path, ran_out: bool
) -> None:
    line = _LosesAnswers(pool.transport)
    async with _client(pool, line) as client:
        lease = _lease(pool, client, tmp_path / "one")
        line.losing = 1
        await lease.take()
        assert lease.value == await _current(pool)
        if ran_out:  # or the orchestrator lost its Redis
            await pool.run.pool.dependencies.redis.delete(pool.run.pool.dependencies.database.key("lease:trainer"))
        line.losing = 2
        with contextlib.suppress(Unavailable):
            await lease.confirm()
        await lease.confirm()
        assert line.lost == 3
        assert lease.value == await _current(pool)
        await lease.give_up()


async def test_a_started_copy_takes_the_run_and_the_first_trainers_requests_are_refused(
    pool: TrainedPool, tmp_path: Path
) -> None:
    async with _client(pool, pool.transport) as client:
        first, copy = _lease(pool, client, tmp_path / "one"), _lease(pool, client, tmp_path / "copy")
        await first.take()
        shutil.copy(tmp_path / "one" / "holder", tmp_path / "copy" / "holder")
        await copy.take()
        with pytest.raises(AnotherTrainer):
            await first.confirm()
        await copy.confirm()
        await first.give_up()  # its release does not affect the copy's lease
        await copy.confirm()
        await copy.give_up()


async def test_parallel_requests_after_an_expired_lease_do_not_fence_the_trainer_itself(
    pool: TrainedPool, tmp_path: Path
) -> None:
    async with _client(pool, pool.transport) as client:
        lease = _lease(pool, client, tmp_path / "one")
        await lease.take()

        async def put(value: str) -> str:
            await asyncio.sleep(0)
            if value != await _current(pool):
                raise Conflict("this lease ran out", code="trainer-fenced")
            return value

        await pool.run.pool.dependencies.redis.delete(pool.run.pool.dependencies.database.key("lease:trainer"))
        await client.hold_trainer_lease(TrainerWish(holder=lease._holder, start=lease._start, life_ms=60_000))
        said = await asyncio.gather(lease.with_token(put), lease.with_token(put), lease.confirm())
        assert said[0] == said[1] == await _current(pool)
        await lease.give_up()
