"""Dialogues in a file of examples: rows of `messages` in OpenAI's form.

    {"messages": [{"role": "user", "content": "ck?"},
                  {"role": "assistant", "tool_calls": [{"function": {"name": "get", "arguments": {"key": "c"}}}]},
                  {"role": "tool", "content": "=7;"},
                  {"role": "assistant", "content": "7"}],
     "tools": [{"type": "function", "function": {"name": "get", "parameters": {"type": "object", …}}}]}

Arguments may also be JSON in a text, as the API sends them. The model's messages are encoded in the dialogue format of
the recipe, so that a trained model writes what this format reads. Loss is computed on the assistant's messages only,
without those of weight 0.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from protocol.errors import plain_message
from rollouts.dialogue.formats import FormatName, open_format
from rollouts.environments.dialogue import GivenMessage, Role, Tool, ToolCall
from rollouts.environments.validation import has_encoding
from rollouts.models.chat import ChatFormat
from rollouts.models.tokenizer import FolderTokenizer
from trainer.sft.examples import Example, dialogue_example, message_end

_MOST_MESSAGES = 1024


class BadDialogueError(Exception):
    """A row is no dialogue, or can't be written in the format; the message says why."""


class _RowModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Part(_RowModel):
    type: Literal["text"]
    text: str


class _Called(_RowModel):
    name: Annotated[str, Field(min_length=1, max_length=64)]
    arguments: dict[str, JsonValue] | str = "{}"


class _Call(_RowModel):
    id: str | None = None
    function: _Called


class _Message(_RowModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: Annotated[list[_Call] | None, Field(max_length=64)] = None
    tool_call_id: str | None = None
    weight: Literal[0, 1] = 1

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())


class _Function(_RowModel):
    name: Annotated[str, Field(min_length=1, max_length=64)]
    description: str = ""
    parameters: dict[str, JsonValue] = {"type": "object", "properties": {}}


class _Tool(_RowModel):
    type: Literal["function"]
    function: _Function


