"""Dialogues as examples of a warm-up: the model learns the tokens that it will draw, in the format of rollouts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rollouts.dialogue.formats import FormatName, open_format
from rollouts.environments import load_environment
from rollouts.environments.dialogue import DialogueEnvironment, GivenMessage, Role
from rollouts.errors import BadVersionFolder
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.recipe import DialogueChoice, EnvironmentChoice, PromptRange, Recipe, SamplingChoice
from tests.kit.byte_chat import TEMPLATE, byte_chat_tokenizer
from tests.trainer.conftest import character_model
from trainer.errors import BadExamples
from trainer.models.characters import END, write_character_tokenizer
from trainer.sft.example_files import FileCorpus
from trainer.sft.examples import EnvironmentCorpus, Example, ExampleStream

LOOKUP = load_environment("lookup")
RECIPE = Recipe(
    environment=EnvironmentChoice(name="lookup", version=LOOKUP.version),
    dialogue=DialogueChoice(format=FormatName.PLAIN, turns=4, reply_tokens=16),
    sampling=SamplingChoice(max_new_tokens=24),
    group_size=4,
    max_prompt_tokens=8,
    prompts=PromptRange(count=1000),
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FolderTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_character_tokenizer(folder, "abcdefghijklmnopqrstuvwxyz0123456789()=?; ")
    return FolderTokenizer(folder)


def texts(example: Example, tokenizer: FolderTokenizer) -> list[tuple[str, bool]]:
    """Returns the texts after the prompt in order, each with whether the model learns it; `|` is the end token."""
    found: list[tuple[str, bool]] = []
    for place, token in enumerate(example.completion):
        character, learned = "|" if token == END else tokenizer.decode([token]), place not in example.given
        if found and found[-1][1] == learned:
            found[-1] = (found[-1][0] + character, learned)
        else:
            found.append((character, learned))
    return found


def demonstrations(tokenizer: FolderTokenizer, recipe: Recipe = RECIPE, *, context: int = 64) -> EnvironmentCorpus:
    return EnvironmentCorpus(
        LOOKUP, recipe, tokenizer=tokenizer, model=character_model(context=context), end=END, indices=range(60)
    )


def test_demonstrated_dialogues_are_played_with_the_environment(tokenizer: FolderTokenizer) -> None:
    environment: DialogueEnvironment = LOOKUP
    corpus = demonstrations(tokenizer)
    lengths = set()
    for place in range(len(corpus)):
        example, prompt = corpus.example(place), LOOKUP.prompt(place)
        shown = environment.demonstration_turns(prompt)
        assert example is not None
        assert shown is not None
        assert tokenizer.decode(example.prompt) == prompt.text
        digits = str(prompt.data["digits"])
        expected: list[tuple[str, bool]] = []
        for text in shown[:-1]:
            reply = f"={digits['abcdefghijklmnopqrstuvwxyz'.index(text[4])]};"
            expected += [(f"{text}|", True), (reply, False)]
        assert texts(example, tokenizer) == [*expected, (f"{shown[-1]}|", True)]
        assert example.learned == sum(len(text) + 1 for text in shown)
        lengths.add(len(shown))
    assert lengths == {2, 3}


@pytest.mark.parametrize(
    ("dialogue", "new_tokens", "context"),
    [({"turns": 2}, 24, 64), ({}, 16, 64), ({"reply_tokens": 2}, 24, 64), ({}, 24, 3 + 7 + 3 + 7 + 3 + 2)],
    ids=["turns", "new tokens", "tokens of a reply", "context"],
)
def test_demonstrations_beyond_a_limit_of_the_recipe_are_left_out(
    tokenizer: FolderTokenizer, dialogue: dict[str, Any], new_tokens: int, context: int
) -> None:
    recipe = RECIPE.model_copy(
        update={
            "dialogue": DialogueChoice.model_validate(RECIPE.dialogue.model_dump() | dialogue),  # type: ignore[union-attr]
            "sampling": SamplingChoice(max_new_tokens=new_tokens),
        }
    )
    corpus = demonstrations(tokenizer, recipe, context=context)
    found = [one for place in range(len(corpus)) if (one := corpus.example(place)) is not None]
    assert len(found) < len(corpus)
    for example in found:  # the demonstrations with one call
        assert sum(learned for _, learned in texts(example, tokenizer)) == 2
    if not found:
        with pytest.raises(BadExamples, match="none of 60 candidates"):
            ExampleStream(corpus, seed=1, longest=64).take(1)


TOOLS = [
    {
        "type": "function",
        "function": {"name": "get", "parameters": {"type": "object", "properties": {"key": {"type": "string"}}}},
    }
]


def call(key: str, **fields: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": {"name": "get", "arguments": json.dumps({"key": key})}}],
    } | fields


def result(text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "content": text} | fields


USER: dict[str, Any] = {"role": "user", "content": "ck?"}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "74"}
SYSTEM: dict[str, Any] = {"role": "system", "content": "use get"}


def corpus_of(tmp_path: Path, tokenizer: FolderTokenizer, *rows: object, **options: Any) -> FileCorpus:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return FileCorpus(path, tokenizer=tokenizer, end=END, **({"dialogue": FormatName.PLAIN} | options))


@pytest.mark.parametrize(
    ("messages", "prompt", "expected"),
    [
        (
            [SYSTEM, USER, call("c"), result("=7;"), call("k"), result("=4;"), ANSWER],
            "use getck?",
            [("get(c)|", True), ("=7;", False), ("get(k)|", True), ("=4;", False), ("74|", True)],
        ),
        ([USER, ANSWER, USER, ANSWER], "ck?", [("74|", True), ("ck?", False), ("74|", True)]),
        ([USER, call("c", weight=0), result("=7;"), ANSWER], "ck?", [("get(c)|=7;", False), ("74|", True)]),
        ([{"role": "user", "content": [{"type": "text", "text": "ck?"}]}, ANSWER], "ck?", [("74|", True)]),
        (
            [
                USER,
                call("c", tool_calls=[{"function": {"name": "get", "arguments": {"key": "c"}}}]),
                result("=7;"),
                ANSWER,
            ],
            "ck?",
            [("get(c)|", True), ("=7;", False), ("74|", True)],
        ),
    ],
    ids=["tools", "users", "weight 0", "parts of text", "arguments as an object"],
)
def test_only_messages_of_the_assistant_are_learned(
    tmp_path: Path, tokenizer: FolderTokenizer, messages: list[object], prompt: str, expected: list[tuple[str, bool]]
) -> None:
    example = corpus_of(tmp_path, tokenizer, {"messages": messages, "tools": TOOLS, "id": 7}).example(0)
    assert tokenizer.decode(example.prompt) == prompt
    assert texts(example, tokenizer) == expected


def test_a_dialogue_of_a_file_and_a_demonstration_have_equal_tokens(tmp_path: Path, tokenizer: FolderTokenizer) -> None:
    for place in range(20):
        prompt = LOOKUP.prompt(place)
        digits = {
            letter: str(prompt.data["digits"])["abcdefghijklmnopqrstuvwxyz".index(letter)] for letter in prompt.text[:2]
        }
        environment: DialogueEnvironment = LOOKUP
        messages: list[object] = [{"role": "user", "content": prompt.text}]
        for text in environment.demonstration_turns(prompt) or ():
            if text.startswith("get"):
                messages += [call(text[4]), result(f"={digits[text[4]]};")]
            else:
                messages.append({"role": "assistant", "content": text})
        row = corpus_of(tmp_path, tokenizer, {"messages": messages, "tools": TOOLS}).example(0)
        assert row == demonstrations(tokenizer).example(place)


def test_a_completion_is_a_dialogue_of_one_message_if_the_recipe_has_dialogues(
    tmp_path: Path, tokenizer: FolderTokenizer
) -> None:
    row = {"prompt": "ck?", "completion": "74"}
    assert corpus_of(tmp_path, tokenizer, row, all_dialogues=True).example(0) == corpus_of(
        tmp_path, tokenizer, {"messages": [USER, ANSWER]}
    ).example(0)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": "no"}, "messages: "),
        ({"messages": [USER]}, "messages: "),
        ({"messages": [USER, {"role": "function", "content": "a"}]}, r"messages\.1\.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, ANSWER]}, r"messages\.0\.content"),
        ({"messages": [ANSWER, USER, ANSWER]}, "begins with a system or user message and ends with one of the assist"),
        ({"messages": [USER, ANSWER, USER]}, "ends with one of the assistant"),
        ({"messages": [USER, ANSWER, ANSWER]}, "messages 2 and 3 are both the assistant's"),
        ({"messages": [USER, {"role": "assistant", "content": ""}]}, "message 2 of the assistant has neither"),
        ({"messages": [USER, ANSWER, SYSTEM, ANSWER]}, "message 3 is a system message after"),
        ({"messages": [{**USER, "tool_calls": call("a")["tool_calls"]}, ANSWER]}, "message 1 has calls, and is not"),
        ({"messages": [USER, call("c"), result("=7;"), ANSWER]}, "message 2 calls get, which is not among"),
        ({"messages": [USER, call("c"), ANSWER], "tools": TOOLS}, "messages 2 and 3 are both"),
        ({"messages": [USER, call("c"), USER, ANSWER], "tools": TOOLS}, "message 3 comes before the result of get"),
        ({"messages": [USER, result("=7;"), ANSWER]}, "message 2 is the result of no call"),
        (
            {"messages": [USER, call("c"), result("=7;"), result("=7;"), ANSWER], "tools": TOOLS},
            "message 4 is the result of no call",
        ),
        (
            {
                "messages": [
                    USER,
                    call("c", tool_calls=[{"id": "1", "function": {"name": "get"}}]),
                    result("=7;", tool_call_id="2"),
                    ANSWER,
                ],
                "tools": TOOLS,
            },
            "message 3 is the result of call '2'; '1' is next",
        ),
        (
            {
                "messages": [USER, call("c", tool_calls=[{"function": {"name": "get", "arguments": "{"}}])],
                "tools": TOOLS,
            },
            "message 2 has arguments that are not JSON: ",
        ),
        (
            {
                "messages": [USER, call("c", tool_calls=[{"function": {"name": "get", "arguments": "3"}}])],
                "tools": TOOLS,
            },
            "message 2 has arguments that are not a JSON object",
        ),
        ({"messages": [USER, {"role": "assistant", "content": "\ud800"}]}, "text that is not Unicode"),
    ],
)
def test_a_malformed_dialogue_is_refused_with_its_row(
    tmp_path: Path, tokenizer: FolderTokenizer, row: object, message: str
) -> None:
    with pytest.raises(BadExamples, match=f"rows.jsonl: row 2: .*{message}"):
        corpus_of(tmp_path, tokenizer, {"messages": [USER, ANSWER]}, row)


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (call("c", content="see:"), "a message is either a text, or one call"),
        (call("c", tool_calls=call("c")["tool_calls"] * 2), "a message is either a text, or one call"),
        ({"role": "assistant", "content": "get(c)"}, "the format plain does not read the calls no call back from"),
    ],
    ids=["a text and a call", "two calls", "a text that reads as a call"],
)
def test_a_message_that_the_format_cannot_express_is_refused_with_its_row(
    tmp_path: Path, tokenizer: FolderTokenizer, message: dict[str, Any], found: str
) -> None:
    row = {"messages": [USER, message], "tools": TOOLS}
    corpus = corpus_of(tmp_path, tokenizer, {"messages": [USER, ANSWER]}, row)
    with pytest.raises(BadExamples, match=f"rows.jsonl: row 2: .*{found}"):
        corpus.example(1)


def test_dialogues_need_a_format(tmp_path: Path, tokenizer: FolderTokenizer) -> None:
    with pytest.raises(BadExamples, match="has dialogues, but their format is not known"):
        corpus_of(tmp_path, tokenizer, {"messages": [USER, ANSWER]}, dialogue=None)


@pytest.mark.parametrize("name", [FormatName.CHATML, FormatName.TEMPLATE])
def test_chat_formats_give_the_tokens_of_rollouts(tmp_path: Path, name: FormatName) -> None:
    chat = byte_chat_tokenizer(tmp_path, template=TEMPLATE)
    end = chat.control_token("<|im_end|>")
    assert end is not None
    messages = [SYSTEM, USER, call("c", content="see:"), result("=7;"), ANSWER, USER, ANSWER]
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"messages": messages, "tools": TOOLS}))
    example = FileCorpus(path, tokenizer=chat, end=0, dialogue=name, end_tokens={end}).example(0)

    def shown(tokens: Sequence[int]) -> str:
        return "".join(map(chat.token_text, tokens))

    written = 'see:\n<tool_call>\n{"name": "get", "arguments": {"key": "c"}}\n</tool_call>'
    learned = [token for place, token in enumerate(example.completion) if place not in example.given]
    assert shown(learned) == f"{written}<|im_end|>74<|im_end|>74<|im_end|>", "each ends with the format's end token"
    assert shown(example.prompt).endswith("ck?<|im_end|>\n<|im_start|>assistant\n")
    form = open_format(name, chat)
    given = [GivenMessage(role=Role.TOOL, text="=7;", name="get")], [GivenMessage(role=Role.USER, text="ck?")]
    replies = [form.give(each) for each in given]
    assert [example.completion[place] for place in sorted(example.given)] == replies[0] + replies[1]
    with pytest.raises(BadVersionFolder, match="but the model's answers end with 0"):
        FileCorpus(path, tokenizer=chat, end=0, dialogue=name)
