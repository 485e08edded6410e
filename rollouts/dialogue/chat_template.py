"""The `template` format: derived from the chat template in the version's folder.

Tokens are only appended, and drawn tokens are never encoded again. So the tokens between two messages of the model are
those that the template writes after an answer, without the end token, which the model has drawn. This is the
template's own rendering only if a template writes each turn without regard to the turns around it. Probes prove this
when a version is opened; a template that removes earlier reasoning, numbers turns or describes tools beside the last
turn is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from rollouts.dialogue.chat_turns import chat_turns, describe_tools, split_system, tools_as_json
from rollouts.dialogue.interface import ChatTokenizer
from rollouts.environments.dialogue import GivenMessage, ModelMessage, Role, Tool, ToolCall
from rollouts.environments.tool_calls import demonstrated_call, read_calls, write_calls
from rollouts.errors import BadVersionFolder
from rollouts.models.chat import ChatFormat

Turns = list[dict[str, Any]]

_TOOL = Tool(
    name="probe_tool",
    description="Returns a value.",
    parameters={"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
)
_ANSWERS = (
    "first answer",
    "<think>\na thought\n</think>\n\nsecond answer",
    '<tool_call>\n{"name": "probe_tool", "arguments": {"key": "a"}}\n</tool_call>',
)
_HINT = (
    "use format chatml if the tokenizer has its control tokens, set options of the template that keep earlier turns, "
    "or publish the folder with a template that only appends"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probed:
    """Results of the probes.

    Args:
        has_tools: Whether the template describes tools.
        end: The token that ends an answer.
        system_fault: Why a system turn can't be used; None if it can.
    """

    has_tools: bool
    end: int
    system_fault: BadVersionFolder | None


_known: WeakKeyDictionary[ChatTokenizer, dict[str, _Probed]] = WeakKeyDictionary()
"""Results of the probes by tokenizer and chat."""


class TemplateFormat:
    """The `template` format: see the module docstring.

    A template that describes tools gets them, and replies of tools as turns of the role `tool`. For another template
    the format describes the tools in the system turn, and replies of tools are user turns, as in `chatml`.

    Args:
        tokenizer: The version's tokenizer.
        chat: System turn and options of the template.

    Raises:
        BadVersionFolder: The tokenizer has no template, or the template does not only append.
    """

    def __init__(self, tokenizer: ChatTokenizer, chat: ChatFormat) -> None:
        if not tokenizer.has_chat_template:
            raise BadVersionFolder(
                "the dialogue format template needs a chat template, but the tokenizer has none",
                hint="add chat_template to tokenizer_config.json, or use format chatml or plain",
            )
        self._tokenizer, self._chat = tokenizer, chat
        known = _known.setdefault(tokenizer, {})
        key = chat.model_dump_json()
        if key not in known:
            known[key] = _Probes(tokenizer, chat).run()
        self._has_tools, self.end = known[key].has_tools, known[key].end
        self._system_fault = known[key].system_fault

    def open(self, opening: Sequence[GivenMessage], tools: Sequence[Tool]) -> list[int]:
        """Returns the prompt's tokens, as the template writes them."""
        described = describe_tools(tools) if tools and not self._has_tools else ""
        system, others = split_system(opening, before=self._chat.system, after=described)
        if system and self._system_fault is not None:
            raise BadVersionFolder(
                f"the dialogue needs a system turn, but {self._system_fault.detail}", hint=self._system_fault.hint
            )
        turns = [*_system(system), *chat_turns(others, tool_role=self._has_tools)]
        schemas = tools_as_json(tools) if self._has_tools else []
        return self._tokenizer.encode_turns(turns, tools=schemas, options=self._chat.template)

    def give(self, messages: Sequence[GivenMessage]) -> list[int]:
        """Returns the tokens that the template writes between two answers, without the end token."""
        turns = chat_turns(messages, tool_role=self._has_tools)
        return self._tokenizer.encode_after_answer(turns, options=self._chat.template)[1:]

    def read(self, tokens: Sequence[int], tools: Sequence[Tool], *, finished: bool) -> ModelMessage:  # noqa: ARG002 - of the interface
        """Returns the message with its calls."""
        text = self._tokenizer.decode(tokens)
        return ModelMessage(text=text, calls=read_calls(text), finished=finished, tokens=len(tokens))

    def write(self, text: str, calls: Sequence[ToolCall]) -> str:
        """Returns the message with its calls between marks."""
        return write_calls(text, calls)

    def demonstrated(self, text: str, tools: Sequence[Tool]) -> str:
        """Returns a demonstrated message as the model writes it."""
        return demonstrated_call(text, tools)


