"""Tool calls in the text of a message, and the text that describes tools to a model.

In the format `plain`, a call is a message of the form `name(argument)`. In the others, a call is a JSON object between
two marks, as models of the Hermes and Qwen families write it:

    <tool_call>
    {"name": "get", "arguments": {"key": "a"}}
    </tool_call>

A message that is nothing but such an object is a call too; some templates teach this form, with `parameters` instead of
`arguments`. Any text gives the same calls on every machine: limits are counted, and no number depends on the platform.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from pydantic import JsonValue

from rollouts.environments.dialogue import GivenMessage, Role, Tool, ToolCall
from rollouts.environments.tools import plain_calls

_BEGIN, _END = "<tool_call>", "</tool_call>"
_END_OF_THOUGHT = "</think>"
MOST_PARSED = 32
"""Maximum number of calls that are read from a message; the rest of its text is ignored."""
_LONGEST_CALL = 64 * 1024
_DEEPEST = 32
_LONGEST_NUMBER = 300
"""Maximum digits of a number in arguments: Python's own limit for whole numbers is a setting of the machine."""
_LONGEST_NAME = 64


def read_calls(text: str) -> tuple[ToolCall, ...]:
    """Returns the calls after the model's reasoning, in their order; never raises an exception.

    A call that is not closed reaches to the end of the text. A call that is not valid JSON has no arguments, and a name
    only if that is valid.
    """
    text = text.rpartition(_END_OF_THOUGHT)[2]
    if _BEGIN not in text:
        whole = text.strip()
        if not whole.startswith("{"):
            return ()
        found = parse_object(whole)
        is_call = (
            found is not None
            and isinstance(found.get("name"), str)
            and ("arguments" in found) != ("parameters" in found)
        )
        return (_call(found),) if is_call else ()
    calls: list[ToolCall] = []
    place = text.find(_BEGIN)
    while place >= 0 and len(calls) < MOST_PARSED:
        end = text.find(_END, place)
        calls.append(_call(parse_object(text[place + len(_BEGIN) : end if end >= 0 else len(text)].strip())))
        place = text.find(_BEGIN, end) if end >= 0 else -1
    return tuple(calls)


def demonstrated_call(text: str, tools: Sequence[Tool]) -> str:
    """Returns a message of the form `name(argument)` as a call of a known tool, and any other message unchanged."""
    for call in plain_calls(text, tools):
        if call.arguments is not None and any(tool.name == call.name for tool in tools):
            content = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
            return f"{_BEGIN}\n{content}\n{_END}"
    return text


def tools_as_json(tools: Sequence[Tool]) -> list[JsonValue]:
    """Returns tools as JSON schemas in OpenAI's form, which chat templates read."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)},
        }
        for tool in tools
    ]


def describe_tools(tools: Sequence[Tool]) -> str:
    """Returns the part of a system turn that describes tools and the form of calls."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools_as_json(tools))
    return (
        f"You can call these functions, described by JSON schemas:\n<tools>\n{listed}\n</tools>\n"
        f"To call one, write a JSON object with its name and its arguments:\n"
        f'{_BEGIN}\n{{"name": "NAME", "arguments": {{…}}}}\n{_END}'
    )


def chat_turns(messages: Sequence[GivenMessage], *, tool_role: bool) -> list[dict[str, JsonValue]]:
    """Returns messages as turns of a chat.

    Args:
        messages: The messages.
        tool_role: Whether replies of tools are turns of the role `tool`. If not, they are parts of user turns, between
            `<tool_response>` marks. Neighbouring user messages become one turn, because many models were trained with
            alternating turns only.
    """
    turns: list[dict[str, JsonValue]] = []
    for message in messages:
        role, text = message.role.value, message.text
        if message.role is Role.TOOL:
            if tool_role:
                turns.append({"role": role, "name": message.name, "content": text})
                continue
            role, text = Role.USER.value, f"<tool_response>\n{text}\n</tool_response>"
        if turns and turns[-1]["role"] == role:
            turns[-1] = {"role": role, "content": f"{turns[-1]['content']}\n{text}"}
        else:
            turns.append({"role": role, "content": text})
    return turns


def _call(found: dict[str, JsonValue] | None) -> ToolCall:
    if found is None:
        return ToolCall("", None)
    name = found.get("name")
    arguments = found.get("arguments", found.get("parameters"))
    return ToolCall(
        name[:_LONGEST_NAME] if isinstance(name, str) else "", arguments if isinstance(arguments, dict) else None
    )


def parse_object(text: str) -> dict[str, JsonValue] | None:
    """Returns a JSON object; None if the text is none, or is too long or nested too deeply."""
    if len(text) > _LONGEST_CALL or _depth(text) > _DEEPEST:
        return None
    try:
        found: object = json.loads(text, parse_int=_whole, parse_float=_fraction, parse_constant=_refuse)
        json.dumps(found, ensure_ascii=False).encode()  # an escape such as \ud800 has no encoding
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _depth(text: str) -> int:
    """Returns the deepest nesting of brackets outside of strings."""
    deepest = depth = 0
    quoted = escaped = False
    for letter in text:
        if quoted:
            quoted = escaped or letter != '"'
            escaped = letter == "\\" and not escaped
        elif letter == '"':
            quoted = True
        elif letter in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif letter in "]}":
            depth -= 1
    return deepest


def _whole(text: str) -> int:
    return int(_bounded(text))


def _fraction(text: str) -> float:
    value = float(_bounded(text))
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _bounded(text: str) -> str:
    if len(text) > _LONGEST_NUMBER:
        raise ValueError("a number has too many digits")
    return text


def _refuse(text: str) -> float:
    raise ValueError(f"{text} is no JSON")
