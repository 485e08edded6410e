"""Dialogues with a model behind an endpoint, over OpenAI's chat API.

The endpoint turns messages into tokens. So limits in tokens are those that the endpoint counts, and a dialogue differs
from one that an engine plays wherever the endpoint's template differs from the recipe's dialogue format.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from rollouts.dialogue.chat_turns import chat_turns, split_system, tools_as_json
from rollouts.dialogue.conversation import messages_to_give
from rollouts.dialogue.transcript import DRAWN, GIVEN, marked
from rollouts.environments.dialogue import Episode, GivenMessage, ModelMessage, Role, ToolCall
from rollouts.environments.rewards import Reward, reward_of
from rollouts.environments.tool_calls import MOST_PARSED, parse_object, read_calls
from rollouts.plan import Tokenizer
from rollouts.recipe import DialogueChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointMessage:
    """A message of the model behind an endpoint.

    Args:
        text: Its text.
        calls: The `tool_calls` of the answer, as they are sent back in later requests; empty if the endpoint reports
            none.
        tokens: Number of its tokens without the end token.
        finished: Whether the model ended the message by itself.
    """

    text: str
    calls: tuple[dict[str, Any], ...]
    tokens: int
    finished: bool


class EndpointDialogue:
    """One dialogue with a model behind an endpoint.

    Args:
        episode: The environment's side.
        choice: The recipe's dialogues.
        new_tokens: Maximum number of tokens of all messages of the model together.
        system: System prompt of the recipe; empty for none.
        tokenizer: Counts the tokens of replies.
    """

    def __init__(
        self, episode: Episode, choice: DialogueChoice, *, new_tokens: int, system: str, tokenizer: Tokenizer
    ) -> None:
        self._episode = episode
        self._choice = choice
        self._limit = new_tokens
        self._tokenizer = tokenizer
        text, others = split_system(episode.opening, before=system)
        first: list[dict[str, Any]] = [{"role": "system", "content": text}] if text else []
        self._messages: list[dict[str, Any]] = [*first, *chat_turns(others, tool_role=False)]
        self._lines: list[str] = []
        self.turns = 0
        """Number of the model's messages."""
        self.tokens = 0
        """Tokens of the model's messages, with end tokens."""
        self.finished = False
        """Whether the model ended its last message by itself."""
        self.over = False

    @property
    def text(self) -> str:
        """The dialogue as text: see `rollouts.dialogue.transcript`."""
        return "\n".join(self._lines)

    def request(self) -> dict[str, object]:
        """Returns the fields of the next request that concern the dialogue."""
        tools: list[JsonValue] = tools_as_json(self._episode.tools)
        body: dict[str, object] = {"messages": list(self._messages), "max_tokens": self._limit - self.tokens}
        return body | ({"tools": tools} if tools else {})

    def take(self, message: EndpointMessage) -> None:
        """Takes the model's next message, and lets the environment reply.

        Raises:
            EnvironmentFault: The environment breaks its contract.
        """
        self.turns += 1
        self.tokens += message.tokens + message.finished
        self.finished = message.finished
        calls = tuple(_call(one) for one in message.calls) or read_calls(message.text)
        named = [f"{call.name}({json.dumps(call.arguments, ensure_ascii=False)})" for call in calls if message.calls]
        self._lines.append(marked(DRAWN, "\n".join([*([message.text] if message.text or not named else []), *named])))
        reply = self._episode.reply(
            ModelMessage(text=message.text, calls=calls, finished=message.finished, tokens=message.tokens)
        )
        given, _ = messages_to_give(
            reply,
            finished=message.finished,
            is_last_turn=self.turns >= self._choice.turns,
            room=self._limit - self.tokens,
            reply_tokens=self._choice.reply_tokens,
            encode=self._encode,
        )
        self.over = not given
        if not self.over:
            self._lines += [marked(GIVEN, one.text) for one in given]
            self._messages += [_said(message), *_replies(given, message.calls)]

    def reward(self) -> Reward:
        """Returns the reward of the dialogue."""
        return reward_of(self._episode.score(), rule=None, target=None, output_tokens=self.tokens)

    def _encode(self, given: Sequence[GivenMessage]) -> list[int]:
        """Returns the tokens of the texts; the endpoint does not tell those of its frames."""
        return [token for one in given for token in self._tokenizer.encode_answer(one.text)]


def read_message(
    message: dict[str, Any], *, tokens: int | None, finished: bool, tokenizer: Tokenizer
) -> EndpointMessage:
    """Reads the message of an endpoint's answer, which may contain anything.

    Args:
        message: The answer's field `message`.
        tokens: Number of tokens that the endpoint counts, with the end token; None if it does not say.
        finished: Whether the model ended the message by itself.
        tokenizer: Counts the tokens if the endpoint does not.

    Raises:
        KeyError: A field is missing.
        TypeError: A field has another type than in OpenAI's API.
    """
    text, calls = message.get("content") or "", message.get("tool_calls") or []
    if not isinstance(text, str) or not isinstance(calls, list):
        raise TypeError("the message has another form")
    found: list[dict[str, Any]] = []
    for number, one in enumerate(calls[:MOST_PARSED]):
        function = one["function"]
        name, arguments, name_of_call = function["name"], function["arguments"], one.get("id") or f"call_{number}"
        if not all(isinstance(each, str) for each in (name, arguments, name_of_call)):
            raise TypeError("a call has another form")
        found.append({"id": name_of_call, "type": "function", "function": {"name": name, "arguments": arguments}})
    if tokens is None:
        parts = [text, *(one["function"]["name"] + one["function"]["arguments"] for one in found)]
        tokens = finished + sum(len(tokenizer.encode_answer(part)) for part in parts)
    return EndpointMessage(text=text, calls=tuple(found), tokens=max(0, tokens - finished), finished=finished)


def _call(call: dict[str, Any]) -> ToolCall:
    function = call["function"]
    return ToolCall(function["name"], parse_object(function["arguments"]))


def _said(message: EndpointMessage) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": message.text}
    return said | ({"tool_calls": list(message.calls)} if message.calls else {})


def _replies(given: Sequence[GivenMessage], calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns replies as messages: those of tools answer the calls in their order."""
    if not calls:
        return [*chat_turns(given, tool_role=False)]
    names = iter(call["id"] for call in calls)
    replies: list[dict[str, Any]] = []
    for one in given:
        name = next(names, None) if one.role is Role.TOOL else None
        if name is None:
            replies += chat_turns([one], tool_role=False)
        else:
            replies.append({"role": "tool", "tool_call_id": name, "content": one.text})
    return replies
