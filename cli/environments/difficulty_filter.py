"""Implements `muster env filter`, which writes the table of eligible prompts.

The filter measures how often a model solves each prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.output.quantities import one_of
from protocol.checkpoints import folder_files, version_digest
from protocol.errors import InvalidInput
from rollouts.authoring.difficulty_filter import Bounds, DifficultyFilter, write_eligible
from rollouts.engines.opening import open_engine
from rollouts.environments import Environment, is_held_out, load_environment
from rollouts.environments.pass_rate_journal import PassJournal
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.precision import Dtype, EngineName
from rollouts.recipe import Recipe, eligible_prompts, read_recipe

JOURNAL = "passes.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterChoices:
    """Options of `muster env filter`; its help texts describe them."""

    folder: Path
    out: Path
    first: int | None
    count: int | None
    held_out: float | None
    samples: int
    least: float
    most: float
    block: int
    engine: str
    dtype: str
    device: str | None


def run_filter(choices: FilterChoices, *, progress: Callable[[str], None]) -> dict[str, object]:
    """Measures the prompts that the journal lacks, and writes the table of eligible prompts.

    Returns statistics of all measured prompts, by name.

    Raises:
        MusterError: Loading, generating or writing failed; the journal keeps earlier measurements.
    """
    bounds = Bounds(least=choices.least, most=choices.most)
    recipe = _with_held_out(read_recipe(choices.folder), choices.held_out)
    chosen = recipe.environment
    environment = load_environment(chosen.name, version=chosen.version, options=chosen.options)
    candidates = _candidates(choices, recipe, environment)
    choices.out.mkdir(parents=True, exist_ok=True)
    engine = open_engine(one_of(EngineName, choices.engine), dtype=one_of(Dtype, choices.dtype), device=choices.device)
    engine.load(choices.folder, version=version_digest(folder_files(choices.folder)))
    measuring = DifficultyFilter(
        environment=environment,
        engine=engine,
        tokenizer=FolderTokenizer(choices.folder),
        recipe=recipe,
        samples=choices.samples,
        block=choices.block,
    )
    journal = PassJournal(choices.out / JOURNAL, measuring.measured(candidates))
    try:
        for _ in measuring.run(candidates, journal):
            progress(f"{len(journal.passes)} of {len(candidates)} prompts measured")
        kept = write_eligible(choices.out, recipe, journal.passes, bounds)
    finally:
        journal.close()
        engine.close()
    rates = [each.rate for each in journal.passes if each.rate is not None]
    return {
        "asked": len(rates),
        "too_long": len(journal.passes) - len(rates),
        "never_solved": sum(rate == 0 for rate in rates),
        "always_solved": sum(rate == 1 for rate in rates),
        "mean_pass_rate": round(sum(rates) / len(rates), 4) if rates else None,
        "undecided_answers": sum(each.undecided for each in journal.passes),
        "kept": kept,
    }


def _candidates(choices: FilterChoices, recipe: Recipe, environment: Environment) -> Sequence[int]:
    """Returns the indices of the candidate prompts, without held-out prompts.

    The candidates are the range that the options give or, without these options, the recipe's prompts.
    """
    size = environment.size()
    if choices.first is None and choices.count is None:
        indices: Sequence[int] = eligible_prompts(choices.folder, recipe)
    else:
        first = choices.first or 0
        if size is None and choices.count is None:
            raise InvalidInput("this environment is endless", hint="give the number of prompts with --count")
        end = first + choices.count if choices.count is not None else size or 0
        indices = range(first, end if size is None else min(end, size))
    share = recipe.held_out
    chosen = [index for index in indices if not share or not is_held_out(environment.prompt(index), share)]
    if not chosen:
        raise InvalidInput("there are no candidate prompts", hint="check --first, --count and --held-out")
    return chosen


def _with_held_out(recipe: Recipe, share: float | None) -> Recipe:
    """Returns the recipe; if `share` is given, with this share of held-out prompts."""
    if share is None:
        return recipe
    if share < recipe.held_out:
        raise InvalidInput(
            f"--held-out {share} is less than the recipe's held_out {recipe.held_out}",
            hint="omit --held-out: slots never draw a prompt that the recipe holds out",
        )
    return recipe.model_copy(update={"held_out": share})
