"""Answers of the policy before and after learning, which the trainer sends and the pool's page shows."""

from __future__ import annotations

import httpx
import pytest
from pydantic import ValidationError

from protocol.clients import OrchestratorClient
from protocol.errors import MusterError
from protocol.wire.runs import MOST_ANSWER_CHARACTERS, MOST_ANSWERS, NewAnswers, RunAnswers, SampledAnswer
from tests.kit.memory_run_ledger import RunUnderTest
from tests.kit.orchestrator import READER, TOKEN


def client(run: RunUnderTest, token: str = TOKEN) -> OrchestratorClient:
    return OrchestratorClient("http://127.0.0.1:1", token=token, transport=httpx.ASGITransport(app=run.pool.app))


def given(version: int, text: str, *, prompt: str = "1+1=", count: int = 2) -> NewAnswers:
    answers = [SampledAnswer(prompt=f"{prompt}{place}", answer=text, correct=text == "2") for place in range(count)]
    return NewAnswers(version=version, answers=tuple(answers))


async def test_the_first_and_the_newest_versions_answers_are_kept(run: RunUnderTest) -> None:
    async with client(run) as trainer, client(run, READER) as reader:
        assert await reader.answers() == RunAnswers()
        first, second, third = given(0, "7"), given(5, "3"), given(10, "2")
        for each in (first, second, third, second):
            await trainer.put_answers(each)
        assert await reader.answers() == RunAnswers(before=first, after=third)


async def test_answers_to_other_prompts_begin_a_new_comparison(run: RunUnderTest) -> None:
    async with client(run) as trainer:
        await trainer.put_answers(given(4, "7"))
        other = given(2, "7", prompt="sort:ba")
        assert await trainer.put_answers(other) == RunAnswers(before=other, after=other)


async def test_the_largest_answers_with_unusual_characters_arrive_unchanged(run: RunUnderTest) -> None:
    largest = given(0, "\U0001f9ea\x00\u202e<" * (MOST_ANSWER_CHARACTERS // 4), count=MOST_ANSWERS)
    async with client(run) as trainer:
        assert (await trainer.put_answers(largest)).after == largest


async def test_a_reader_may_not_set_answers_and_more_or_longer_ones_are_refused(run: RunUnderTest) -> None:
    async with client(run, READER) as reader:
        with pytest.raises(MusterError, match="operate"):
            await reader.put_answers(given(0, "2"))
    for text, count in (("x" * (MOST_ANSWER_CHARACTERS + 1), 1), ("x", MOST_ANSWERS + 1)):
        with pytest.raises(ValidationError):
            given(0, text, count=count)
