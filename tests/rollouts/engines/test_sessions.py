"""Sessions: jobs that share an engine's batch get the answers that they would get alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.errors import Conflict, InvalidInput
from protocol.identifiers import digest
from rollouts.engines.batch_usage import BatchUsage, UsageSeconds
from rollouts.engines.errors import EngineBusy, GenerationStopped
from rollouts.engines.interface import Completion, Job, SampleRequest
from rollouts.engines.shared import SharedEngine
from rollouts.engines.torch import batch as batch_module
from rollouts.engines.torch.batch import GenerationBatch
from rollouts.engines.torch.cache import CacheFull, RowCache
from rollouts.engines.torch.engine import TorchEngine
from rollouts.errors import EngineFailed, OutOfMemory
from rollouts.models.policy import Policy
from rollouts.precision import Dtype
from rollouts.sampling.parameters import SamplingParameters
from tests.kit.sessions import PlannedJob, drive

CPU = torch.device("cpu")
VERSION = digest(b"\x01" * 32)
ROWS = 6
PLAIN = SamplingParameters(max_new_tokens=20)
OTHERS = (
    SamplingParameters(max_new_tokens=9, temperature=0.7),
    SamplingParameters(max_new_tokens=33, top_k=20, top_p=0.9),
)


def requests(count: int, *, seed: int = 1, length: int = 5) -> tuple[SampleRequest, ...]:
    """Returns requests that share prompts in pairs."""
    return tuple(
        SampleRequest(
            sample=sample,
            prompt_tokens=tuple(4 + (sample // 2 * 7 + place * 3 + seed) % 40 for place in range(length + sample // 2)),
            seed=bytes([seed]) * 32,
        )
        for sample in range(count)
    )


@pytest.fixture
def engine(qwen2: Path) -> Iterator[TorchEngine]:
    engine = TorchEngine(dtype=Dtype.FLOAT32, device=CPU, max_batch=ROWS)
    engine.load(qwen2, version=VERSION)
    yield engine
    engine.close()


def by_sample(completions: list[Completion]) -> dict[int, Completion]:
    return {one.sample: one for one in completions}


def check_equal(found: list[Completion], expected: list[Completion]) -> None:
    """Compares answers; log-probabilities may differ in their last bits, because batches have other sizes."""
    wanted = by_sample(expected)
    assert len(found) == len(wanted)
    for sample, one in by_sample(found).items():
        assert (one.tokens, one.finish) == (wanted[sample].tokens, wanted[sample].finish)
        assert len(one.proofs) == len(wanted[sample].proofs) > 0
        np.testing.assert_allclose(one.logprobs, wanted[sample].logprobs, atol=1e-5)


def test_jobs_with_equal_sample_numbers_and_own_parameters_share_a_batch(engine: TorchEngine) -> None:
    plan = [
        PlannedJob(requests(5, seed=1), PLAIN),
        PlannedJob(requests(4, seed=2), OTHERS[0], after=2),
        PlannedJob(requests(7, seed=3), OTHERS[1], after=4),
    ]
    expected = [list(engine.generate(one.requests, one.parameters)) for one in plan]
    for result, wanted in zip(drive(engine, plan), expected, strict=True):
        check_equal(result.completions, wanted)
        for one in result.completions:
            own = [drawn for drawn in result.tokens if drawn.sample == one.sample]
            assert [(drawn.position, drawn.token) for drawn in own] == list(enumerate(one.tokens))
            assert [drawn.logprob for drawn in own] == pytest.approx(one.logprobs.tolist())


def test_a_single_job_gives_the_same_bytes_as_generate(engine: TorchEngine) -> None:
    asked = requests(9)
    (result,) = drive(engine, [PlannedJob(asked, PLAIN)])
    for one, other in zip(result.completions, engine.generate(asked, PLAIN), strict=True):
        assert (one.tokens, one.proofs) == (other.tokens, other.proofs)
        assert one.logprobs.tobytes() == other.logprobs.tobytes()


PLANS = st.lists(
    st.tuples(st.integers(1, 8), st.integers(0, 5), st.sampled_from([PLAIN, *OTHERS]), st.none() | st.integers(0, 60)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(jobs=PLANS)
def test_each_job_ends_completely_or_stopped_whatever_the_others_do(engine: TorchEngine, jobs: list[Any]) -> None:
    plan = [
        PlannedJob(requests(count, seed=number), parameters, after=after if number else 0, stop_after=stop)
        for number, (count, after, parameters, stop) in enumerate(jobs)
    ]
    for one, result in zip(plan, drive(engine, plan), strict=True):
        expected = by_sample(list(engine.generate(one.requests, one.parameters)))
        check_equal(result.completions, [expected[answer.sample] for answer in result.completions])
        never_added = not result.completions and not result.tokens and not result.stopped
        assert result.stopped or never_added or len(result.completions) == len(expected)
        assert not (result.stopped and one.stop_after is None)


def test_running_out_of_memory_computes_the_answers_of_all_jobs_again(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = [PlannedJob(requests(4, seed=1), PLAIN), PlannedJob(requests(4, seed=2), OTHERS[1], after=1)]
    expected = [list(engine.generate(one.requests, one.parameters)) for one in plan]
    real = Policy.states_and_logits

    def forward(self: Policy, tokens: torch.Tensor, **how: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if len(tokens) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, tokens, **how)

    monkeypatch.setattr(Policy, "states_and_logits", forward)
    for result, wanted in zip(drive(engine, plan), expected, strict=True):
        check_equal(result.completions, wanted)


@pytest.mark.parametrize(
    ("prompt", "is_cache"), [(75, True), (90, True), (75, False)], ids=["grows", "prompt", "device"]
)
def test_an_answer_that_does_not_fit_alone_ends_its_job_only(
    engine: TorchEngine, qwen2: Path, monkeypatch: pytest.MonkeyPatch, prompt: int, *, is_cache: bool
) -> None:
    place = 2 * 2 * 2 * 24 * 4  # layers, keys and values, heads, width, float32
    small = TorchEngine(dtype=Dtype.FLOAT32, device=CPU, max_batch=ROWS, cache_bytes=80 * place if is_cache else None)
    small.load(qwen2, version=VERSION)
    real = Policy.states_and_logits

    def forward(self: Policy, tokens: torch.Tensor, **how: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if how["positions"].max() >= 80:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, tokens, **how)

    monkeypatch.setattr(Policy, "states_and_logits", forward)
    session, answers = small.open(), list[Completion]()
    good = [Job(requests=requests(3, seed=seed), parameters=PLAIN, on_answer=answers.append) for seed in (1, 2)]
    bad = Job(requests=requests(1, seed=3, length=prompt), parameters=PLAIN)
    for job in (good[0], bad, good[1]):
        session.add(job)
    list(session.completions())
    session.close()
    assert is_cache or small.max_batch == ROWS, "the batch is as large as before"
    error = bad.done.exception(timeout=0)
    assert isinstance(error, OutOfMemory)
    assert error is bad.failure
    assert "not even one answer fits" in error.detail
    assert (error.__traceback__, error.__cause__, error.__context__) == (None,) * 3, "they would keep the batch"
    alone = [list(engine.generate(job.requests, PLAIN)) for job in good]
    for job, wanted in zip(good, alone, strict=True):
        assert job.done.exception(timeout=0) is None
        assert all(any(one.tokens == other.tokens for other in answers) for one in wanted)
    assert len(answers) == 6


def test_an_open_session_refuses_another_one_and_a_closed_one_refuses_jobs(engine: TorchEngine, qwen2: Path) -> None:
    session = engine.open()
    job = Job(requests=requests(2), parameters=PLAIN)
    session.add(job)
    for refused in (engine.open, lambda: engine.load(qwen2, version=VERSION), lambda: engine.generate([], PLAIN)):
        with pytest.raises(EngineBusy):
            refused()
    with pytest.raises(InvalidInput, match="occurs twice"):
        session.add(Job(requests=requests(1) * 2, parameters=PLAIN))
    session.close()
    with pytest.raises(Conflict, match="session is closed"):
        session.add(Job(requests=requests(1), parameters=PLAIN))
    assert isinstance(job.done.exception(timeout=0), GenerationStopped)
    assert len(list(engine.generate(requests(2), PLAIN))) == 2


def fail(*_: object) -> bool:
    raise ValueError("the caller's error")


@pytest.mark.parametrize("name", ["on_token", "on_answer", "should_stop"])
def test_an_error_in_a_function_of_a_job_ends_this_job_only(engine: TorchEngine, name: str) -> None:
    session, answers = engine.open(), list[Completion]()
    good = Job(requests=requests(4, seed=1), parameters=PLAIN, on_answer=answers.append)
    bad = Job(requests=requests(4, seed=2), parameters=PLAIN)
    setattr(bad, name, fail)
    session.add(bad)
    session.add(good)
    list(session.completions())
    assert isinstance(bad.done.exception(timeout=0), ValueError)
    assert good.done.exception(timeout=0) is None
    assert not good.done.cancel()
    session.close()
    check_equal(answers, list(engine.generate(good.requests, PLAIN)))


def test_a_job_that_joins_when_all_others_stop_within_a_long_step_is_answered(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt is computed in several parts; between two of them the first job stops, and another is added."""
    monkeypatch.setitem(batch_module._TOKENS_AT_ONCE, "cpu", 8)
    session = engine.open()
    asked = 0

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        if asked == 3:
            session.add(second)
        return asked >= 3

    first = Job(requests=requests(1, length=40), parameters=PLAIN, should_stop=should_stop)
    second = Job(requests=requests(2, seed=2), parameters=PLAIN)
    session.add(first)
    assert len(list(session.completions())) == 2
    session.close()
    assert isinstance(first.done.exception(timeout=0), GenerationStopped)
    assert second.done.exception(timeout=0) is None


