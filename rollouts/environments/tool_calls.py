"""Reads and writes tool calls in the text of a model's messages.

In the plain notation, a call is a message of the form `name(argument)`, with the value of the tool's only parameter. In
the marked notation, a call is a JSON object between two marks, as models of the Hermes and Qwen families write it:

    <tool_call>
    {"name": "get", "arguments": {"key": "a"}}
    </tool_call>

A message that is nothing but such an object is a call too; some templates teach this form, with `parameters` instead of
`arguments`. Any text gives the same calls on every machine: limits are counted, and no number depends on the platform.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

from pydantic import JsonValue

from rollouts.environments.dialogue import Tool, ToolCall

BEGIN_MARK, END_MARK = "<tool_call>", "</tool_call>"
_END_OF_THOUGHT = "</think>"
MOST_PARSED = 32
"""Maximum number of calls that are read from a message; the rest of its text is ignored."""
_LONGEST_CALL = 64 * 1024
_DEEPEST = 32
_LONGEST_NUMBER = 300
"""Maximum digits of a number in arguments: Python's own limit for whole numbers is a setting of the machine."""
_LONGEST_NAME = 64
_PLAIN_CALL = re.compile(r"\s*([A-Za-z0-9_-]{1,64})\((.*)\)\s*", re.DOTALL)


def read_plain_call(text: str, tools: Sequence[Tool]) -> tuple[ToolCall, ...]:
    """Returns the call in a message of the form `name(argument)`; nothing for another message."""
    found = _PLAIN_CALL.fullmatch(text)
    if found is None:
        return ()
    name, argument = found[1], found[2]
    properties = next((tool.parameters.get("properties") for tool in tools if tool.name == name), None)
    names = list(properties) if isinstance(properties, dict) else []
    return (ToolCall(name, {names[0]: argument} if len(names) == 1 else None),)


def write_plain_call(text: str, calls: Sequence[ToolCall]) -> str:
    """Returns a message with its calls in the plain notation.

    Raises:
        ValueError: The notation can't express the calls.
    """
    if not calls:
        return text
    values = list((calls[0].arguments or {}).values())
    if text.strip() or len(calls) > 1 or len(values) != 1 or not isinstance(values[0], str):
        raise ValueError("in the format plain, a message is either a text, or one call whose only argument is a text")
    return f"{calls[0].name}({values[0]})"


def read_calls(text: str) -> tuple[ToolCall, ...]:
    """Returns the marked calls after the model's reasoning, in their order; never raises an exception.

    A call that is not closed reaches to the end of the text. A call that is not valid JSON has no arguments, and a name
    only if that is valid.
    """
    text = text.rpartition(_END_OF_THOUGHT)[2]
    if BEGIN_MARK not in text:
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
    place = text.find(BEGIN_MARK)
    while place >= 0 and len(calls) < MOST_PARSED:
        end = text.find(END_MARK, place)
        calls.append(_call(parse_object(text[place + len(BEGIN_MARK) : end if end >= 0 else len(text)].strip())))
        place = text.find(BEGIN_MARK, end) if end >= 0 else -1
    return tuple(calls)


def write_calls(text: str, calls: Sequence[ToolCall]) -> str:
    """Returns a message with its calls in the marked notation."""
    written = [json.dumps({"name": one.name, "arguments": one.arguments}, ensure_ascii=False) for one in calls]
    marked = [f"{BEGIN_MARK}\n{one}\n{END_MARK}" for one in written]
    return "\n".join([*([text] if text or not calls else []), *marked])


def text_before_calls(text: str) -> str:
    """Returns the text of a message with calls, as chat APIs give it: the part before the first mark."""
    before, mark, _ = text.partition(BEGIN_MARK)
    return before.strip() if mark else ""


def demonstrated_call(text: str, tools: Sequence[Tool]) -> str:
    """Returns a plain call of a known tool in the marked notation, and any other message unchanged."""
    calls = read_plain_call(text, tools)
    is_known = any(call.arguments is not None and call.name == tool.name for call in calls for tool in tools)
    return write_calls("", calls) if is_known else text


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