class _Probes:
    """Renders dialogues of several turns, and compares them with the turns appended one by one."""

    def __init__(self, tokenizer: ChatTokenizer, chat: ChatFormat) -> None:
        self._tokenizer, self._chat = tokenizer, chat

    def run(self) -> _Probed:
        """Returns the template's properties.

        Raises:
            BadVersionFolder: The template does not only append.
        """
        question = chat_turns([GivenMessage(role=Role.USER, text="a question")], tool_role=False)
        schemas = tools_as_json([_TOOL])
        has_tools = _TOOL.name in self._text([*_system(self._chat.system), *question], schemas)
        used = [[], schemas] if has_tools else [[]]
        system_fault: BadVersionFolder | None = None
        try:
            self._check_all([*_system(self._chat.system or "a system text"), *question], used, has_tools=has_tools)
        except BadVersionFolder as error:
            if self._chat.system:
                raise
            system_fault = error  # only dialogues with a system turn are refused
        if not self._chat.system:
            self._check_all(question, used, has_tools=has_tools)
        [end, *_] = self._tokenizer.encode_after_answer(question, options=self._chat.template)
        return _Probed(has_tools=has_tools, end=end, system_fault=system_fault)

    def _check_all(self, opening: Turns, schemas: list[list[Any]], *, has_tools: bool) -> None:
        for replies in _replies():
            for answer in _ANSWERS:
                for each in schemas:
                    self._check(opening, answer, chat_turns(replies, tool_role=has_tools), each)

    def _check(self, opening: Turns, answer: str, given: Turns, schemas: list[Any]) -> None:
        """Checks that turns are appended: with one answer before them, with several ones, and with tools."""
        between = self._between(answer, given)
        expected, turns = self._text(opening, schemas), list(opening)
        for text in (answer, _ANSWERS[0], answer):
            turns += [{"role": "assistant", "content": text}, *given]
            expected += text + (between if text == answer else self._between(text, given))
            if self._text(turns, schemas) != expected:
                raise BadVersionFolder(
                    "the tokenizer's chat template does not only append: it writes earlier turns or tools in another "
                    f"way when further turns follow (after {answer[:24]!r} and a reply of the role {given[0]['role']})",
                    hint=_HINT,
                )

    def _between(self, answer: str, given: Turns) -> str:
        """Returns the text that the template writes after a single answer to a short question."""
        start: Turns = [{"role": "user", "content": "a"}]
        before = self._text(start, []) + answer
        whole = self._text([*start, {"role": "assistant", "content": answer}, *given], [])
        for turn in given:
            if turn["content"] not in whole:
                raise BadVersionFolder(
                    f"the tokenizer's chat template leaves out turns of the role {turn['role']}", hint=_HINT
                )
        if not whole.startswith(before):
            raise BadVersionFolder(
                "the tokenizer's chat template begins an answer in another way than it writes an earlier answer, or "
                f"changes earlier answers (such as {answer[:24]!r})",
                hint=_HINT,
            )
        return whole[len(before) :]

    def _text(self, turns: Turns, schemas: list[Any]) -> str:
        try:
            return self._tokenizer.rendered(turns, tools=schemas, options=self._chat.template)
        except BadVersionFolder as error:
            roles = ", ".join(str(turn["role"]) for turn in turns)
            raise BadVersionFolder(f"{error.detail} (with turns of the roles {roles})", hint=_HINT) from error


def _replies() -> Iterator[list[GivenMessage]]:
    """Yields the replies that the probes append."""
    user = GivenMessage(role=Role.USER, text="a further question")
    first, second = (
        GivenMessage(role=Role.TOOL, text=f"the {word} result", name=_TOOL.name) for word in ("first", "second")
    )
    yield [user]
    yield [first]
    yield [first, second]
    yield [first, user]


def _system(text: str) -> Turns:
    return [{"role": "system", "content": text}] if text else []
