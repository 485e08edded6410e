"""Resolves a warm-up's settings: start folder, environment, recipe, examples and evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rollouts.environments import Environment, is_held_out, load_environment
from rollouts.environments.validation import CheckedEnvironment
from rollouts.models.facts import ModelFacts
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.recipe import PromptRange, PromptTable, Recipe
from trainer.errors import BadSettings
from trainer.evaluator import Evaluator, held_out_prompts
from trainer.models.trainable import end_token, make_model
from trainer.sft.example_files import FileCorpus
from trainer.sft.examples import Corpus, EnvironmentCorpus
from trainer.sft.settings import EnvironmentExamples, FileExamples, ResultRecipe, ScratchStart, WarmUpSettings

START = "start"
"""Name of the folder with a start model that is created from scratch, in the warm-up's work folder."""


def start_of(settings: WarmUpSettings, work: Path) -> Path:
    """Returns the start folder.

    If the settings ask for a model from scratch, the first call creates it; later calls find it.
    """
    if not isinstance(settings.start, ScratchStart):
        return settings.start.folder
    folder = work / START
    if not folder.exists():
        make_model(
            folder,
            model_type=settings.start.model_type,
            config=settings.start.config,
            characters=settings.start.characters,
            seed=settings.seed,
        )
    return folder


def environment_of(recipe: ResultRecipe | None) -> CheckedEnvironment | None:
    """Returns the recipe's environment; None without a recipe."""
    if recipe is None:
        return None
    chosen = recipe.environment
    return load_environment(chosen.name, version=chosen.version, options=chosen.options)


def recipe_of(wanted: ResultRecipe | None, environment: Environment | None) -> tuple[Recipe | None, Sequence[int]]:
    """Returns the recipe of the result, and its table of eligible prompts if some are held out."""
    if wanted is None or environment is None:
        return None, ()
    candidates = _indices(environment, wanted.first, wanted.count, what="recipe")
    fields = wanted.model_dump(exclude={"first", "count"})
    if not wanted.held_out:
        return Recipe(**fields, prompts=PromptRange(first=candidates.start, count=len(candidates))), ()
    eligible = [index for index in candidates if not is_held_out(environment.prompt(index), wanted.held_out)]
    if not eligible:
        raise BadSettings("the recipe holds out all of its prompts", hint="lower held_out, or give more prompts")
    return Recipe(**fields, prompts=PromptTable(count=len(eligible))), eligible


def _indices(environment: Environment, first: int, count: int | None, *, what: str) -> range:
    size = environment.size()
    if size is None and count is None:
        raise BadSettings(f"{environment.name} has infinitely many prompts", hint=f"set count under {what}")
    end = min(first + count if count is not None else size or 0, 2**63 if size is None else size)
    if end <= first:
        raise BadSettings(f"{environment.name} has no prompts from {first} on", hint=f"lower first under {what}")
    return range(first, end)


def corpus_of(
    settings: WarmUpSettings,
    environment: CheckedEnvironment | None,
    recipe: Recipe | None,
    *,
    tokenizer: FolderTokenizer,
    model: ModelFacts,
) -> tuple[Corpus, str]:
    """Returns the examples, and a fingerprint of their content.

    The fingerprint differs if the content differs, even if the settings are equal.
    """
    end = end_token(model, tokenizer)
    match settings.examples:
        case FileExamples(path=path, format=name):
            wanted = None if recipe is None or recipe.dialogue is None else recipe.dialogue.format
            rows = FileCorpus(
                path,
                tokenizer=tokenizer,
                end=end,
                chat=False if recipe is None else recipe.chat,
                dialogue=name or wanted,
                all_dialogues=wanted is not None,
                end_tokens=model.end_tokens,
            )
            return rows, rows.sha256
        case EnvironmentExamples(first=first, count=count):
            if environment is None or recipe is None:
                raise BadSettings("no environment is named", hint="name one in the recipe")
            indices = _indices(environment, first, count, what="examples")
            corpus = EnvironmentCorpus(environment, recipe, tokenizer=tokenizer, model=model, end=end, indices=indices)
            return corpus, environment.version


def evaluator_of(
    settings: WarmUpSettings, environment: CheckedEnvironment | None, recipe: Recipe | None, tokenizer: FolderTokenizer
) -> Evaluator | None:
    """Returns the evaluator of held-out prompts; None without held-out prompts or if evaluation is off."""
    wanted = settings.evaluation
    if environment is None or recipe is None or not wanted.prompts or not recipe.held_out:
        return None
    indices = held_out_prompts(environment, recipe, count=wanted.prompts)
    return Evaluator(
        environment=environment, recipe=recipe, tokenizer=tokenizer, indices=indices, samples=wanted.samples
    )
