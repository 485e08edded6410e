"""The `chatml` format: turns between two control tokens, and tool calls in the form of the Hermes and Qwen models.

    <|im_start|>system
    … <tools> … </tools> …<|im_end|>
    <|im_start|>user
    What is a?<|im_end|>
    <|im_start|>assistant
    <tool_call>{"name": "get", "arguments": {"key": "a"}}</tool_call><|im_end|>
    <|im_start|>user
    <tool_response>
    7
    </tool_response><|im_end|>
    <|im_start|>assistant

It needs no chat template, only the two control tokens. The model draws `<|im_end|>` itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from rollouts.dialogue.chat_turns import chat_turns, describe_tools, split_system
from rollouts.dialogue.interface import ChatTokenizer
from rollouts.environments.dialogue import GivenMessage, ModelMessage, Role, Tool, ToolCall
from rollouts.environments.tool_calls import demonstrated_call, read_calls, write_calls
from rollouts.errors import BadVersionFolder
from rollouts.models.chat import ChatFormat

_START, _END = "<|im_start|>", "<|im_end|>"


class ChatmlFormat:
    """The `chatml` format: see the module docstring.

    Args:
        tokenizer: The version's tokenizer.
        chat: System turn before each dialogue; the format has no template whose options could be set.

    Raises:
        BadVersionFolder: The tokenizer lacks a control token, or the chat has options of a template.
    """

    def __init__(self, tokenizer: ChatTokenizer, chat: ChatFormat) -> None:
        start, end = tokenizer.control_token(_START), tokenizer.control_token(_END)
        if start is None or end is None:
            raise BadVersionFolder(
                f"the tokenizer has no control token {_START if start is None else _END}, which format chatml needs",
                hint="use format template, or plain, or mark the token as special in tokenizer.json",
            )
        if chat.template:
            raise BadVersionFolder(
                "the dialogue format chatml uses no chat template, but the recipe has options for one",
                hint="remove chat.template from the recipe, or use format template",
            )
        self._tokenizer = tokenizer
        self._system = chat.system
        self._start, self.end = start, end

    def open(self, opening: Sequence[GivenMessage], tools: Sequence[Tool]) -> list[int]:
        """Returns the prompt's tokens; the system turn has the recipe's text, the episode's own, and the tools."""
        described = describe_tools(tools) if tools else ""
        system, others = split_system(opening, before=self._system, after=described)
        turns = [*([GivenMessage(role=Role.SYSTEM, text=system)] if system else []), *others]
        return [*self._turns(turns), *self._frame("assistant\n")]

    def give(self, messages: Sequence[GivenMessage]) -> list[int]:
        """Returns the tokens between two messages of the model."""
        return [*self._tokenizer.encode_answer("\n"), *self._turns(messages), *self._frame("assistant\n")]

    def read(self, tokens: Sequence[int], tools: Sequence[Tool], *, finished: bool) -> ModelMessage:  # noqa: ARG002 - of the interface
        """Returns the message with its Hermes calls."""
        text = self._tokenizer.decode(tokens)
        return ModelMessage(text=text, calls=read_calls(text), finished=finished, tokens=len(tokens))

    def write(self, text: str, calls: Sequence[ToolCall]) -> str:
        """Returns the message with its calls between marks."""
        return write_calls(text, calls)

    def demonstrated(self, text: str, tools: Sequence[Tool]) -> str:
        """Returns a demonstrated message as the model writes it."""
        return demonstrated_call(text, tools)

    def _turns(self, messages: Sequence[GivenMessage]) -> list[int]:
        tokens: list[int] = []
        for turn in chat_turns(messages, tool_role=False):
            tokens += [*self._frame(f"{turn['role']}\n{turn['content']}"), self.end]
            tokens += self._tokenizer.encode_answer("\n")
        return tokens

    def _frame(self, text: str) -> list[int]:
        return [self._start, *self._tokenizer.encode_answer(text)]
