"""Dialogues with a model behind an OpenAI-compatible endpoint: tool calls, limits, and messages of any form."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request

from protocol.errors import InvalidInput
from protocol.http.serving.service import create_service
from rollouts.dialogue.formats import FormatName
from rollouts.environments import load_environment
from rollouts.models.chat import ChatFormat
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.recipe import Recipe
from tests.kit.dialogues import dialogue_recipe
from tests.kit.http_server import served
from tests.kit.rollout_task import HastyClock
from tests.kit.tiny_model import rewrite_json, tiny_folder
from trainer.endpoint import EndpointAnswers, EndpointRefused
from trainer.evaluator import Evaluation, Evaluator, held_out_prompts

LOOKUP = load_environment("lookup")
TEMPLATE = (
    "{% for turn in messages %}{{ turn.role }}: {{ turn.content }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
Speak = Callable[[list[dict[str, Any]], dict[str, Any]], dict[str, Any]]
"""Returns the `choices[0]` of an answer to messages and the whole request."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tiny_folder(tmp_path_factory.mktemp("chats") / "model")
    rewrite_json(made / "tokenizer_config.json", chat_template=TEMPLATE)
    return made


def recipe_of(**changes: Any) -> Recipe:
    recipe = dialogue_recipe(turns=changes.pop("turns", 4), new_tokens=changes.pop("new_tokens", 200))
    choice = recipe.dialogue
    assert choice is not None
    choice = choice.model_copy(update={"format": FormatName.TEMPLATE, "reply_tokens": changes.pop("reply_tokens", 64)})
    return recipe.model_copy(update={"dialogue": choice, "held_out": 0.1, "max_prompt_tokens": 900} | changes)


def measured(folder: Path, recipe: Recipe, speak: Speak, *, usage: dict[str, int] | None = None) -> Evaluation:
    evaluator = Evaluator(
        environment=LOOKUP,
        recipe=recipe,
        tokenizer=FolderTokenizer(folder),
        indices=held_out_prompts(LOOKUP, recipe, count=4),
        samples=1,
    )
    app = create_service("talking", version="1")

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> dict[str, Any]:
        body = await request.json()
        return {"choices": [speak(body["messages"], body)], "usage": usage}

    with served(app) as url:
        return evaluator.measure(endpoint_of(f"{url}/v1", evaluator))


def endpoint_of(url: str, evaluator: Evaluator) -> EndpointAnswers:
    return EndpointAnswers(
        url=url, model="m", token=None, recipe=evaluator.recipe, tokenizer=evaluator.tokenizer, clock=HastyClock()
    )


def said(text: str) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}


