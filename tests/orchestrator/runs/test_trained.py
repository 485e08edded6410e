"""Metrics and sampled rollouts of learned steps, which the trainer sends and the pool's page shows."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import ValidationError

from protocol.clients import OrchestratorClient
from protocol.errors import MusterError, NotFound, Unavailable
from protocol.identifiers import digest
from protocol.wire.runs import (
    MOST_SAMPLE_CHARACTERS,
    MOST_SAMPLED_STEPS,
    MOST_SAMPLES,
    MOST_TRAINED_STEPS,
    NewTrainedStep,
    SampledRollout,
    TrainedStep,
)
from rollouts.turns import Turn
from tests.kit.memory_run_ledger import RunUnderTest
from tests.kit.orchestrator import READER, TOKEN
from trainer.learning.groups import TrainingGroup, TrainingSample
from trainer.run.curves import MOST_WAITING, CurvePublisher, ShownStep, trained_step

FACTS: dict[str, Any] = {
    "step": 3,
    "reward": 0.5,
    "length": None,
    "tokens_per_second": 12.0,
    "staleness": {0: 1, 2: 3},
    "figures": {"loss": float("nan"), "entropy": 0.7, "sampler_kl": float("inf"), "gradient_norm": 1e301, "kl": None},
}
WORK = digest(b"\7" * 32)


def client(run: RunUnderTest, token: str = TOKEN) -> OrchestratorClient:
    return OrchestratorClient("http://127.0.0.1:1", token=token, transport=httpx.ASGITransport(app=run.pool.app))


def sampled(text: str = "a", count: int = 1) -> tuple[SampledRollout, ...]:
    one = SampledRollout(key=WORK, group=0, version=0, prompt=text, answer=text, tokens=1, reward=1.0)
    return (one,) * count


def new(number: int, *, loss: float = 1.0, samples: tuple[SampledRollout, ...] = ()) -> NewTrainedStep:
    return NewTrainedStep(step=number, at_ms=number, loss=loss, samples=samples)


def steps(*numbers: int, loss: float = 1.0) -> tuple[TrainedStep, ...]:
    return tuple(TrainedStep(step=number, at_ms=number, loss=loss) for number in numbers)


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def encode(self, text: str) -> list[int]:
        return [*text.encode()]

    encode_answer = encode

    def decode(self, tokens: Any) -> str:
        return bytes(tokens).decode()


def sample(text: str, reward: float, turns: tuple[Turn, ...] = ()) -> TrainingSample:
    tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    return TrainingSample(output_tokens=tokens, logprobs=np.zeros(len(tokens), np.float32), reward=reward, turns=turns)


def group(number: int, *samples: TrainingSample) -> TrainingGroup:
    prompt = np.frombuffer(b"1+1=", np.uint8).astype(np.int32)
    return TrainingGroup(work=WORK, group=number, prompt_index=5, prompt_tokens=prompt, version=2, samples=samples)


def shown(step: int = 3, *groups: TrainingGroup, **facts: Any) -> ShownStep:
    return ShownStep(facts={**FACTS, "step": step, **facts}, groups=groups, at_ms=5)


async def test_a_repeated_step_replaces_it_and_later_ones(run: RunUnderTest) -> None:
    async with client(run) as trainer, client(run, READER) as reader:
        assert await reader.trained() == ()
        assert (await reader.samples()).step is None
        for each in (0, 1, 2, 10):
            await trainer.put_trained(new(each, samples=() if each == 2 else sampled(f"<b>{each}\u202e\n")))
        assert await reader.trained(first=1) == steps(1, 2, 10)
        newest = await reader.samples()
        assert (newest.step, newest.steps, newest.samples) == (10, (0, 1, 10), sampled("<b>10\u202e\n"))
        assert (await reader.samples(step=2)).samples == ()
        for _ in range(2):
            await trainer.put_trained(new(1, loss=2.0, samples=sampled("again")))
        assert await reader.trained() == (*steps(0), *steps(1, loss=2.0))
        assert (await reader.samples(step=1)).samples == sampled("again")
        assert (await reader.samples()).steps == (0, 1)


async def test_only_the_newest_steps_are_kept_and_read(run: RunUnderTest) -> None:
    control = run.pool.dependencies.run_control
    assert control is not None
    for each in range(MOST_TRAINED_STEPS + 3):
        await control.show_trained(new(each, samples=sampled()))
    async with client(run, READER) as reader:
        for found in (await reader.trained(), await reader.trained(first=0)):
            assert [each.step for each in found] == list(range(3, MOST_TRAINED_STEPS + 3))
        kept = (await reader.samples()).steps
        assert kept == tuple(range(MOST_TRAINED_STEPS + 3))[-MOST_SAMPLED_STEPS:]
    page = await run.pool.owner("GET", "/v1/run/trained?limit=2")
    assert [each["step"] for each in page["items"]] == [MOST_TRAINED_STEPS + 1, MOST_TRAINED_STEPS + 2]


async def test_only_the_owner_reads_texts_and_a_reader_adds_nothing(run: RunUnderTest) -> None:
    largest = sampled("\U0001f9ea\x00\u202e<" * (MOST_SAMPLE_CHARACTERS // 4), count=MOST_SAMPLES)
    async with client(run) as trainer, client(run, READER) as reader, client(run, "mst_" + "0" * 52) as stranger:
        await trainer.put_trained(new(0, samples=largest))
        assert (await reader.samples()).samples == largest
        with pytest.raises(MusterError, match="operate"):
            await reader.put_trained(new(0))
        with pytest.raises(MusterError, match="token"):
            await stranger.samples()
    for wrong in ({"loss": float("inf")}, {"loss": 2e300}, {"step": 1 << 48}, {"samples": sampled(count=9)}):
        with pytest.raises(ValidationError):
            NewTrainedStep.model_validate({"step": 0, "at_ms": 0, **wrong})


def test_the_best_and_the_worst_rollouts_of_two_prompts_are_sent_as_text() -> None:
    talk = (Turn(3, np.array([60, 98, 62], np.int32)), Turn(1, np.array([], np.int32)))
    groups = (
        group(0, sample("2", 0.5), sample("3", 0.0), sample("x" * 3000, 1.0)),
        group(1, sample("abc7", 1.0, talk), sample("abc8", 1.0, talk)),
        group(2, sample("left out", 1.0)),
    )
    found = trained_step(shown(3, *groups), Bytes())
    texts = [(each.group, each.answer, each.reward, each.tokens) for each in found.samples]
    cut = "x" * (MOST_SAMPLE_CHARACTERS - 1) + "…"
    assert texts == [(0, cut, 1.0, 3000), (0, "3", 0.0, 1), (1, "> abc\n< <b>\n> 7", 1.0, 4)]
    assert {(each.key, each.version, each.prompt) for each in found.samples} == {(WORK, 2, "1+1=")}


def test_values_that_are_not_finite_are_left_out() -> None:
    assert trained_step(shown(), Bytes()) == NewTrainedStep(
        step=3, at_ms=5, reward=0.5, entropy=0.7, tokens_per_second=12.0, staleness=1.5
    )
    nothing = trained_step(shown(figures={}, staleness={}), Bytes())
    assert (nothing.entropy, nothing.staleness) == (None, None)


@pytest.mark.parametrize(("error", "asked"), [(Unavailable("down"), 3), (NotFound("no route"), 1)])
async def test_training_goes_on_if_the_orchestrator_is_down_or_of_an_older_release(
    error: MusterError, asked: int
) -> None:
    sent: list[int] = []

    async def send(trained: NewTrainedStep) -> None:
        sent.append(trained.step)
        raise error

    curves = CurvePublisher(send, tokenizer=Bytes())
    for step in range(3):
        curves.show(shown(step))
    await curves.drain()
    assert len(sent) == asked
    curves.show(shown(3))
    await curves.drain()
    assert len(sent) == (asked if asked == 1 else 4)
    await curves.aclose()


async def test_a_slow_orchestrator_gets_the_newest_steps() -> None:
    sent: list[int] = []

    async def send(trained: NewTrainedStep) -> None:
        sent.append(trained.step)

    curves = CurvePublisher(send, tokenizer=Bytes())
    for step in range(MOST_WAITING + 5):  # the first request begins only when this test waits
        curves.show(shown(step))
    await curves.drain()
    assert sent == list(range(5, MOST_WAITING + 5))
