"""Formats of dialogues: how messages become tokens, and how drawn tokens become messages.

plain     texts follow each other without any frame; a call is a message of the form `name(argument)`
chatml    `<|im_start|>role … <|im_end|>` and Hermes tool calls, for models without a usable template
template  derived from the chat template in the version's folder; refuses a template that rewrites earlier turns
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from rollouts.environments.dialogue import GivenMessage, ModelMessage, Tool, ToolCall
from rollouts.models.chat import ChatFormat


class FormatName(StrEnum):
    """Name of a dialogue format in recipes."""

    PLAIN = "plain"
    CHATML = "chatml"
    TEMPLATE = "template"


class DialogueTokenizer(Protocol):
    """The parts of a version's tokenizer that dialogues need: see `rollouts.models.tokenizer.FolderTokenizer`."""

    def encode(self, text: str) -> Sequence[int]:
        """Returns the token ids of a text, with the tokenizer's standard tokens."""

    def encode_answer(self, text: str) -> Sequence[int]:
        """Returns the token ids of a text, without any tokens before or after it."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of token ids, without special tokens."""


class DialogueFormat(Protocol):
    """Turns messages into tokens, which are only appended, and drawn tokens into messages."""

    def open(self, opening: Sequence[GivenMessage], tools: Sequence[Tool]) -> list[int]:
        """Returns the prompt's tokens, up to the beginning of the model's first message.

        Raises:
            BadVersionFolder: The messages can't be encoded.
        """

    def give(self, messages: Sequence[GivenMessage]) -> list[int]:
        """Returns the tokens between a finished message of the model and the beginning of the model's next one.

        The model has drawn the end token of its own message.

        Raises:
            BadVersionFolder: The messages can't be encoded.
        """

    def read(self, tokens: Sequence[int], tools: Sequence[Tool], *, finished: bool) -> ModelMessage:
        """Returns the message of drawn tokens without the end token."""


_CALL = re.compile(r"\s*([A-Za-z0-9_-]{1,64})\((.*)\)\s*", re.DOTALL)


class PlainFormat:
    """The `plain` format: see the module docstring.

    A call's argument is the value of the tool's only parameter, as a string. Tools are not described in the prompt;
    the environment's own text does that.
    """

    def __init__(self, tokenizer: DialogueTokenizer) -> None:
        self._tokenizer = tokenizer

    def open(self, opening: Sequence[GivenMessage], tools: Sequence[Tool]) -> list[int]:  # noqa: ARG002 - see the class
        """Returns the tokens of the opening texts."""
        return list(self._tokenizer.encode("".join(message.text for message in opening)))

    def give(self, messages: Sequence[GivenMessage]) -> list[int]:
        """Returns the tokens of the texts."""
        return list(self._tokenizer.encode_answer("".join(message.text for message in messages)))

    def read(self, tokens: Sequence[int], tools: Sequence[Tool], *, finished: bool) -> ModelMessage:
        """Returns the message; it has one call or none."""
        text = self._tokenizer.decode(tokens)
        return ModelMessage(text=text, calls=_plain_calls(text, tools), finished=finished, tokens=len(tokens))


def _plain_calls(text: str, tools: Sequence[Tool]) -> tuple[ToolCall, ...]:
    found = _CALL.fullmatch(text)
    if found is None:
        return ()
    name, argument = found[1], found[2]
    properties = next((tool.parameters.get("properties") for tool in tools if tool.name == name), None)
    names = list(properties) if isinstance(properties, dict) else []
    return (ToolCall(name, {names[0]: argument} if len(names) == 1 else None),)


def open_format(name: FormatName, tokenizer: DialogueTokenizer, *, chat: bool | ChatFormat = False) -> DialogueFormat:
    """Returns a format for the tokenizer of a version.

    Args:
        name: The format.
        tokenizer: The version's tokenizer.
        chat: System turn and options of the template; not for `plain`.

    Raises:
        BadVersionFolder: The tokenizer can't be used with this format.
    """
    if name is FormatName.PLAIN:
        return PlainFormat(tokenizer)
    raise NotImplementedError(name, chat)
