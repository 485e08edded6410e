"""Episodes in which the model calls tools until it sends a message without a call, its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from rollouts.environments.dialogue import GivenMessage, ModelMessage, Reply, Role, Tool, ToolCall
from rollouts.environments.interface import Score

MOST_CALLS = 8
"""Maximum calls in one message; further calls get an error as reply."""
MOST_BYTES = 4096
"""Maximum bytes of a tool's reply in UTF-8; the rest is cut off."""
UNKNOWN_TOOL = "error: there is no such tool"
BAD_ARGUMENTS = "error: the arguments are not a JSON object with the tool's parameters"
TOO_MANY_CALLS = f"error: more than {MOST_CALLS} calls in one message"
_CUT = " … (cut off)"


class BadArgumentsError(Exception):
    """The arguments of a call do not fit the tool; its reply is `BAD_ARGUMENTS`."""


class ToolLimitError(Exception):
    """A time or memory limit ended a call, so that another machine may get another result; ends the dialogue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallableTool:
    """A tool with its function.

    Args:
        tool: Description for the model.
        run: Returns the reply to a call's arguments. It may raise `BadArgumentsError` and `ToolLimitError`.
    """

    tool: Tool
    run: Callable[[Mapping[str, JsonValue]], str]


class ToolEpisode:
    """An episode with tools.

    Args:
        opening: Messages before the model's first one.
        tools: The tools.
        judge: Returns the score of the answer; None means that the dialogue ended without an answer. The second value
            is whether the model ended the answer itself.
        limited: Whether calls have time or memory limits, so that scores always have the part `undecided`.
    """

    def __init__(
        self,
        opening: Sequence[GivenMessage],
        tools: Sequence[CallableTool],
        judge: Callable[[str | None, bool], Score],
        *,
        limited: bool = False,
    ) -> None:
        self.opening = opening
        self.tools = [one.tool for one in tools]
        self._functions = {one.tool.name: one.run for one in tools}
        self._judge = judge
        self._limited = limited
        self._undecided = False
        self._answer: str | None = None
        self._finished = False
        self._calls = 0

    def reply(self, message: ModelMessage) -> Reply:
        """Runs the calls of a message; a message without a call is the answer."""
        if not message.finished or not message.calls:
            if not message.calls:
                self._answer, self._finished = message.text, message.finished
            return Reply(done=True)
        self._calls += len(message.calls)
        try:
            replies = [self._run(number, call) for number, call in enumerate(message.calls)]
        except ToolLimitError:
            self._undecided = True
            return Reply(done=True, limited=True)
        return Reply(messages=replies)

    def score(self) -> Score:
        """Returns the score of the answer, with the number of calls."""
        score = Score(task=0.0) if self._undecided else self._judge(self._answer, self._finished)
        parts = {**score.parts, "calls": float(self._calls)}
        if self._limited:
            parts["undecided"] = float(self._undecided or bool(parts.get("undecided")))
        return Score(task=score.task, parts=parts)

    def _run(self, number: int, call: ToolCall) -> GivenMessage:
        if number >= MOST_CALLS:
            text = TOO_MANY_CALLS
        elif call.name not in self._functions:
            text = UNKNOWN_TOOL
        elif call.arguments is None:
            text = BAD_ARGUMENTS
        else:
            try:
                text = cut(self._functions[call.name](call.arguments))
            except BadArgumentsError:
                text = BAD_ARGUMENTS
        return GivenMessage(role=Role.TOOL, text=text, name=call.name if call.name in self._functions else "")


def cut(text: str) -> str:
    """Returns a text with at most `MOST_BYTES` bytes, without half characters, which have no encoding."""
    content = text.encode("utf-8", "replace")
    if len(content) <= MOST_BYTES:
        return content.decode()
    return content[: MOST_BYTES - len(_CUT.encode())].decode("utf-8", "ignore") + _CUT


def text_argument(arguments: Mapping[str, JsonValue], name: str) -> str:
    """Returns the value of a tool's only parameter, a text.

    Raises:
        BadArgumentsError: There are other arguments, or the value is no text.
    """
    value = arguments.get(name)
    if set(arguments) != {name} or not isinstance(value, str):
        raise BadArgumentsError
    return value
