"""Answers to completions and chats, whole and streamed, through OpenAI's client."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from protocol.openai.bodies import CompletionBody
from tests.kit.serving import NAME, ServedModel, record_of
from tests.kit.tiny_model import CHARACTERS, CONTEXT, END


def text_of(tokens: list[int]) -> str:
    """Returns the text of tokens; the first four are control tokens, and the last ones have no text."""
    return "".join(CHARACTERS[token] for token in tokens if 3 < token < len(CHARACTERS))


def test_the_models_have_name_context_and_version(model: ServedModel) -> None:
    [card] = model.openai.models.list().data
    assert card.id == NAME
    assert card.to_dict()["max_model_len"] == CONTEXT
    digest = card.to_dict()["muster"]["version"]  # type: ignore[index]
    assert model.openai.models.retrieve(NAME).id == NAME
    assert model.complete(model=digest).model == NAME, "the version's digest names the model too"


def test_a_completion_has_text_usage_and_a_record(model: ServedModel) -> None:
    answer = model.complete("ab", n=3, max_tokens=40, seed=7)
    record = answer.muster
    assert record["prompts"] == [[4, 5]]
    assert [one["sample"] for one in record["samples"]] == [0, 1, 2]
    for choice, sample in zip(answer.choices, record["samples"], strict=True):
        assert choice.text == text_of(sample["token_ids"])
        ended = sample["token_ids"][-1] == END
        assert choice.finish_reason == ("stop" if ended else "length")
        assert ended or len(sample["token_ids"]) == 40
    drawn = sum(len(one["token_ids"]) for one in record["samples"])
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, drawn)
    again = model.complete("ab", n=3, max_tokens=40, seed=7).muster
    assert again == record, "the same seed gives the same answer"
    assert record_of(model.complete("ab", n=3, max_tokens=40))["seed"] != record["seed"]


def test_prompts_are_texts_or_tokens_one_or_many(model: ServedModel) -> None:
    both = model.complete([[4, 5], [6]], n=2, seed=1)
    assert record_of(both)["prompts"] == [[4, 5], [6]]
    assert [one["prompt"] for one in record_of(both)["samples"]] == [0, 0, 1, 1]
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    assert model.complete(["ab", "c"], n=2, seed=1).muster == both.muster
    assert model.complete("ab", seed=1).choices[0].text == both.choices[0].text


def test_a_temperature_of_0_means_the_most_probable_tokens(model: ServedModel) -> None:
    texts = {model.complete(temperature=0).choices[0].text for _ in range(3)}
    assert len(texts) == 1
    assert model.complete(extra_body={"top_k": 1}).choices[0].text in texts
    assert record_of(model.complete(temperature=0))["sampling"] == {
        "max_new_tokens": 8,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 1,
    }


def test_log_probabilities_are_those_of_the_drawn_tokens(model: ServedModel) -> None:
    answer = model.complete(logprobs=0)
    [sample] = record_of(answer)["samples"]
    shown = answer.choices[0].logprobs
    assert shown.token_logprobs == sample["logprobs"]
    assert shown.tokens == [[*CHARACTERS, *[""] * 64][token] for token in sample["token_ids"]]
    chat = model.chat(logprobs=True)
    [sample] = record_of(chat)["samples"]
    assert [one.logprob for one in chat.choices[0].logprobs.content] == sample["logprobs"]
    assert all(bytes(one.bytes).decode() == one.token for one in chat.choices[0].logprobs.content)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_stream_is_the_whole_answer_in_pieces(model: ServedModel, seed: int) -> None:
    options: dict[str, Any] = {"n": 3, "seed": seed, "max_tokens": 60, "logprobs": 0}
    whole = model.complete(**options)
    chunks = list(model.complete(**options, stream=True, stream_options={"include_usage": True}))
    texts, reasons = ["", "", ""], {}
    logprobs: list[list[float]] = [[], [], []]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.logprobs:
                logprobs[choice.index] += choice.logprobs.token_logprobs
            if choice.finish_reason:
                assert choice.index not in reasons
                reasons[choice.index] = choice.finish_reason
    assert texts == [choice.text for choice in whole.choices]
    assert logprobs == [choice.logprobs.token_logprobs for choice in whole.choices]
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert chunks[-1].usage == whole.usage
    assert chunks[-2].muster == whole.muster
    assert len(chunks) > 6, "tokens are sent as they are drawn"


def test_a_chat_is_rendered_by_the_template(model: ServedModel) -> None:
    turns = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a<end>"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": "x<end>"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "3"},
    ]
    tools = [{"type": "function", "function": {"name": "add", "description": "adds", "parameters": {}}}]
    body = {"messages": turns, "tools": tools, "max_tokens": 2, "seed": 1, "model": NAME}
    create: Any = model.openai.chat.completions.create
    answer = create(**body, extra_body={"chat_template_kwargs": {"mood": "glad"}})
    prompt = record_of(answer)["prompts"][0]
    shown = "".join(CHARACTERS[token] for token in prompt)
    assert shown == ("tool add\nsystem: be brief<end>user: a<end>b<end>assistant: add x<end><end>tool: 3<end>glad> ")
    assert prompt.count(END) == 4, "only the template ends turns"
    assert answer.choices[0].message.content == text_of(record_of(answer)["samples"][0]["token_ids"])
    without = create(**body, tool_choice="none")
    assert "".join(CHARACTERS[token] for token in record_of(without)["prompts"][0]).startswith("system")
    streamed = list(create(**body, tool_choice="none", stream=True))
    assert streamed[0].choices[0].delta.role == "assistant"
    said = "".join(chunk.choices[0].delta.content or "" for chunk in streamed)
    assert (said, streamed[-1].muster) == (without.choices[0].message.content, without.muster)


def test_the_train_client_of_verifiers_gets_tokens_with_log_probabilities(model: ServedModel) -> None:
    """The requests are those that verifiers 0.4.0 sends with renderers 0.1.12, and the checks those of its parser."""
    card = model.openai.get("/models", cast_to=object)
    assert next(one["max_model_len"] for one in card["data"] if one["id"] == NAME) == CONTEXT  # type: ignore[index]
    sampling = {"temperature": 1.0, "top_p": 1.0, "max_tokens": 6, "routed_experts_prompt_start": 3}
    fixed = {"stop_token_ids": [END], "logprobs": 1, "skip_special_tokens": False}
    body = {"model": NAME, "token_ids": [4, 5, 6], "sampling_params": sampling | fixed, "cache_salt": "run-1"}
    answer = model.post("/inference/v1/generate", body).json()
    [choice] = answer["choices"]
    assert choice["finish_reason"] in {"stop", "length"}
    assert [one["token"] for one in choice["logprobs"]["content"]] == [f"token_id:{one}" for one in choice["token_ids"]]
    assert all(one["logprob"] < 0 for one in choice["logprobs"]["content"])
    assert choice["token_ids"] == answer["muster"]["samples"][0]["token_ids"]
    assert answer["request_id"]
    whole = model.post("/inference/v1/generate", body | {"sampling_params": {}, "request_id": "mine"}).json()
    assert whole["request_id"] == "mine"
    assert whole["muster"]["sampling"]["max_new_tokens"] == CONTEXT - 3, "by default an answer may fill the context"
    refused = model.post("/inference/v1/generate", body | {"sampling_params": {"min_p": 0.1}}).json()["error"]
    assert (refused["param"], refused["code"]) == ("sampling_params.min_p", "unsupported_option")
    images = model.post("/inference/v1/generate", body | {"features": {"mm_hashes": {}}}).json()["error"]
    assert images["param"] == "features"


# Refusals


@pytest.mark.parametrize(
    ("path", "body", "param", "code", "words"),
    [
        (
            "completions",
            {"prompt": "a", "logit_bias": {"3": 1}},
            "logit_bias",
            "unsupported_option",
            "leave logit_bias",
        ),
        ("completions", {"prompt": "a", "frequency_penalty": 0.5}, "frequency_penalty", "unsupported_option", "replay"),
        ("completions", {"prompt": "a", "best_of": 2}, "best_of", "unsupported_option", "no draw"),
        ("completions", {"prompt": "a", "echo": True}, "echo", "unsupported_option", "prompts"),
        ("completions", {"prompt": "a", "logprobs": 2}, "logprobs", "unsupported_option", "drawn token"),
        ("completions", {"prompt": "a", "stop": ["b"]}, "stop", "unsupported_option", "cut the text"),
        ("completions", {"prompt": "a", "min_p": 0.1}, "min_p", "unsupported_option", "replay"),
        ("completions", {"prompt": "a", "stop_token_ids": [7]}, "stop_token_ids", "unsupported_option", "end token"),
        ("completions", {"prompt": "a", "temprature": 1}, "temprature", "invalid_request", "unknown"),
        ("completions", {"prompt": "a", "temperature": 1e3}, "temperature", "invalid_request", "0.01 to 100"),
        ("completions", {"prompt": "a", "top_p": 0}, "top_p", "invalid_request", "keeps no token"),
        ("completions", {"prompt": "a", "n": 129}, "n", "invalid_request", "limit is 128"),
        ("completions", {"prompt": "a", "seed": 1 << 63}, "seed", "invalid_request", "less than"),
        ("completions", {"prompt": "a", "max_tokens": True}, "max_tokens", "invalid_request", "integer"),
        ("completions", {"prompt": ""}, "prompt", "invalid_request", "no tokens"),
        ("completions", {"prompt": [64]}, "prompt", "invalid_request", "vocabulary of 64"),
        ("completions", {"prompt": "a" * 250}, "prompt", "context_length_exceeded", "context is 256 tokens"),
        ("completions", {"prompt": "a", "stream_options": {}}, "stream_options", "invalid_request", "stream=true"),
        ("chat/completions", {"messages": []}, "messages", "invalid_request", "at least 1"),
        (
            "chat/completions",
            {"messages": [{"role": "king", "content": "a"}]},
            "messages.0.role",
            "invalid_request",
            "",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "top_logprobs": 3},
            "top_logprobs",
            "unsupported_option",
            "drawn",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "response_format": {"type": "json_object"}},
            "response_format",
            "unsupported_option",
            "replay",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"tokenize": True}},
            "chat_template_kwargs",
            "invalid_request",
            "tokenize",
        ),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_by_name(
    model: ServedModel, path: str, body: dict[str, object], param: str, code: str, words: str
) -> None:
    answer = model.post(f"/v1/{path}", {"model": NAME} | body)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert error["param"].startswith(param)
    assert words.lower() in error["message"].lower()


def test_the_templates_options_may_have_any_characters(model: ServedModel) -> None:
    """The tokenizer marks the places of control tokens in a prompt with a character that no text of the chat has."""
    mood = "\ue0007\ue000"
    body = {"model": NAME, "messages": [{"role": "user", "content": "a<end>"}], "chat_template_kwargs": {"mood": mood}}
    answer = model.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    assert len(answer.json()["muster"]["prompts"][0]) > len("user: a<end>> ")
    half = model.post("/v1/chat/completions", body | {"chat_template_kwargs": {"mood": "\ud800"}})
    assert (half.status_code, half.json()["error"]["param"]) == (400, "body")


@pytest.mark.parametrize("depth", [50, 250, 900, 50_000])
def test_a_deeply_nested_request_is_answered_or_refused(model: ServedModel, depth: int) -> None:
    nested = '{"a":' * depth + "1" + "}" * depth
    tools = f'[{{"type": "function", "function": {{"name": "f", "parameters": {nested}}}}}]'
    body = f'{{"model": "{NAME}", "max_tokens": 1, "messages": [{{"role": "user", "content": "a"}}], "tools": {tools}}}'
    answer = httpx.post(
        f"{model.url}/v1/chat/completions", content=body, headers={"Authorization": f"Bearer {model.token}"}, timeout=60
    )
    assert answer.status_code in ({200} if depth == 50 else {200, 400}), answer.text


def test_neutral_values_of_unsupported_options_are_accepted(model: ServedModel) -> None:
    neutral = {"frequency_penalty": 0.0, "presence_penalty": 0, "logit_bias": {}, "best_of": 1, "stop": None}
    more = {"min_p": 0.0, "repetition_penalty": 1.0, "echo": False, "suffix": None, "user": "me", "stop_token_ids": [1]}
    assert model.post("/v1/completions", {"model": NAME, "prompt": "a"} | neutral | more).status_code == 200
    assert CompletionBody.parse(b'{"model": "m", "prompt": [1, 2]}').prompts == [[1, 2]]


def test_errors_of_access_and_of_the_server_have_openais_form(model: ServedModel) -> None:
    with pytest.raises(openai.AuthenticationError, match="token file") as wrong:
        model.openai.with_options(api_key="wrong").models.list()
    assert (wrong.value.code, wrong.value.type) == ("invalid_api_key", "authentication_error")
    with pytest.raises(openai.NotFoundError, match="'gpt-2' is not served here") as unknown:
        model.complete(model="gpt-2")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="not JSON"):
        model.openai.post("/completions", content=b"{", cast_to=object)
    large = model.post("/v1/completions", {"model": NAME, "prompt": "a" * (5 << 20)})
    assert (large.status_code, large.json()["error"]["code"]) == (413, "too_large")
    assert model.post("/v1/embeddings", {}).json()["error"]["code"] == "not_found"
    assert model.token not in large.text
