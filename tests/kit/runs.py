"""Fixtures of a run on a real Redis, with a manual clock and an in-memory ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from protocol.identity.keys import Key
from protocol.runtime.clock import ManualClock
from tests.kit.memory_ledger import MemoryLedger
from tests.kit.memory_run_ledger import PUBLISHER, RUN, VALIDATOR, MemoryRunLedger, RunUnderTest
from tests.kit.orchestrator import under_test

MakeRun = Callable[..., RunUnderTest]


@pytest.fixture
async def make_run(redis_url: str, tmp_path: Path, clock: ManualClock) -> AsyncIterator[MakeRun]:
    """Makes orchestrators of one run: the same Redis, ledgers and key."""
    key = Key.generate()
    ledger, chain = MemoryLedger(orchestrator=key.address), MemoryRunLedger()
    ledger.publishers.add(PUBLISHER.address)
    ledger.validators.add(VALIDATOR.address)
    made: list[RunUnderTest] = []

    def make(**more: Any) -> RunUnderTest:
        settings = {"run": RUN, "run_groups": 8, "run_lease_s": 100, "run_grace_s": 10, **more}
        pool = under_test(redis_url, clock, ledger, key, tmp_path / "secrets.key", run_ledger=chain, **settings)
        made.append(RunUnderTest(pool, chain))
        return made[-1]

    yield make
    for run in made:
        await run.pool.dependencies.redis.aclose()


@pytest.fixture
async def run(make_run: MakeRun) -> RunUnderTest:
    """Yields an orchestrator with a run that has read the ledger and has a first version."""
    made = make_run()
    await made.sync.round()
    await made.publish(0)
    return made
