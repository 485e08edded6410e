"""INTELLECT-2's offline difficulty filter: keeps prompts that a model solves sometimes.

The model answers each candidate k times; the pass rate is recorded. Prompts with a rate between two bounds are kept.
Other prompts would produce groups with equal rewards, which carry no training signal (arXiv 2505.07291, section 3.3.1:
k = 8, bounds 12.5 % and 50 %).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from protocol.errors import InvalidInput
from rollouts.engines.errors import PromptTooLong
from rollouts.engines.interface import Engine, SampleRequest
from rollouts.environments.errors import EnvironmentFault
from rollouts.environments.pass_rate_journal import JournalSubject, PassJournal, PromptPasses
from rollouts.environments.rewards import Reward
from rollouts.environments.validation import CheckedEnvironment
from rollouts.errors import BadVersionFolder
from rollouts.plan import PlannedPrompt, Tokenizer, plan_prompt, play_planned
from rollouts.precision import arithmetic_name
from rollouts.recipe import PromptTable, Recipe, write_recipe

_TAG = b"muster-difficulty-v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Inclusive bounds of the share of solved answers; partial credit does not count.

    Raises:
        InvalidInput: The bounds do not satisfy 0 ≤ least ≤ most ≤ 1.
    """

    least: float = 0.125
    most: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most <= 1:
            raise InvalidInput(
                f"the pass rate can't have bounds from {self.least} to {self.most}",
                hint="give two shares from 0 to 1, the smaller one first",
            )

    def keep(self, passes: PromptPasses) -> bool:
        """Returns whether the prompt's pass rate is within the bounds."""
        return passes.rate is not None and self.least <= passes.rate <= self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class DifficultyFilter:
    """Measures the pass rates of prompts with one model.

    Args:
        environment: The environment named by the recipe.
        engine: An engine that has loaded the model.
        tokenizer: The model's tokenizer.
        recipe: Sampling settings; its prompt table and group size are ignored.
        samples: Answers per prompt.
        block: Prompts per engine call. A resumed run gives the same results as an uninterrupted run if both have the
            same block size.
        should_stop: Polled at least once a second; the measurement stops when it returns true. None never stops.
    """

    environment: CheckedEnvironment
    engine: Engine
    tokenizer: Tokenizer
    recipe: Recipe
    samples: int = 8
    block: int = 16
    should_stop: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        if self.samples < 1 or self.block < 1:
            raise InvalidInput(
                f"can't generate {self.samples} samples for {self.block} prompts at a time",
                hint="give at least one sample and one prompt",
            )

    def measured(self, candidates: Sequence[int]) -> JournalSubject:
        """Returns the journal's subject: model, environment, recipe and candidates of this measurement."""
        return JournalSubject(
            model=str(self.engine.version),
            arithmetic=arithmetic_name(self.engine.name, self.engine.dtype),
            environment=self.environment.name,
            version=self.environment.version,
            recipe=self.recipe.model_dump(mode="json", exclude={"prompts", "group_size", "environment"}),
            candidates=hashlib.sha256(np.asarray(candidates, dtype="<u8").tobytes()).hexdigest(),
            samples=self.samples,
            block=self.block,
        )

    def run(self, candidates: Sequence[int], journal: PassJournal) -> Iterator[Sequence[PromptPasses]]:
        """Measures the candidates that the journal lacks, block by block, and appends each block to the journal.

        Yields:
            Each block, after it was written to disk.

        Raises:
            SandboxUnavailable: This machine has no sandbox for scoring answers.
            GenerationStopped: `should_stop` returned true.
        """
        for start in range(journal.blocks * self.block, len(candidates), self.block):
            passes = self._measure(candidates[start : start + self.block])
            journal.add(passes)
            yield passes

    def _measure(self, indices: Sequence[int]) -> list[PromptPasses]:
        """Measures one block. A prompt too long for the recipe or the model is recorded with zero samples."""
        planned = [asked for asked in map(self._plan, indices) if asked is not None]
        try:
            found = self._generate(planned)
        except PromptTooLong:
            found = {}
            for asked in planned:
                with contextlib.suppress(PromptTooLong):
                    found |= self._generate([asked])
        return [found.get(index, PromptPasses(prompt=index, samples=0)) for index in indices]

    def _plan(self, index: int) -> PlannedPrompt | None:
        recipe = self.recipe.model_copy(update={"group_size": self.samples})
        try:
            return plan_prompt(index, tag=_TAG, recipe=recipe, environment=self.environment, tokenizer=self.tokenizer)
        except (BadVersionFolder, EnvironmentFault):
            return None

    def _generate(self, planned: Sequence[PlannedPrompt]) -> dict[int, PromptPasses]:
        solved, undecided = Counter[int](), Counter[int]()
        for place, reward in self._rewards(planned):
            index = planned[place].group.prompt.index
            solved[index] += reward.solved
            undecided[index] += reward.undecided
        indices = [asked.group.prompt.index for asked in planned]
        return {
            index: PromptPasses(prompt=index, solved=solved[index], samples=self.samples, undecided=undecided[index])
            for index in indices
        }

    def _rewards(self, planned: Sequence[PlannedPrompt]) -> Iterator[tuple[int, Reward]]:
        """Yields the rewards of all samples, with the positions of their prompts."""
        parameters = self.recipe.sampling.parameters
        if self.recipe.dialogue is not None:
            samples = [
                (asked, place * self.samples + sample)
                for place, asked in enumerate(planned)
                for sample in asked.group.samples
            ]
            for played in play_planned(self.engine, samples, parameters, should_stop=self.should_stop):
                yield played.sample // self.samples, played.reward
            return
        requests = [
            SampleRequest(sample=place * self.samples + sample, prompt_tokens=asked.group.tokens, seed=asked.seed)
            for place, asked in enumerate(planned)
            for sample in asked.group.samples
        ]
        for answer in self.engine.generate(requests, parameters, with_proofs=False, should_stop=self.should_stop):
            place = answer.sample // self.samples
            asked = planned[place]
            yield place, asked.planner.reward(asked.group.prompt, answer.tokens, answer.finish)


def write_eligible(folder: Path, recipe: Recipe, passes: Sequence[PromptPasses], bounds: Bounds) -> int:
    """Writes a recipe and table with the prompts within the bounds; returns their number.

    Args:
        folder: Receives `recipe.json` and `prompts.u64`, to be published beside the weights.
        recipe: The recipe of the measurement.
        passes: The measured pass rates.
        bounds: Bounds of the pass rate.

    Raises:
        InvalidInput: No prompt is within the bounds; a table can't be empty.
    """
    kept = sorted(each.prompt for each in passes if bounds.keep(each))
    if not kept:
        raise InvalidInput(
            f"none of {len(passes)} prompts was solved in {bounds.least:.1%} to {bounds.most:.1%} of its answers",
            hint="widen the bounds, or use easier or harder prompts",
        )
    write_recipe(folder, recipe.model_copy(update={"prompts": PromptTable(count=len(kept))}), eligible=kept)
    return len(kept)
