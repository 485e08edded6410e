"""Mean metrics of a step, from values that nodes report: no single node can distort them."""

from __future__ import annotations

import httpx
import pytest

from orchestrator.domain.slots import SlotEvent
from orchestrator.runs.metrics import ReportedMetrics
from orchestrator.store.run_rows import ReportedFile
from orchestrator.store.runs import RunStore
from protocol.clients import OrchestratorClient
from protocol.identifiers import Digest
from protocol.identity.keys import Key
from protocol.verdicts import Outcome
from protocol.wire.listings import StepFigures
from tests.kit.memory_run_ledger import RunUnderTest
from tests.kit.orchestrator import READER


def client(run: RunUnderTest) -> OrchestratorClient:
    return OrchestratorClient("http://127.0.0.1:1", token=READER, transport=httpx.ASGITransport(app=run.pool.app))


async def reported_means(run: RunUnderTest, first: int | None = None) -> list[StepFigures]:
    async with client(run) as owner:
        return list(await owner.figures(first=first))


async def add_judged_file(
    run: RunUnderTest, key: Key, file: int, outcome: Outcome | None, *, groups: int = 2, step: int = 0, **said: float
) -> Digest:
    """Submits a file of a number of groups with its reported metrics, and adds a verdict."""
    grant = await run.lease(key, step=step, groups=groups)
    assert (await run.hand_in(key, run.signed(key, grant, file=file), uploaded=True, **said)).status_code == 200
    await run.relayer.round()
    await run.sync.round()
    work = grant.lease.lease.key.hash
    if outcome is not None:
        run.chain.happen(work, key.address, SlotEvent.JUDGED, outcome)
        await run.sync.round()
    return work


async def test_means_weight_accepted_groups_and_ignore_reported_sample_counts(run: RunUnderTest) -> None:
    key = await run.member()
    assert await reported_means(run) == []
    await add_judged_file(run, key, 1, Outcome.ACCEPTED, groups=3, reward=0.5, length=10, samples=1e300)
    await add_judged_file(run, key, 2, Outcome.ACCEPTED, groups=1, reward=1.0, samples=-4)
    await add_judged_file(run, key, 3, Outcome.REJECTED, reward=99)
    await add_judged_file(run, key, 4, None, reward=77)
    assert await reported_means(run) == [StepFigures(step=0, closed=False, files=2, reward=0.625, length=10)]
    await run.demand(0, 0, closed=True)
    assert [each.closed for each in await reported_means(run)] == [True]
    assert await reported_means(run, first=1) == []


@pytest.mark.parametrize("said", [1e308, -1e308, 1e9])
async def test_an_impossible_statistic_is_ignored(run: RunUnderTest, said: float) -> None:
    key = await run.member()
    await add_judged_file(run, key, 1, Outcome.ACCEPTED, reward=said, length=said)
    assert await reported_means(run) == [StepFigures(step=0, closed=False, files=1)]
    await add_judged_file(run, key, 2, Outcome.ACCEPTED, reward=0.25)
    assert [each.reward for each in await reported_means(run)] == [0.25]


@pytest.mark.parametrize("far", [9.9e8, -9.9e8, 50.0])
async def test_a_minority_of_the_groups_cannot_shift_the_curve(run: RunUnderTest, far: float) -> None:
    key = await run.member()
    await add_judged_file(run, key, 1, Outcome.ACCEPTED, groups=2, reward=0.25, length=90)
    await add_judged_file(run, key, 2, Outcome.ACCEPTED, groups=3, reward=far, length=far)
    await add_judged_file(run, key, 3, Outcome.ACCEPTED, groups=2, reward=0.75, length=150)
    (step,) = await reported_means(run)
    assert (step.files, step.reward) == (3, 0.5)
    assert step.length is not None
    assert 50 <= step.length <= 150


async def test_honest_statistics_are_used_with_any_spread(run: RunUnderTest) -> None:
    key = await run.member()
    rewards = [0.0, 1.0, 0.0, 1.0, 0.0, 0.5]
    for file, reward in enumerate(rewards):
        await add_judged_file(run, key, file + 1, Outcome.ACCEPTED, groups=1, reward=reward, length=100 * 2**file)
    (step,) = await reported_means(run)
    assert step.reward == pytest.approx(sum(rewards) / 6)


async def test_a_step_is_read_again_only_when_its_counts_change(
    run: RunUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    reports = RunStore.reports

    async def counting(self: RunStore, step: int, *, limit: int) -> list[ReportedFile]:
        read.append(step)
        return await reports(self, step, limit=limit)

    monkeypatch.setattr(RunStore, "reports", counting)
    key = await run.member()
    work = await add_judged_file(run, key, 1, Outcome.ACCEPTED, reward=0.5)
    for _ in range(3):
        assert len(await reported_means(run)) == 1
    assert len(await ReportedMetrics(run.leasing.store).of([0], floor=0)) == 1
    assert read == [0], "also another instance reads the stored means"
    run.chain.happen(work, key.address, SlotEvent.DISPUTED)
    run.chain.happen(work, key.address, SlotEvent.DECIDED, Outcome.FORGED)
    await run.sync.round()
    assert await reported_means(run) == [], "an overturned verdict removes its file"


async def test_only_the_first_files_of_a_very_large_step_are_read(
    run: RunUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await run.member()
    for file in range(1, 5):
        await add_judged_file(run, key, file, Outcome.ACCEPTED, groups=1, reward=float(file))
    monkeypatch.setattr("orchestrator.store.runs.REPORTS_AT_ONCE", 1)
    monkeypatch.setattr("orchestrator.runs.metrics.MOST_SLOTS", 2)
    assert [each.files for each in await ReportedMetrics(run.leasing.store).of([0], floor=0)] == [2]


async def test_listing_rollouts_does_not_call_the_store(run: RunUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    key = await run.member()
    await add_judged_file(run, key, 1, Outcome.ACCEPTED)

    async def refuse(*_: object) -> None:
        raise AssertionError("the store was asked")

    monkeypatch.setattr(type(run.pool.dependencies.objects), "head", refuse)
    async with client(run) as owner:
        [item] = [each async for each in owner.rollouts(links=False)]
    assert (item.size, item.file_url, item.audit_url) == (None, None, None)
