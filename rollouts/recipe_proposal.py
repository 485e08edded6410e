"""Proposes a recipe for a model folder and an environment, with lengths from the environment's own prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from protocol.errors import InvalidInput
from rollouts.environments import Environment, load_environment
from rollouts.models.chat import ChatFormat
from rollouts.models.facts import read_model
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.recipe import LARGEST_INDEX, EnvironmentChoice, PromptRange, Recipe, SamplingChoice

ENDLESS_COUNT = 20_000
"""Default number of prompts from an infinite environment."""
LONGEST_ANSWER = 512
"""Default limit of answer tokens; half of the context if that is less."""
SAMPLED = 256
"""Number of prompts whose lengths are measured."""
_ROUND = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeChoices:
    """Choices of the user; the proposal fills in fields that are None.

    Args:
        environment: Name of the environment.
        version: Version of the environment; None for the installed version.
        options: Options of the environment.
        max_new_tokens: Limit of answer tokens.
        max_prompt_tokens: Limit of prompt tokens.
        group_size: Samples per prompt, at least 2.
        temperature: Sampling temperature.
        chat: Chat template format of prompts, or False for none; None uses the template if the tokenizer has one.
        held_out: Share of prompts that is never trained on.
        first: Index of the first prompt.
        count: Number of prompts.
        arithmetic: Accepted engines and data types; empty for float32 on either engine.
    """

    environment: str
    version: str | None = None
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    max_new_tokens: int | None = None
    max_prompt_tokens: int | None = None
    group_size: int = 16
    temperature: float = 1.0
    chat: bool | ChatFormat | None = None
    held_out: float = 0.02
    first: int = 0
    count: int | None = None
    arithmetic: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedRecipe:
    """A recipe and the figures behind it.

    Args:
        recipe: The recipe.
        context: The model's context in tokens.
        measured: Number of prompts whose lengths were measured.
        longest_prompt: Tokens of the longest measured prompt.
    """

    recipe: Recipe
    context: int
    measured: int
    longest_prompt: int

    @property
    def row_tokens(self) -> int:
        """Returns the tokens of the longest prompt and answer, which a row of the trainer must hold."""
        return self.recipe.max_prompt_tokens + self.recipe.sampling.max_new_tokens


def propose_recipe(folder: Path, choices: RecipeChoices) -> ProposedRecipe:
    """Returns a recipe for the model in a folder, after checking that prompts and answers fit into its context.

    Raises:
        InvalidInput: The choices contradict each other, the model's context or the environment's size.
        MusterError: The folder has no usable model, or the environment can't be loaded.
    """
    facts, tokenizer = read_model(folder), FolderTokenizer(folder)
    environment = load_environment(choices.environment, version=choices.version, options=choices.options)
    prompts = _prompt_range(environment, choices)
    chat = tokenizer.has_chat_template if choices.chat is None else choices.chat
    answer = choices.max_new_tokens or min(LONGEST_ANSWER, facts.context // 2)
    step = max(1, prompts.count // SAMPLED)
    lengths = {
        index: len(tokenizer.encode(environment.prompt(index).text, chat=chat))
        for index in range(prompts.first, prompts.first + prompts.count, step)
    }
    longest = max(lengths, key=lengths.__getitem__)
    room = facts.context - answer
    limit = choices.max_prompt_tokens or min(room, -(-2 * lengths[longest] // _ROUND) * _ROUND)
    if not 0 < limit <= room:
        raise InvalidInput(
            f"prompts of {max(limit, 1)} and answers of {answer} tokens exceed the model's context of {facts.context}",
            hint="lower --max-new-tokens or --max-prompt-tokens",
        )
    if lengths[longest] > limit:
        raise InvalidInput(
            f"prompt {longest} of {choices.environment} has {lengths[longest]} tokens, and the limit is {limit}",
            hint="raise --max-prompt-tokens, lower --max-new-tokens, or use a model with a longer context",
        )
    recipe = Recipe(
        environment=EnvironmentChoice(
            name=choices.environment, version=environment.version, options=dict(choices.options)
        ),
        sampling=SamplingChoice(temperature=choices.temperature, max_new_tokens=answer),
        group_size=choices.group_size,
        max_prompt_tokens=limit,
        chat=chat,
        held_out=choices.held_out,
        arithmetic=choices.arithmetic,
        prompts=prompts,
    )
    return ProposedRecipe(recipe=recipe, context=facts.context, measured=len(lengths), longest_prompt=lengths[longest])


def _prompt_range(environment: Environment, choices: RecipeChoices) -> PromptRange:
    size = environment.size()
    count = choices.count or (ENDLESS_COUNT if size is None else size - choices.first)
    if choices.first + count > LARGEST_INDEX:
        raise InvalidInput(
            f"prompt {choices.first + count - 1} is beyond the last index", hint="lower --first or --count"
        )
    if size is not None and not 0 < count <= size - choices.first:
        raise InvalidInput(
            f"{choices.environment} has {size} prompts, and {choices.first} to {choices.first + count - 1} were chosen",
            hint="change --first or --count",
        )
    return PromptRange(first=choices.first, count=count)