def test_answers_that_were_abandoned_are_computed_again(engine: TorchEngine) -> None:
    asked = requests(8)
    expected = list(engine.generate(asked, PLAIN))
    session, answers = engine.open(), list[Completion]()
    session.add(Job(requests=asked, parameters=PLAIN, on_answer=answers.append))
    abandoned = session.completions()
    next(abandoned)
    abandoned.close()  # type: ignore[attr-defined]  # the iterator is a generator
    list(session.completions())
    check_equal(answers, expected)
    session.close()


def test_a_full_cache_gives_up_unused_rows_before_the_batch_gets_smaller() -> None:
    one_token = (torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 1, 4))
    cache = RowCache([one_token], rows=64, budget=64 * 100 * 32)
    cache.put(0, [(torch.ones(1, 50, 4), torch.ones(1, 50, 4))], length=50)
    cache.reserve(60, rows=64)
    cache.aim(torch.tensor([700, 20]), furthest=700)
    keys, _ = cache.update(torch.zeros(2, 1, 1, 4), torch.zeros(2, 1, 1, 4), 0)
    assert keys.shape[:1] == (2,)
    assert bool((keys[0, :, :50] == 1).all())
    with pytest.raises(CacheFull):
        cache.reserve(4000, rows=2)


@pytest.fixture
def shared(engine: TorchEngine) -> Iterator[SharedEngine]:
    with ThreadPoolExecutor(max_workers=1) as thread:
        yield SharedEngine(engine, thread=thread)


