"""Interfaces of dialogue formats and of the tokenizers that they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol, runtime_checkable

from pydantic import JsonValue

from rollouts.environments.dialogue import GivenMessage, ModelMessage, Tool, ToolCall


class FormatName(StrEnum):
    """Name of a dialogue format in recipes."""

    PLAIN = "plain"
    CHATML = "chatml"
    TEMPLATE = "template"


class DialogueTokenizer(Protocol):
    """The parts of a version's tokenizer that every format needs: see `rollouts.models.tokenizer.FolderTokenizer`."""

    def encode(self, text: str) -> Sequence[int]:
        """Returns the token ids of a text, with the tokenizer's standard tokens."""

    def encode_answer(self, text: str) -> Sequence[int]:
        """Returns the token ids of a text, without any tokens before or after it."""

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of token ids, without special tokens."""


@runtime_checkable
class ChatTokenizer(DialogueTokenizer, Protocol):
    """The parts of a version's tokenizer that chats need: see `rollouts.models.tokenizer.FolderTokenizer`."""

    @property
    def has_chat_template(self) -> bool:
        """Returns whether the tokenizer's files have a chat template."""

    def control_token(self, text: str) -> int | None:
        """Returns the token id of a control token; None if the tokenizer has no such one."""

    def encode_turns(
        self,
        turns: Sequence[dict[str, JsonValue]],
        *,
        tools: Sequence[JsonValue] = (),
        options: Mapping[str, JsonValue] | None = None,
    ) -> list[int]:
        """Returns the token ids of a chat and of the beginning of the next answer."""

    def encode_after_answer(
        self, turns: Sequence[dict[str, JsonValue]], *, options: Mapping[str, JsonValue] | None = None
    ) -> list[int]:
        """Returns the token ids from the end token of one answer to the beginning of the next one."""

    def rendered(
        self,
        turns: Sequence[Mapping[str, JsonValue]],
        *,
        tools: Sequence[JsonValue] = (),
        options: Mapping[str, JsonValue] | None = None,
    ) -> str:
        """Returns the text of a chat and of the beginning of the next answer."""


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

    def write(self, text: str, calls: Sequence[ToolCall]) -> str:
        """Returns the text of a message with calls, in which `read` finds the calls.

        Raises:
            ValueError: The format can't express the calls.
        """

    def demonstrated(self, text: str, tools: Sequence[Tool]) -> str:
        """Returns a demonstrated message as the model writes it: a call of the form `name(argument)` becomes a call."""

    @property
    def end(self) -> int | None:
        """The token that must end the model's messages; None for any end token of the model."""
