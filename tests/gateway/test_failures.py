"""Workers and clients that fail, lie or disappear."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest

from protocol.runtime.randomness import token_hex
from protocol.wire.serving import AnswerPart, AnswerTokens, AssignedRequest
from tests.kit.gateway import RUN, GatewayUnderTest, eventually, running_gateway, text_of, tokens_of


@contextmanager
def asked(gateway: GatewayUnderTest, **options: Any) -> Iterator[Future[Any]]:
    """Sends a completion in a thread."""
    create: Any = gateway.client(gateway.token(f"t{token_hex(4)}")).completions.create
    with ThreadPoolExecutor() as pool:
        yield pool.submit(create, model=RUN, prompt="a", **{"max_tokens": 8} | options)


class Reader:
    """Reads a stream in a thread.

    Args:
        gateway: The gateway.
    """

    def __init__(self, gateway: GatewayUnderTest, **options: Any) -> None:
        client = gateway.client(gateway.token(f"r{token_hex(4)}"))
        self.text = ""
        self.record: dict[str, Any] | None = None
        self._pool = ThreadPoolExecutor()
        self._client: Any = client
        self.done = self._pool.submit(self._read, options)

    def _read(self, options: dict[str, Any]) -> None:
        create: Any = self._client.completions.create
        for chunk in create(model=RUN, prompt="a", stream=True, **{"max_tokens": 8} | options):
            self.text += chunk.choices[0].text
            self.record = getattr(chunk, "muster", None)


def test_a_lost_session_is_replaced_without_a_gap_in_the_stream(gateway: GatewayUnderTest) -> None:
    first, second = gateway.task(), gateway.task()
    first.take()
    reader = Reader(gateway, max_tokens=8)
    request = first.take_one()
    first.send(first.parts(request, count=8)[0])
    expected = text_of(tokens_of(request, 0, 8))
    eventually(lambda: reader.text == expected[:2])
    gateway.turn(11)
    again = second.take_one()
    assert (again.id, again.attempt, again.seed) == (request.id, 1, request.seed)
    assert first.send(first.parts(request, count=8)[1]).cancelled == (request.id,)
    second.answer(again, count=8, each=3)
    reader.done.result(10)
    assert reader.text == expected
    assert reader.record is not None
    assert first.close().requests == ()
    assert len(second.close().requests) == 1


def test_a_stream_ends_if_another_worker_draws_other_tokens(gateway: GatewayUnderTest) -> None:
    first, second = gateway.task(), gateway.task()
    first.take()
    reader = Reader(gateway)
    request = first.take_one()
    first.send(first.parts(request)[0])
    eventually(lambda: reader.text)
    gateway.turn(11)
    again = second.take_one()
    second.answer(again, tokens=[(token + 1) % 26 for token in tokens_of(again, 0, 4)])
    with pytest.raises(openai.APIError, match="with other tokens") as error:
        reader.done.result(10)
    assert error.value.code == "answer_changed"


def test_an_attempt_without_progress_is_given_up_and_the_third_one_is_the_last(redis_url: str) -> None:
    with running_gateway(redis_url, session_lost_s=1000) as gateway:
        task = gateway.task()
        task.take()
        with asked(gateway) as answer:
            for attempt in range(3):
                request = task.take_one()
                assert request.attempt == attempt
                gateway.turn(61)
            with pytest.raises(openai.InternalServerError, match="all attempts failed") as error:
                answer.result(10)
        assert error.value.response.headers["Retry-After"]
        assert task.close().requests == ()


def test_a_node_that_takes_requests_and_never_answers_rests(redis_url: str) -> None:
    with running_gateway(redis_url, session_lost_s=10_000, slot_time_s=10_000) as gateway:
        idle, honest = gateway.task(seconds=20_000), gateway.task(seconds=20_000)
        for _ in range(3):
            idle.take()
            honest.take(free=2)
            with asked(gateway) as answer:
                request = idle.take_one()
                gateway.turn(61)
                again = honest.take_one()
                assert (again.id, again.attempt) == (request.id, 1)
                honest.answer(again)
                answer.result(10)
        honest.take(free=0)
        with asked(gateway) as answer:
            assert idle.take(free=8, wait_s=0.3).requests == ()
            honest.answer(honest.take_one())
            answer.result(10)


WRONG: dict[str, dict[str, Any]] = {
    "another version": {"version": "0x" + "77" * 32},
    "another arithmetic": {"arithmetic": "torch/bfloat16"},
    "another seed": {"seed": "0x" + "77" * 32},
    "another limit": {"sampling": {"max_new_tokens": 9, "temperature": 1, "top_p": 1, "top_k": 0}},
    "another temperature": {"sampling": {"max_new_tokens": 8, "temperature": 0.5, "top_p": 1, "top_k": 0}},
    "two prompts": {"prompts": [[1], [2]]},
    "other tokens than sent": {
        "samples": [
            {"sample": 0, "prompt": 0, "token_ids": [1], "logprobs": [-1.0], "finish": "length", "proofs": None}
        ]
    },
    "two choices": {
        "samples": [
            {"sample": place, "prompt": 0, "token_ids": [1], "logprobs": [-1.0], "finish": "eos", "proofs": None}
            for place in range(2)
        ]
    },
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_record_is_no_answer(gateway: GatewayUnderTest, what: str) -> None:
    liar, honest = gateway.task(), gateway.task()
    liar.take()
    with asked(gateway) as answer:
        request = liar.take_one()
        honest.take()
        assert liar.answer(request, **WRONG[what]).cancelled == (request.id,)
        honest.answer(honest.take_one())
        assert answer.result(10).choices[0].text == text_of(tokens_of(request, 0, 4))
    assert liar.close().requests == ()
    assert len(honest.close().requests) == 1


def test_wrong_parts_end_the_attempt_and_three_cost_the_trust(gateway: GatewayUnderTest) -> None:
    liar, honest = gateway.task(groups=64), gateway.task(groups=64)
    tokens = AnswerTokens(choice=0, tokens=(1,), logprobs=(-1.0,), text="a")
    wrong = (
        [tokens.model_copy(update={"choice": 1})],
        [tokens.model_copy(update={"logprobs": ()})],
        [tokens.model_copy(update={"tokens": (1,) * 9, "logprobs": (-1.0,) * 9})],
    )
    liar.take(free=64)
    for parts in wrong:
        with asked(gateway) as answer:
            request = liar.take_one()
            part = AnswerPart(id=request.id, attempt=0, number=0, tokens=tuple(parts))
            assert liar.send(part).cancelled == (request.id,)
            honest.answer(honest.take_one())
            assert answer.result(10).choices[0].text
        honest.take(free=0)
    with asked(gateway) as answer:
        assert liar.take(free=64, wait_s=0.3).requests == ()
        honest.answer(honest.take_one())
        answer.result(10)


def test_repeated_parts_are_ignored_and_missing_ones_are_asked_for(gateway: GatewayUnderTest) -> None:
    task = gateway.task()
    task.take()
    with asked(gateway) as answer:
        request = task.take_one()
        parts = task.parts(request, count=6)
        assert task.send(parts[0], parts[1]).cancelled == ()
        assert task.send(parts[0], parts[1]).cancelled == ()
        body = (
            b'{"parts": [%s]}'
            % parts[3].model_copy(update={"record": None, "tokens": parts[2].tokens}).model_dump_json().encode()
        )
        missing = task.post("answers", body)
        assert (missing.status_code, missing.json()["code"]) == (409, "part-missing")
        assert task.send(*parts).cancelled == ()
        assert task.send(*parts).cancelled == (), "a repeated end is accepted"
        assert answer.result(10).choices[0].text == text_of(tokens_of(request, 0, 6))
    assert len(task.close().requests) == 1


def test_a_fault_of_the_client_is_believed_from_two_nodes_or_the_only_one(gateway: GatewayUnderTest) -> None:
    first = gateway.task()
    first.take()
    with asked(gateway) as answer:
        first.fail(first.take_one(), param="prompt")
        with pytest.raises(openai.BadRequestError, match="the prompt is too long") as error:
            answer.result(10)
        assert (error.value.code, error.value.param) == ("context_length_exceeded", "prompt")
    second = gateway.task()
    with asked(gateway) as answer:
        request = first.take_one()
        second.take()
        first.fail(request, param="prompt")
        again = second.take_one()
        assert again.id == request.id
        second.answer(again)
        assert answer.result(10).choices[0].text
    with asked(gateway) as answer:
        request = eventually(lambda: first.take().requests or second.take(free=0).requests)[0]
        second.take()
        first.fail(request, param="prompt")
        second.fail(second.take_one(), param="prompt")
        with pytest.raises(openai.BadRequestError):
            answer.result(10)


def test_a_disconnected_client_cancels_its_request(gateway: GatewayUnderTest) -> None:
    task = gateway.task()
    task.take()
    token = gateway.token()
    headers = {"Authorization": f"Bearer {token}"}
    body = {"model": RUN, "prompt": "a", "max_tokens": 8}

    def begin() -> AssignedRequest:
        request = task.take_one()
        task.send(task.parts(request)[0])
        return request

    with (
        ThreadPoolExecutor() as pool,
        httpx.Client() as client,
    ):
        begun = pool.submit(begin)
        with client.stream(
            "POST", f"{gateway.url}/v1/completions", json=body | {"stream": True}, headers=headers
        ) as answer:
            next(answer.iter_bytes())
            request = begun.result()
    assert task.take(free=0, wait_s=5).cancelled == (request.id,)
    assert task.send(*task.parts(request)).cancelled == (request.id,)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{gateway.url}/v1/completions", json=body, headers=headers, timeout=0.3)
    counts = gateway.replicas[0].dependencies.database.counts
    eventually(lambda: gateway.replicas[0].run(counts())["waiting"] == 0)
    assert task.take().requests == ()
    (row,) = gateway.replicas[0].run(gateway.replicas[0].dependencies.tokens.list())
    assert row.used_today == 2, "the tokens that were delivered count"
    assert task.close().requests == ()
