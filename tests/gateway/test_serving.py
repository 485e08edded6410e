"""Clients get answers of workers through the gateway."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from structlog.testing import capture_logs
from structlog.types import EventDict

from protocol.wire.served import answer_digest
from tests.kit.gateway import DIGEST, RUN, GatewayTask, GatewayUnderTest, record_of, text_of


def test_openai_clients_get_answers_that_are_in_the_signed_list(
    gateway: GatewayUnderTest,
) -> None:
    task = gateway.task()
    with capture_logs() as logged:
        _answer_all(gateway, task, logged)


def _answer_all(gateway: GatewayUnderTest, task: GatewayTask, logged: list[EventDict]) -> None:
    task.start()
    client = gateway.client(gateway.token())
    assert [model.id for model in client.models.list()] == [RUN]
    whole: Any = client.completions.create(model=RUN, prompt="12+34=", max_tokens=8, logprobs=0, seed=5)
    assert whole.choices[0].finish_reason == "length"
    assert whole.choices[0].text == text_of(record_of(whole)["samples"][0]["token_ids"])
    assert whole.choices[0].logprobs.tokens == list(whole.choices[0].text)
    assert whole.usage.prompt_tokens == 3
    stream = client.chat.completions.create(
        model=RUN,
        messages=[{"role": "user", "content": "héllo"}],
        max_tokens=8,
        stream=True,
        n=2,
        stream_options={"include_usage": True},
    )
    chunks: list[Any] = list(stream)
    texts = ["", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    record = chunks[-2].muster
    assert chunks[-1].usage.completion_tokens == 8
    assert texts == [text_of(sample["token_ids"]) for sample in record["samples"]]
    token = gateway.token("other")
    generated = httpx.post(
        f"{gateway.url}/inference/v1/generate",
        json={"token_ids": [1, 2], "sampling_params": {"max_tokens": 4, "logprobs": 1}},
        headers={"Authorization": f"Bearer {token}"},
    ).json()
    assert generated["choices"][0]["logprobs"]["content"][0]["logprob"] == -0.5
    task.stop()
    listed = task.close().requests
    assert [one.kind.value for one in listed] == ["completion", "chat", "generate"]
    assert listed[0].seed == record_of(whole)["seed"]
    assert json.loads(listed[1].body)["messages"][0]["content"] == "héllo"
    assert listed[0].answer == answer_digest([(whole.choices[0].text, record_of(whole)["samples"][0]["token_ids"])])
    assert listed[1].answer == answer_digest(
        [(text, sample["token_ids"]) for text, sample in zip(texts, record["samples"], strict=True)]
    )
    assert listed[2].answer == answer_digest([("", generated["choices"][0]["token_ids"])])
    assert task.close().requests == listed
    assert any(entry["event"] == "session-closed" for entry in logged)
    for secret in ("12+34=", "llo", whole.choices[0].text, token, task.session.token):
        assert secret not in str(logged)


def test_requests_wait_for_a_worker_and_every_model_name_of_the_version_works(gateway: GatewayUnderTest) -> None:
    client = gateway.client(gateway.token())
    with pytest.raises(openai.InternalServerError, match="no worker serves this model yet") as early:
        client.completions.create(model=RUN, prompt="a", max_tokens=4)
    assert early.value.response.headers["Retry-After"] == "5"
    gateway.task().start()
    assert client.completions.create(model=DIGEST, prompt="a", max_tokens=4).choices[0].text
    for body, status, code in (
        ({"model": "other"}, 404, "model_not_found"),
        ({"max_tokens": 65}, 400, "invalid_request"),
        ({"stop": ["x"]}, 400, "unsupported_option"),
        ({"temperature": -1}, 400, "invalid_request"),
        ({"nonsense": 1}, 400, "invalid_request"),
        ({"n": 65}, 400, "invalid_request"),
        ({"prompt": ["a"] * 65}, 400, "invalid_request"),
        ({"prompt": "x" * 300_000}, 413, "too_large"),
    ):
        answer = httpx.post(
            f"{gateway.url}/v1/completions",
            json={"model": RUN, "prompt": "a", "max_tokens": 4} | body,
            headers={"Authorization": f"Bearer {client.api_key}"},
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
