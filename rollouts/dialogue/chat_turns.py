"""Messages and tools as chat templates read them: turns of a chat, and JSON schemas."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import JsonValue

from rollouts.environments.dialogue import GivenMessage, Role, Tool
from rollouts.environments.tool_calls import BEGIN_MARK, END_MARK


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
        f'{BEGIN_MARK}\n{{"name": "NAME", "arguments": {{…}}}}\n{END_MARK}'
    )


def split_system(opening: Sequence[GivenMessage], *, before: str, after: str = "") -> tuple[str, list[GivenMessage]]:
    """Returns the text of the system turn, empty for none, and the messages of other roles.

    Args:
        opening: Messages before the model's first one.
        before: Text of the recipe, before that of the messages.
        after: Text after that of the messages, such as the description of tools.
    """
    own = "\n\n".join(message.text for message in opening if message.role is Role.SYSTEM)
    system = "\n\n".join(part for part in (before, own, after) if part)
    return system, [message for message in opening if message.role is not Role.SYSTEM]


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
