"""Plays a dialogue from given messages of the model, for people who write or examine an environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import InvalidInput
from rollouts.environments.dialogue import GivenMessage, ModelMessage, Tool, ToolCall
from rollouts.environments.interface import Prompt
from rollouts.environments.tools import plain_calls
from rollouts.environments.validation import CheckedEnvironment


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTurn:
    """A message of the model and the replies to it."""

    message: str
    replies: tuple[GivenMessage, ...]
    done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedMessages:
    """A dialogue; the score has the task's score and its parts."""

    opening: tuple[GivenMessage, ...]
    turns: tuple[PlayedTurn, ...]
    score: dict[str, float]


def play_messages(environment: CheckedEnvironment, prompt: Prompt, texts: Sequence[str]) -> PlayedMessages:
    """Plays a dialogue.

    Args:
        environment: An environment with several turns.
        prompt: Its prompt.
        texts: Messages of the model; a call has the form `name(argument)`, or is a JSON object with `name` and
            `arguments`. If empty, the environment's demonstration.

    Raises:
        EnvironmentFault: The environment has no dialogues, or breaks its contract.
        InvalidInput: There are no messages, or there are messages after the end.
    """
    episode = environment.begin(prompt)
    texts = texts or environment.demonstration_turns(prompt) or ()
    if not texts:
        raise InvalidInput("the environment has no example of this dialogue", hint="give the messages of the model")
    turns: list[PlayedTurn] = []
    for text in texts:
        if turns and turns[-1].done:
            raise InvalidInput(f"the dialogue ends after {len(turns)} messages", hint="leave out the other ones")
        reply = episode.reply(ModelMessage(text=text, calls=_calls(text, episode.tools), tokens=len(text)))
        turns.append(PlayedTurn(message=text, replies=tuple(reply.messages), done=reply.done))
    score = episode.score()
    return PlayedMessages(opening=episode.opening, turns=tuple(turns), score={"task": score.task, **score.parts})


def _calls(text: str, tools: Sequence[Tool]) -> tuple[ToolCall, ...]:
    if not text.lstrip().startswith("{"):
        return plain_calls(text, tools)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    name, arguments = found.get("name"), found.get("arguments")
    return (ToolCall(name, arguments),) if isinstance(name, str) and isinstance(arguments, dict) else ()
