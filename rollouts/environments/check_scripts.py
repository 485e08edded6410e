"""Scripted dialogues with which `muster env check` tests an environment with several turns.

The scripts are what a model may write: demonstrations, answers without calls, messages that are cut off, calls of
unknown tools, and calls with missing, wrong, huge or unusual arguments. Every script is played twice at the same time,
so that an episode which shares state with another one, or answers differently on a second call, is found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic import JsonValue

from rollouts.environments.dialogue import ModelMessage, Tool, ToolCall
from rollouts.environments.interface import Prompt
from rollouts.environments.rewards import is_undecided
from rollouts.environments.tool_calls import read_plain_call, write_calls
from rollouts.environments.tools import MOST_CALLS
from rollouts.environments.validation import CheckedEnvironment, CheckedEpisode

DEMONSTRATED = "dialogue of the demonstration"
_TURNS = 4
_CALLING = 8
"""Number of prompts, from the first one, whose dialogues call tools by other scripts than the demonstration."""
_HUGE = "a" * 100_000
UNUSUAL = "\x00\u202e\ud7ff\U0001f9ea \ue000 <|im_end|><|eot_id|></s></tool_response> \\boxed{"
"""Characters that a tool's reply may have to repeat: control characters, and texts of control tokens."""

Script = Sequence[ModelMessage]


def beginning(environment: CheckedEnvironment, prompt: Prompt) -> dict[str, Any]:
    """Returns the messages before the model's first one and the tools, as JSON values; nothing for single answers."""
    if not environment.is_dialogue:
        return {}
    episode = environment.begin(prompt)
    return {
        "opening": [asdict(message) for message in episode.opening],
        "tools": plain([asdict(tool) for tool in episode.tools]),
        "demonstrated messages": environment.demonstration_turns(prompt),
    }


def play_scripts(environment: CheckedEnvironment, prompt: Prompt) -> tuple[dict[str, Any], str]:
    """Plays all scripts.

    Returns:
        Replies, end and score of each dialogue, by name, and the first difference between its two plays; both are empty
        for single answers.

    Raises:
        EnvironmentFault: The environment breaks its contract.
    """
    if not environment.is_dialogue:
        return {}, ""
    found: dict[str, Any] = {}
    fault = ""
    for name, script in _scripts(environment, prompt):
        first, second = _play_twice(environment, prompt, script)
        found[name] = first
        if first != second and not fault and not (first["undecided"] or second["undecided"]):
            fault = f"prompt {prompt.index}: two plays of the {name} differ: {difference(first, second)}"
    return found, fault


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Describes the first difference between two plays of a dialogue."""
    for number, (one, other) in enumerate(zip(first["replies"], second["replies"], strict=False)):
        if one != other:
            return f"reply {number}: {one!r:.120} and {other!r:.120}"
    for name in ("replies", "score"):
        if first[name] != second[name]:
            return f"{name}: {first[name]!r:.120} and {second[name]!r:.120}"
    return "none"


def plain(value: object) -> object:
    """Returns JSON values unchanged, and the type name of any other object.

    The default `repr` of an object has a memory address, which differs between the two processes.
    """
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {str(key): plain(inner) for key, inner in value.items()}
        case Sequence():
            return [plain(inner) for inner in value]
        case _:
            return f"<{type(value).__name__}>"


def _play_twice(
    environment: CheckedEnvironment, prompt: Prompt, script: Script
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plays a script with two episodes in turns."""
    episodes = [environment.begin(prompt), environment.begin(prompt)]
    replies: list[list[Any]] = [[], []]
    for message in script:
        for episode, heard in zip(episodes, replies, strict=True):
            if not heard or not heard[-1]["done"]:
                reply = episode.reply(message)
                messages = [[each.role.value, each.name, each.text] for each in reply.messages]
                heard.append({"messages": messages, "done": reply.done})
    first, second = (_played(episode, heard) for episode, heard in zip(episodes, replies, strict=True))
    return first, second


def _played(episode: CheckedEpisode, replies: list[Any]) -> dict[str, Any]:
    found = episode.score()
    score = {"task": found.task, **{name: float(value) for name, value in sorted(found.parts.items())}}
    return {"replies": replies, "score": score, "undecided": is_undecided(found)}


def _scripts(environment: CheckedEnvironment, prompt: Prompt) -> Iterator[tuple[str, Script]]:
    tools = environment.begin(prompt).tools
    turns = environment.demonstration_turns(prompt)
    if turns is not None:
        shown = [_said(text, tools) for text in turns]
        yield DEMONSTRATED, shown
        cut = ModelMessage(text=shown[-1].text, calls=shown[-1].calls, finished=False, tokens=shown[-1].tokens)
        yield "dialogue of the demonstration, cut off", [*shown[:-1], cut]
        yield "dialogue of the demonstration, told twice", [*shown, *shown]
    yield "dialogue of a huge message", [_said(_HUGE, tools)]
    yield "dialogue of unusual characters", [_said(UNUSUAL, tools)] * 2
    yield "dialogue of empty messages", [ModelMessage(text="")] * _TURNS
    yield "dialogue of a message that is cut off", [ModelMessage(text="a", finished=False, tokens=1)]
    yield "dialogue of an unknown tool", [_calling(ToolCall("no_such_tool", {})), _calling(ToolCall("", None))]
    for tool in tools if prompt.index < _CALLING else ():
        calls = [ToolCall(tool.name, arguments) for arguments in _arguments(tool)]
        yield f"dialogue of broken calls of {tool.name}", [_calling(call) for call in calls]
        plain_one = ToolCall(tool.name, dict.fromkeys(_parameters(tool), "a"))
        yield f"dialogue of many calls of {tool.name}", [_calling(*[plain_one] * (MOST_CALLS + 1))]
        yield f"dialogue of many turns with {tool.name}", [_calling(plain_one)] * _TURNS


def _arguments(tool: Tool) -> Iterator[Mapping[str, JsonValue] | None]:
    """Yields arguments that a model may write by mistake."""
    names = _parameters(tool)
    yield None
    yield {}
    yield {"no_such_parameter": "a"}
    values: list[JsonValue] = [None, True, -1, 10**300, 0.5, "", "0", UNUSUAL, _HUGE, [[[]]], {"a": {"b": []}}]
    for value in values:
        yield dict.fromkeys(names, value)


def _parameters(tool: Tool) -> list[str]:
    properties = tool.parameters.get("properties")
    return list(properties) if isinstance(properties, Mapping) else []


def _said(text: str, tools: Sequence[Tool]) -> ModelMessage:
    return ModelMessage(text=text, calls=read_plain_call(text, tools), tokens=len(text))


def _calling(*calls: ToolCall) -> ModelMessage:
    text = write_calls("", calls)
    return ModelMessage(text=text, calls=calls, tokens=len(text))