def hold_steps(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Makes the engine wait before each step until the event is set."""
    step, go_on = GenerationBatch.step, threading.Event()

    def held(batch: GenerationBatch) -> torch.Tensor:
        assert go_on.wait(60)
        return step(batch)

    monkeypatch.setattr(GenerationBatch, "step", held)
    return go_on


def failing_step(_: GenerationBatch) -> torch.Tensor:
    raise RuntimeError("device-side assert")


def together(*calls: Callable[[], list[Completion]]) -> list[list[Completion] | Exception]:
    """Runs calls in one thread each; returns results or errors."""
    with ThreadPoolExecutor(max_workers=len(calls)) as threads:
        futures = [threads.submit(call) for call in calls]
    errors = [future.exception() for future in futures]
    return [
        error if isinstance(error, Exception) else future.result()
        for error, future in zip(errors, futures, strict=True)
    ]


def test_threads_share_an_engine_and_one_that_stops_reading_does_not_hold_up_the_other(
    engine: TorchEngine, shared: SharedEngine
) -> None:
    asked, expected = requests(6, seed=2), list(engine.generate(requests(6, seed=2), OTHERS[1]))

    def first_only() -> list[Completion]:
        answers = shared.generate(requests(6, seed=1), PLAIN)
        first = next(answers)
        answers.close()  # type: ignore[attr-defined]  # the iterator is a generator
        return [first]

    one, other = together(first_only, lambda: list(shared.generate(asked, OTHERS[1])))
    assert isinstance(one, list)
    assert isinstance(other, list)
    assert len(one) == 1
    check_equal(other, expected)
    assert shared.unanswered == 0


def test_a_failure_of_the_engine_reaches_all_threads_until_a_version_is_loaded(
    engine: TorchEngine, shared: SharedEngine, qwen2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(GenerationBatch, "step", failing_step)
        go_on = hold_steps(broken)
        answers = [shared.generate(requests(2, seed=seed), PLAIN) for seed in (1, 2)]
        go_on.set()
        found = together(*[lambda own=own: list(own) for own in answers])
    with pytest.raises(EngineFailed) as refused:
        shared.generate(requests(2), PLAIN)
    assert found == [refused.value, refused.value]
    shared.load(qwen2, version=VERSION)
    assert len(list(shared.generate(requests(2), PLAIN))) == 2


def test_the_time_of_a_batch_is_split_by_its_fill() -> None:
    now = 0.0
    usage = BatchUsage(8, clock=lambda: now)
    for growing, seconds in [(0, 5), (8, 10), (4, 3), (3, 2), (0, 1)]:
        usage.note(growing)
        now += seconds
    assert usage.read() == UsageSeconds(total=21, idle=6, under_half=8)
    now += 4
    assert usage.read() - UsageSeconds(total=21, idle=6, under_half=8) == UsageSeconds(4, 4, 4)
    assert usage.read().busy == 15
