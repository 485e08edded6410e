"""Plays a dialogue from given messages of the model, for authors of environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import InvalidInput
from rollouts.environments.dialogue import GivenMessage, ModelMessage
from rollouts.environments.interface import Prompt
from rollouts.environments.tool_calls import read_calls, read_plain_call
from rollouts.environments.validation import CheckedEnvironment


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedTurn:
    """A message of the model and the replies to it."""

    message: str
    replies: tuple[GivenMessage, ...]
    done: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedMessages:
    """A dialogue.

    Args:
        opening: Messages before the model's first one.
        turns: Messages of the model, with the replies.
        score: The task's score and its parts.
        not_played: Number of messages left over after a limit of time or memory ended the dialogue.
    """

    opening: tuple[GivenMessage, ...]
    turns: tuple[PlayedTurn, ...]
    score: dict[str, float]
    not_played: int


def play_messages(environment: CheckedEnvironment, prompt: Prompt, texts: Sequence[str]) -> PlayedMessages:
    """Plays a dialogue.

    Args:
        environment: An environment with several turns.
        prompt: Its prompt.
        texts: Messages of the model; calls have either notation of `rollouts.environments.tool_calls`. If empty, the
            environment's demonstration.

    Raises:
        EnvironmentFault: The environment breaks its contract.
        InvalidInput: The environment has single answers, there are no messages, or there are messages after the end of
            a dialogue that no limit of time or memory ended.
    """
    if not environment.is_dialogue:
        raise InvalidInput(
            f"environment {environment.name} has single answers and no dialogues",
            hint=f"use `muster env score {environment.name} {prompt.index}`",
        )
    episode = environment.begin(prompt)
    texts = texts or environment.demonstration_turns(prompt) or ()
    if not texts:
        raise InvalidInput("the environment has no example of this dialogue", hint="give the messages of the model")
    turns: list[PlayedTurn] = []
    limited = False
    for text in texts:
        if turns and turns[-1].done:
            break
        calls = read_plain_call(text, episode.tools) or read_calls(text)
        reply = episode.reply(ModelMessage(text=text, calls=calls, tokens=len(text)))
        turns.append(PlayedTurn(message=text, replies=tuple(reply.messages), done=reply.done))
        limited = reply.limited
    score, not_played = episode.score(), len(texts) - len(turns)
    if not_played and not limited:
        raise InvalidInput(f"the dialogue ends after {len(turns)} messages", hint="leave out the other ones")
    return PlayedMessages(
        opening=episode.opening,
        turns=tuple(turns),
        score={"task": score.task, **score.parts},
        not_played=not_played,
    )
