"""Environment `talk`: replies to any message of a tiny random model, so that dialogues have several turns.

The reply to a message depends on its number, on its text and on a digit that is hidden in the prompt. A message with
the letter `z` ends the dialogue. `EPISODES` changes the episodes of a test, and `registered` registers the family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollouts.checks import CheckedVersion, open_version
from rollouts.dialogue.formats import FormatName
from rollouts.environments import registry
from rollouts.environments.dialogue import (
    DialogueEnvironment,
    Episode,
    GivenMessage,
    ModelMessage,
    Reply,
    Role,
    Tool,
    score_of_one,
)
from rollouts.environments.factory import Family, Options, SandboxSource
from rollouts.environments.interface import Environment, Prompt, Score
from rollouts.recipe import DialogueChoice, EnvironmentChoice, PromptRange, Recipe, SamplingChoice, write_recipe
from tests.kit.dialogues import talking_folder

EPISODES: list[Callable[[Episode], Episode]] = []
"""Functions that a test adds; each changes every episode."""


class Talk:
    """The environment; see the module docstring."""

    name = "talk"

    def __init__(self, version: str) -> None:
        self.version = version

    def size(self) -> int | None:
        return None

    def prompt(self, index: int) -> Prompt:
        return Prompt(index=index, text=f"rev:{index}=", data={"digit": index * 7 % 10})

    def begin(self, prompt: Prompt) -> Episode:
        episode: Episode = Talking(prompt)
        for change in EPISODES:
            episode = change(episode)
        return episode

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        environment: DialogueEnvironment = self
        return score_of_one(environment, prompt, completion, finished=finished)

    def demonstration(self, prompt: Prompt) -> str | None:
        return str(prompt.data["digit"])

    def demonstration_turns(self, prompt: Prompt) -> Sequence[str] | None:
        return ["a", str(prompt.data["digit"])]


class Talking:
    """An episode of `Talk`."""

    def __init__(self, prompt: Prompt) -> None:
        self.opening = [GivenMessage(role=Role.USER, text=prompt.text)]
        self.tools: Sequence[Tool] = ()
        self._digit = prompt.data["digit"]
        self._heard: list[ModelMessage] = []

    def reply(self, message: ModelMessage) -> Reply:
        self._heard.append(message)
        text = f"<{len(self._heard)}{self._digit}{message.text[:4]}>"
        return Reply(messages=[GivenMessage(role=Role.USER, text=text)], done="z" in message.text)

    def score(self) -> Score:
        return Score(task=float(sum(len(message.text) for message in self._heard) % 2))


class TalkOptions(Options):
    """Options of `talk`: none."""


def _build(version: str, _options: TalkOptions, _: SandboxSource) -> Environment:
    return Talk(version)


family = Family(name="talk", version="1", summary="replies to any message", options=TalkOptions, build=_build)

RECIPE = Recipe(
    environment=EnvironmentChoice(name="talk", version="1"),
    sampling=SamplingChoice(max_new_tokens=60),
    group_size=4,
    prompts=PromptRange(count=100),
    max_prompt_tokens=32,
    dialogue=DialogueChoice(format=FormatName.PLAIN, turns=4, reply_tokens=16),
)


@contextmanager
def registered() -> Iterator[None]:
    """Makes the family a built-in one of this process."""
    registry.BUILT_IN[family.name] = __name__
    try:
        yield
    finally:
        del registry.BUILT_IN[family.name]


def talking_version(folder: Path, recipe: Recipe = RECIPE, **config: Any) -> CheckedVersion:
    """Writes a version of a tiny random model that talks with the environment; the family must be registered.

    Args:
        folder: Folder of the version.
        recipe: Recipe of the version.
        config: Changes to the model's config.
    """
    write_recipe(talking_folder(folder, **config), recipe)
    return open_version(folder)