class _Row(_RowModel):
    messages: Annotated[list[_Message], Field(min_length=2, max_length=_MOST_MESSAGES)]
    tools: Annotated[list[_Tool] | None, Field(max_length=256)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenTurn:
    """A message of the assistant, and the messages that reply to it.

    Args:
        text: Its text, without its calls.
        calls: Its calls.
        learned: Whether loss is computed on it.
        replies: Messages up to the next one of the assistant.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    learned: bool = True
    replies: tuple[GivenMessage, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogueRow:
    """A dialogue of a file.

    Args:
        opening: Messages before the assistant's first one.
        tools: The tools.
        turns: The assistant's messages with their replies; at least one.
    """

    opening: tuple[GivenMessage, ...]
    tools: tuple[Tool, ...] = ()
    turns: tuple[SpokenTurn, ...]


def parse_dialogue(row: Mapping[object, object]) -> DialogueRow:
    """Returns the dialogue of a row.

    Raises:
        BadDialogueError: The row is none.
    """
    try:
        read = _Row.model_validate(row)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadDialogueError(f"{place}: {plain_message(first['msg'])}") from error
    if not has_encoding(json.dumps(read.model_dump(), ensure_ascii=False)):
        raise BadDialogueError("it has text that is not Unicode: it contains a lone surrogate")
    tools = tuple(
        Tool(name=one.function.name, description=one.function.description, parameters=one.function.parameters)
        for one in read.tools or ()
    )
    messages = read.messages
    starts = [number for number, message in enumerate(messages) if message.role == "assistant"]
    if not starts or starts[0] == 0 or starts[-1] != len(messages) - 1:
        raise BadDialogueError("a dialogue begins with a system or user message and ends with one of the assistant")
    return DialogueRow(
        opening=_given(messages, 0, starts[0], calls=()),
        tools=tools,
        turns=tuple(
            _turn(messages, start, end, tools) for start, end in zip(starts, [*starts[1:], len(messages)], strict=True)
        ),
    )


def _turn(messages: Sequence[_Message], start: int, end: int, tools: Sequence[Tool]) -> SpokenTurn:
    message = messages[start]
    calls = message.tool_calls or []
    if not message.text and not calls:
        raise BadDialogueError(f"message {start + 1} of the assistant has neither text nor calls")
    if start + 1 == end < len(messages):
        raise BadDialogueError(f"messages {start + 1} and {end + 1} are both the assistant's, without one between them")
    known = {tool.name for tool in tools}
    if unknown := next((one.function.name for one in calls if one.function.name not in known), None):
        raise BadDialogueError(f"message {start + 1} calls {unknown}, which is not among the row's tools")
    return SpokenTurn(
        text=message.text,
        calls=tuple(ToolCall(one.function.name, _arguments(one.function.arguments, start)) for one in calls),
        learned=message.weight == 1,
        replies=_given(messages, start + 1, end, calls=calls),
    )


def _given(messages: Sequence[_Message], start: int, end: int, *, calls: Sequence[_Call]) -> tuple[GivenMessage, ...]:
    """Returns the messages `start` to `end`, which the model reads; each of the calls needs one result, in order."""
    given: list[GivenMessage] = []
    waiting = list(calls)
    for number, message in enumerate(messages[start:end], start=start + 1):
        if message.tool_calls:
            raise BadDialogueError(f"message {number} has calls, and is not the assistant's")
        if message.role in {"system", "developer"}:
            if start:
                raise BadDialogueError(f"message {number} is a system message after the assistant's first message")
            given.append(GivenMessage(role=Role.SYSTEM, text=message.text))
        elif message.role == "user":
            if waiting:
                raise BadDialogueError(f"message {number} comes before the result of {waiting[0].function.name}")
            given.append(GivenMessage(role=Role.USER, text=message.text))
        else:
            if not waiting:
                raise BadDialogueError(f"message {number} is the result of no call in the message before it")
            call = waiting.pop(0)
            if message.tool_call_id is not None and call.id is not None and message.tool_call_id != call.id:
                raise BadDialogueError(
                    f"message {number} is the result of call {message.tool_call_id[:40]!r}; {call.id[:40]!r} is next"
                )
            given.append(GivenMessage(role=Role.TOOL, text=message.text, name=call.function.name))
    if waiting and end < len(messages):
        raise BadDialogueError(f"message {end + 1} comes before the result of {waiting[0].function.name}")
    return tuple(given)


def _arguments(written: Mapping[str, JsonValue] | str, start: int) -> Mapping[str, JsonValue]:
    if not isinstance(written, str):
        return written
    try:
        arguments = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise BadDialogueError(f"message {start + 1} has arguments that are not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise BadDialogueError(f"message {start + 1} has arguments that are not a JSON object")
    return arguments


class DialogueEncoder:
    """Encodes dialogues as examples.

    Args:
        name: The dialogue format.
        tokenizer: The model's tokenizer.
        chat: System turn and options of the template.
        end: Token that ends the assistant's messages, unless the format has its own.
        end_tokens: Tokens that end an answer of the model.

    Raises:
        BadVersionFolder: Tokenizer or model can't be used with this format.
    """

    def __init__(
        self,
        name: FormatName,
        *,
        tokenizer: FolderTokenizer,
        chat: bool | ChatFormat = False,
        end: int,
        end_tokens: Collection[int],
    ) -> None:
        self._name = name
        self._tokenizer = tokenizer
        self._format = open_format(name, tokenizer, chat=chat)
        self._end = message_end(self._format, end=end, end_tokens=end_tokens)

    def example(self, row: DialogueRow) -> Example:
        """Returns a dialogue as example.

        Raises:
            BadDialogueError: The format can't express a message of the assistant.
            BadVersionFolder: A message can't be encoded.
        """
        parts: list[tuple[Sequence[int], bool]] = []
        for turn in row.turns:
            drawn = self._tokenizer.encode_answer(self._written(turn))
            read = self._format.read(drawn, row.tools, finished=True)
            if read.calls != turn.calls:
                raise BadDialogueError(
                    f"the format {self._name} does not read the calls {_shown(turn.calls)} back from the message "
                    f"{read.text[:80]!r}, but {_shown(read.calls)}"
                )
            parts.append(([*drawn, self._end], turn.learned))
            if turn.replies:
                parts.append((self._format.give(turn.replies), False))
        prompt = self._format.open(row.opening, row.tools)
        if not prompt:
            raise BadDialogueError("the prompt has no tokens")
        return dialogue_example(prompt, parts)

    def _written(self, turn: SpokenTurn) -> str:
        try:
            return self._format.write(turn.text, turn.calls)
        except ValueError as error:
            raise BadDialogueError(str(error)) from error


def _shown(calls: Sequence[ToolCall]) -> str:
    return ", ".join(f"{one.name}({json.dumps(one.arguments)})"[:80] for one in calls) or "no call"
