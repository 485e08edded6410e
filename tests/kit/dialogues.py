"""Dialogues of tiny models with random weights, whose messages mean nothing: an environment that always replies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollouts.dialogue.formats import FormatName
from rollouts.environments.dialogue import Episode, GivenMessage, ModelMessage, Reply, Role, Tool, score_of_one
from rollouts.environments.interface import Prompt, Score
from rollouts.plan import SlotPlanner
from rollouts.recipe import DialogueChoice, EnvironmentChoice, PromptRange, Recipe, SamplingChoice
from tests.kit.tiny_model import END, tiny_folder

ENDS = [END, 5, 11, 17, 23]
"""So many end tokens that messages of random weights are short."""


class Replies:
    """Replies to each message with its number and the beginning of its text; a message with `z` ends the dialogue."""

    name = "lookup"  # recipes name an environment that exists
    version = "1"

    def size(self) -> int | None:
        return None

    def prompt(self, index: int) -> Prompt:
        return Prompt(index=index, text=f"rev:{index}=")

    def begin(self, prompt: Prompt) -> Episode:
        return _Replying(prompt)

    def score(self, prompt: Prompt, completion: str, *, finished: bool) -> Score:
        return score_of_one(self, prompt, completion, finished=finished)

    def demonstration(self, prompt: Prompt) -> str | None:
        del prompt
        return None

    def demonstration_turns(self, prompt: Prompt) -> Sequence[str] | None:
        del prompt
        return None


class _Replying:
    def __init__(self, prompt: Prompt) -> None:
        self.opening = [GivenMessage(role=Role.USER, text=prompt.text)]
        self.tools: Sequence[Tool] = ()
        self._heard: list[ModelMessage] = []

    def reply(self, message: ModelMessage) -> Reply:
        self._heard.append(message)
        text = f"({len(self._heard)}:{message.text[:6]})"
        return Reply(messages=[GivenMessage(role=Role.USER, text=text)], done="z" in message.text)

    def score(self) -> Score:
        return Score(task=float(len(self._heard) % 2), parts={"messages": float(len(self._heard))})


def talking_folder(folder: Path, **config: Any) -> Path:
    """Writes a tiny model that often ends its messages; `config` changes its config."""
    return tiny_folder(folder, eos_token_id=ENDS, **config)


def dialogue_recipe(*, turns: int = 6, new_tokens: int = 120, each: int = 4, reply_tokens: int = 16) -> Recipe:
    """A recipe of dialogues."""
    return Recipe(
        environment=EnvironmentChoice(name="lookup", version="1"),
        sampling=SamplingChoice(max_new_tokens=new_tokens),
        group_size=each,
        prompts=PromptRange(count=100),
        max_prompt_tokens=32,
        dialogue=DialogueChoice(format=FormatName.PLAIN, turns=turns, reply_tokens=reply_tokens),
    )


def replying_planner(recipe: Recipe, tokenizer: object) -> SlotPlanner:
    """Plans slots of `Replies`."""
    return SlotPlanner(recipe=recipe, eligible=range(100), environment=Replies(), tokenizer=tokenizer)  # type: ignore[arg-type]