def called(*calls: tuple[str, str]) -> dict[str, Any]:
    listed = [
        {"id": f"id-{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls)
    ]
    return {"message": {"role": "assistant", "content": None, "tool_calls": listed}, "finish_reason": "tool_calls"}


def solving(messages: list[dict[str, Any]], body: dict[str, Any]) -> dict[str, Any]:
    """Calls the tool for each letter, then answers with the digits."""
    [tool] = body["tools"]
    assert tool["function"]["parameters"]["required"] == ["key"]
    prompt = next(one["content"] for one in messages if one["role"] == "user")
    replies = [one for one in messages if one["role"] == "tool"]
    assert all(one["tool_call_id"] == "id-0" for one in replies)
    if len(replies) < 2:
        return called(("get", json.dumps({"key": prompt[len(replies)]})))
    return said("".join(one["content"][1] for one in replies))


def solving_in_text(messages: list[dict[str, Any]], _: dict[str, Any]) -> dict[str, Any]:
    """The endpoint returns the text of calls as it was drawn."""
    prompt, *replies = [one["content"] for one in messages if one["role"] == "user"]
    if len(replies) < 2:
        return said(f'<tool_call>{{"name": "get", "arguments": {{"key": "{prompt[len(replies)]}"}}}}</tool_call>')
    return said("".join(one.split("=")[1][0] for one in replies))


@pytest.mark.parametrize("speak", [solving, solving_in_text])
def test_a_model_that_calls_the_tool_solves_every_prompt(folder: Path, speak: Speak) -> None:
    found = measured(folder, recipe_of(chat=ChatFormat(system="be brief")), speak)
    assert (found.greedy, found.reward, found.greedy_finished) == (1.0, 1.0, 1.0)
    for one in found.examples:
        assert one.answer.count("\n< =") == 2
        assert one.answer.count("> ") == 3


def test_both_calls_may_be_in_one_message(folder: Path) -> None:
    def speak(messages: list[dict[str, Any]], _: dict[str, Any]) -> dict[str, Any]:
        replies = [one for one in messages if one["role"] == "tool"]
        if not replies:
            return called(*(("get", json.dumps({"key": letter})) for letter in messages[0]["content"][:2]))
        assert [one["tool_call_id"] for one in replies] == ["id-0", "id-1"]
        return said("".join(one["content"][1] for one in replies))

    assert measured(folder, recipe_of(turns=2), speak).greedy == 1.0


ENDLESS = {
    "turns": ({"turns": 3}, None, 3),
    "tokens that the endpoint counts": ({"new_tokens": 50}, {"completion_tokens": 20}, 3),
    "tokens that are counted here": ({"new_tokens": 30}, None, 2),
    "a reply as long as the rest of the tokens": ({"new_tokens": 21}, {"completion_tokens": 20}, 1),
    "long replies": ({"reply_tokens": 2}, None, 1),
}


@pytest.mark.parametrize(("changes", "usage", "turns"), ENDLESS.values(), ids=ENDLESS.keys())
def test_an_endless_dialogue_ends_at_its_limits(
    changes: dict[str, int], usage: dict[str, int] | None, turns: int, folder: Path
) -> None:
    asked: list[int] = []

    def speak(_: list[dict[str, Any]], body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body["max_tokens"])
        return called(("get", '{"key": "a"}'))

    found = measured(folder, recipe_of(**changes), speak, usage=usage)
    assert found.greedy == 0.0
    assert all(one.answer.count("> get") == turns for one in found.examples)
    assert all(0 < most <= changes.get("new_tokens", 200) for most in asked)


@pytest.mark.parametrize("arguments", ["{", "[]", '"a"', "[" * 100_000, "9" * 10_000, '{"other": 1}'])
def test_bad_arguments_get_the_tools_error(arguments: str, folder: Path) -> None:
    def speak(messages: list[dict[str, Any]], _: dict[str, Any]) -> dict[str, Any]:
        if messages[-1]["role"] != "tool":
            return called(("get", arguments), ("put", "{}"))
        [bad, unknown] = [one["content"] for one in messages if one["role"] == "tool"]
        assert "not a JSON object with the tool's parameters" in bad
        assert "no such tool" in unknown
        return said("00")

    measured(folder, recipe_of(reply_tokens=200, new_tokens=2**20), speak)


@pytest.mark.parametrize(
    "choice",
    [
        {"message": {"content": 3}, "finish_reason": "stop"},
        {"message": "text", "finish_reason": "stop"},
        {"message": {"content": "", "tool_calls": [{"id": "a"}]}, "finish_reason": "tool_calls"},
        {
            "message": {"content": "", "tool_calls": [{"function": {"name": 1, "arguments": "{}"}}]},
            "finish_reason": "stop",
        },
        {"message": {"content": "a"}, "finish_reason": "content_filter"},
        {"finish_reason": "stop"},
    ],
)
def test_messages_of_another_form_end_the_evaluation(choice: dict[str, Any], folder: Path) -> None:
    with pytest.raises(EndpointRefused, match=r"has no message|ended with 'content_filter'"):
        measured(folder, recipe_of(), lambda *_: choice)


def test_dialogues_without_messages_are_refused(folder: Path) -> None:
    recipe = dialogue_recipe().model_copy(update={"held_out": 0.1})
    evaluator = Evaluator(environment=LOOKUP, recipe=recipe, tokenizer=FolderTokenizer(folder), indices=[0])
    with pytest.raises(InvalidInput, match="format plain, which has no messages"):
        endpoint_of("http://127.0.0.1:1/v1", evaluator)
