"""Formats of dialogues: how messages become tokens, and how drawn tokens become messages.

plain     texts follow each other without any frame; a call is a message of the form `name(argument)`
chatml    `<|im_start|>role … <|im_end|>` and Hermes tool calls, for models without a usable template
template  derived from the chat template in the version's folder; refuses a template that rewrites earlier turns
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rollouts.dialogue.chat_template import TemplateFormat
from rollouts.dialogue.chatml import ChatmlFormat
from rollouts.dialogue.interface import ChatTokenizer, DialogueFormat, DialogueTokenizer, FormatName
from rollouts.environments.dialogue import GivenMessage, ModelMessage, Tool, ToolCall
from rollouts.environments.tool_calls import read_plain_call, write_plain_call
from rollouts.errors import BadVersionFolder
from rollouts.models.chat import ChatFormat

__all__ = ["DialogueFormat", "DialogueTokenizer", "FormatName", "PlainFormat", "check_end", "open_format"]


class PlainFormat:
    """The `plain` format: see the module docstring.

    A call's argument is the value of the tool's only parameter, as a string. Tools are not described in the prompt;
    the environment's own text does that.
    """

    end = None

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
        return ModelMessage(text=text, calls=read_plain_call(text, tools), finished=finished, tokens=len(tokens))

    def write(self, text: str, calls: Sequence[ToolCall]) -> str:
        """Returns the text, or the only call."""
        return write_plain_call(text, calls)

    def demonstrated(self, text: str, tools: Sequence[Tool]) -> str:  # noqa: ARG002 - of the interface
        """Returns the text: demonstrations have this format."""
        return text


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
    if not isinstance(tokenizer, ChatTokenizer):
        raise BadVersionFolder(f"a tokenizer of type {type(tokenizer).__name__} has no chats", hint="use format plain")
    form = chat if isinstance(chat, ChatFormat) else ChatFormat()
    return (ChatmlFormat if name is FormatName.CHATML else TemplateFormat)(tokenizer, form)


def check_end(dialogue_format: DialogueFormat, end_tokens: Collection[int]) -> None:
    """Checks that the token that ends the model's messages in a format is an end token of the model.

    Raises:
        BadVersionFolder: It is not, so no message would end before a limit.
    """
    end = dialogue_format.end
    if end is not None and end not in end_tokens:
        raise BadVersionFolder(
            f"in this format, token {end} ends the model's messages, but the model's answers end with "
            f"{', '.join(map(str, sorted(end_tokens)))}",
            hint=f"add {end} to eos_token_id in the model's generation_config.json",
        )
