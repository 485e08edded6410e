"""Bodies of OpenAI requests: a hostile body is refused in words, and quickly."""

from __future__ import annotations

import time

import pytest
from pydantic import ValidationError

from protocol.openai.bodies import Body, ChatBody, CompletionBody, GenerateBody
from protocol.openai.errors import InvalidRequest
from protocol.wire.answers import AnswerRecord

MILLION = 1_000_000
FIELDS = ",".join(f'"a{number}":1' for number in range(200_000))


def listed(item: str, count: int = MILLION) -> str:
    """Returns the JSON of a list of equal items."""
    return f"[{','.join([item] * count)}]"


def chat(turn: str, more: str = "") -> str:
    """Returns the JSON of a chat with one turn."""
    return f'{{"model":"m","messages":[{turn}]{more}}}'


@pytest.mark.parametrize(
    ("kind", "body", "param", "words"),
    [
        (CompletionBody, f'{{"model":"m","prompt":{listed("-1")}}}', "prompt.tokens.0", "greater"),
        (CompletionBody, f'{{"model":"m","prompt":["a",{listed("1")[1:]}}}', "prompt.texts.1", "string"),
        (CompletionBody, f'{{"model":"m","prompt":{listed("[-1,-1,-1]", 4000)}}}', "prompt.lists.0.0", "greater"),
        (
            CompletionBody,
            f'{{"model":"m","prompt":"a","stop_token_ids":{listed("-1")}}}',
            "stop_token_ids.0",
            "greater",
        ),
        (CompletionBody, f'{{"model":"m",{FIELDS}}}', "body", "the limit is 256"),
        (GenerateBody, f'{{"sampling_params":{{}},"token_ids":{listed("-1")}}}', "token_ids.0", "greater"),
        (GenerateBody, f'{{"sampling_params":{{{FIELDS}}},"token_ids":[1]}}', "sampling_params.", "limit is 256"),
        (ChatBody, chat(f'{{"role":"user","content":{listed("1")}}}'), "messages.0.content", ""),
        (ChatBody, chat(f'{{"role":"user","content":{listed("{}", 300_000)}}}'), "messages.0.content", ""),
        (ChatBody, chat(f'{{"role":"user","content":"a",{FIELDS}}}'), "messages.0", "limit is 256"),
        (ChatBody, chat(listed("1")[1:-1]), "messages.0", "dictionary"),
        (ChatBody, chat("", f',"chat_template_kwargs":{{"a":{listed("1e999", 600_000)}}}'), "body", "too large"),
        (ChatBody, chat("", f',"chat_template_kwargs":{{"a":{listed("NaN")}}}'), "body", "NaN is no JSON"),
        (CompletionBody, '{"model":"m","prompt":"a\\ud800"}', "body", "surrogate"),
        (ChatBody, chat('{"role":"user","content":[{"type":"text","text":"\\uDFFF"}]}'), "body", "surrogate"),
        (CompletionBody, '{"model":"m","prompt":"a","\\udead":1}', "body", "surrogate"),
    ],
    ids=range(16),
)
def test_a_hostile_body_is_refused_without_a_million_errors(
    kind: type[Body], body: str, param: str, words: str
) -> None:
    content = body.encode()
    assert len(content) < 4 << 20, "the service reads it"
    since = time.process_time()
    with pytest.raises(InvalidRequest) as refused:
        kind.parse(content)
    assert time.process_time() - since < 1.5
    assert next(iter(refused.value.fields or {})).startswith(param)
    assert words in refused.value.detail


def test_bytes_that_are_no_utf_8_are_refused_and_surrogate_pairs_are_not() -> None:
    with pytest.raises(InvalidRequest, match="utf-8"):
        CompletionBody.parse(b'{"model":"m","prompt":"\xed\xa0\x80"}')
    assert CompletionBody.parse(b'{"model":"m","prompt":"\\ud83d\\ude00"}').prompts == ["\U0001f600"]


def test_a_record_of_a_stranger_ends_at_the_first_wrong_token() -> None:
    with pytest.raises(ValidationError) as refused:
        AnswerRecord.model_validate({"prompts": [[-1] * 1000] * 1000})
    assert sum(error["loc"][0] == "prompts" for error in refused.value.errors()) == 1
