"""Interface of environments with several turns and tools.

    episode = environment.begin(environment.prompt(17))
    reply = episode.reply(ModelMessage(text="get(a)", calls=(ToolCall("get", {"key": "a"}),)))
    episode.score()

The generating node plays an episode; every verifier plays it again from the drawn tokens and compares each given token.
So an episode is a pure function of its prompt and messages, like `Environment.score`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from pydantic import JsonValue

from rollouts.environments.interface import Environment, Prompt, Score


class Role(StrEnum):
    """Author of a message that the model reads."""

    SYSTEM = "system"
    USER = "user"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool that the model may call.

    Args:
        name: Letters, digits, `_` and `-`.
        description: One or a few sentences for the model.
        parameters: JSON schema of the arguments, of type `object`.
    """

    name: str
    description: str
    parameters: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool.

    Args:
        name: The tool's name as the model wrote it; the tool may not exist.
        arguments: The arguments; None if what the model wrote is not a JSON object.
    """

    name: str
    arguments: Mapping[str, JsonValue] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMessage:
    """A message of the model.

    Args:
        text: The drawn tokens as text, without the end token.
        calls: Tool calls in the text, in order; see the recipe's dialogue format.
        finished: Whether the model ended the message itself, rather than at a limit. After an unfinished message the
            dialogue is over.
        tokens: Number of drawn tokens without the end token.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    finished: bool = True
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenMessage:
    """A message that the model reads.

    Args:
        role: Its author.
        text: Its content; characters of control tokens are encoded as ordinary text.
        name: Name of the tool that replies; empty for other roles.
    """

    role: Role
    text: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Reply to a message of the model.

    Args:
        messages: Messages for the model; not encoded if the dialogue is over.
        done: Whether the dialogue is over.
        limited: Whether the dialogue is over because a time or memory limit ended a call, so that another machine may
            get another reply; `done` is then set too.
    """

    messages: Sequence[GivenMessage] = field(default=())
    done: bool = False
    limited: bool = False


@runtime_checkable
class Episode(Protocol):
    """One dialogue. The same prompt and the same messages of the model give the same results on every machine."""

    @property
    def opening(self) -> Sequence[GivenMessage]:
        """The messages before the model's first one, at least one; usually the prompt's text as user message."""

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools that the model may call, described in the prompt by formats that can."""

    def reply(self, message: ModelMessage) -> Reply:
        """Takes the model's next message; called for every message, also the last one.

        Must return in bounded time for any text, and must not raise an exception because of its content: tool errors,
        unknown tools and arguments that can't be parsed are replies with fixed texts. Limits that decide are counted
        (turns, calls, bytes), never timed. If a time or memory limit ends a call all the same, the reply is `limited`
        and `done`, and `score` has the part `undecided` with value 1.
        """

    def score(self) -> Score:
        """Returns the score of the messages so far: see `Score`, also for `undecided`."""


@runtime_checkable
class DialogueEnvironment(Environment, Protocol):
    """An environment with several turns. `score` judges a completion as a dialogue of one message."""

    def begin(self, prompt: Prompt) -> Episode:
        """Begins a dialogue; episodes are independent of each other."""

    def demonstration_turns(self, prompt: Prompt) -> Sequence[str] | None:
        """Returns example texts of the model, one for each turn, for supervised warm-up; None if there are none.

        A tool call has the form `name(argument)`, with the value of the tool's only parameter as argument. Each format
        of dialogues writes it in its own form.
        """


class AnswerEpisode:
    """An episode of one message, which an environment with single answers scores.

    Args:
        environment: The environment.
        prompt: Its prompt.
    """

    def __init__(self, environment: Environment, prompt: Prompt) -> None:
        self.opening = (GivenMessage(role=Role.USER, text=prompt.text),)
        self.tools: tuple[Tool, ...] = ()
        self._environment, self._prompt = environment, prompt
        self._answer = ModelMessage(text="", finished=False)

    def reply(self, message: ModelMessage) -> Reply:
        """Takes the answer."""
        self._answer = message
        return Reply(done=True)

    def score(self) -> Score:
        """Returns the environment's score of the answer."""
        return self._environment.score(self._prompt, self._answer.text, finished=self._answer.finished)


def score_of_one(environment: DialogueEnvironment, prompt: Prompt, completion: str, *, finished: bool) -> Score:
    """Returns the score of a dialogue with one message; families use it as their `score`."""
    episode = environment.begin(prompt)
    episode.reply(ModelMessage(text=completion, finished=finished))
    return episode.score()
