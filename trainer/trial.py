"""The learning loop in one process: generates, rewards, learns and evaluates, without chain, services or proofs.

A trial shows within minutes whether a model learns an environment with an algorithm. `muster trainer try` runs a trial
and prints its steps; benchmarks use this module.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from protocol.checkpoints import folder_files, version_digest
from protocol.identifiers import ZERO_DIGEST
from rollouts.dialogue.transcript import transcript
from rollouts.engines.interface import Completion, FinishReason
from rollouts.engines.opening import open_engine
from rollouts.environments import Reward, load_environment
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.plan import PlannedPrompt, SlotPlan, SlotPlanner, play_planned
from rollouts.precision import Dtype, EngineName
from rollouts.recipe import EligiblePrompts, Recipe, eligible_prompts, read_recipe
from rollouts.turns import Turn
from trainer.by_environment import EnvironmentResult, ResultsByEnvironment, results_of
from trainer.errors import BadSettings
from trainer.evaluator import AnswerExample, Evaluation, Evaluator, held_out_prompts
from trainer.learning.groups import TrainingGroup, TrainingSample
from trainer.learning.learner import Learner
from trainer.learning.metrics import LearnedStep
from trainer.learning.settings import LearningSettings
from trainer.models.trainable import open_model, write_version

_MOST_ROUNDS = 8
"""Maximum rounds of generation for one step. After them the step trains on the groups with signal that it has."""
_EXAMPLES = 4
_EXAMPLE_CHARACTERS = 2_000


class NoSignal(BadSettings):
    """A step has nothing to learn from: in each group all answers have the same reward."""

    code = "no-signal"


class TrialSettings(BaseModel):
    """Settings of a trial: those of `[trainer]` that need no network. Other keys of the table are ignored.

    Args:
        steps: Number of steps.
        seed: Seed of prompts and answers.
        groups_per_step: Number of groups in a step's batch; only groups whose rewards differ count.
        staleness: Number of steps by which the policy that generates is older than the policy under training.
        evaluation_prompts: Number of held-out prompts of an evaluation.
        evaluation_samples: Number of sampled answers to each prompt, in addition to the greedy answer.
        device: Device, such as `cpu` or `cuda:1`.
        learning: Settings of the learner.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    steps: Annotated[int, Field(ge=1)] = 10
    seed: Annotated[int, Field(ge=0)] = 1
    groups_per_step: Annotated[int, Field(ge=1)] = 16
    staleness: Annotated[int, Field(ge=0, le=64)] = 0
    evaluation_prompts: Annotated[int, Field(ge=1)] = 256
    evaluation_samples: Annotated[int, Field(ge=0)] = 4
    device: str = "cpu"
    learning: LearningSettings = LearningSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialStep:
    """Result of a step.

    Args:
        learned: Metrics of the optimiser step.
        reward: Mean reward of all generated answers.
        solved: Share of all generated answers that are solved.
        generated: Number of generated groups.
        tokens_per_second: Generated tokens per second.
        seconds: Duration of generation and learning.
        examples: A few of the answers, as text.
        environments: Results of all generated answers, by environment; empty unless the recipe has a mixture.
    """

    learned: LearnedStep
    reward: float
    solved: float
    generated: int
    tokens_per_second: float
    seconds: float
    examples: tuple[AnswerExample, ...]
    environments: Mapping[str, EnvironmentResult]


@dataclass(slots=True)
class _Batch:
    """Groups of one step with the statistics of their generation."""

    environments: ResultsByEnvironment
    groups: list[TrainingGroup] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    solved: int = 0
    generated: int = 0
    tokens: int = 0
    seconds: float = 0.0
    examples: list[AnswerExample] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer or a dialogue; `drawn` has the tokens of all turns."""

    drawn: Completion
    turns: tuple[Turn, ...]
    reward: Reward


class Trial:
    """One trial.

    Args:
        scratch: Folder for the versions of this trial; the trial removes older versions in it.
        settings: Settings of the trial.
        base: Model folder that the trial starts from.
        recipe: Recipe; None for the recipe in the model folder.

    Raises:
        BadVersionFolder: The model can't be used.
        BadSettings: A rollout of the recipe's maximum length is longer than a row.
    """

    def __init__(self, scratch: Path, settings: TrialSettings, *, base: Path, recipe: Recipe | None = None) -> None:
        self._base, self._scratch, self._settings = base, scratch, settings
        self.recipe = read_recipe(base) if recipe is None else recipe
        device = torch.device(settings.device)
        model, facts = open_model(base, device=device)
        longest = self.recipe.row_tokens(facts.context)
        if longest > settings.learning.row_tokens:
            raise BadSettings(
                f"prompt and answer may have {longest} tokens, and rows have {settings.learning.row_tokens}",
                hint="raise learning.row_tokens, or lower max_prompt_tokens in the recipe",
            )
        reference = open_model(base, device=device)[0] if settings.learning.algorithm.kl else None
        self.model = model
        """The model under training."""
        self.learner = Learner(
            model, settings.learning, temperature=self.recipe.sampling.temperature, reference=reference
        )
        choice = self.recipe.environment
        environment = load_environment(choice.name, version=choice.version, options=choice.options)
        self._tokenizer = FolderTokenizer(base)
        self._eligible: EligiblePrompts = eligible_prompts(base, self.recipe)
        self._planner = SlotPlanner(
            recipe=self.recipe, eligible=self._eligible, environment=environment, tokenizer=self._tokenizer
        )
        self._evaluator = Evaluator(
            environment=environment,
            recipe=self.recipe,
            tokenizer=self._tokenizer,
            indices=held_out_prompts(environment, self.recipe, count=settings.evaluation_prompts),
            samples=settings.evaluation_samples,
        )
        self._engine = open_engine(EngineName.TORCH, dtype=Dtype.FLOAT32, device=settings.device)
        self._waiting: deque[_Batch] = deque()
        self.steps = 0

    def step(self) -> TrialStep:
        """Generates batches until `staleness + 1` of them wait, and learns from the oldest one.

        Groups whose rewards are all equal are replaced, in at most 8 rounds of generation.

        Raises:
            NoSignal: No group has signal.
        """
        began = time.perf_counter()
        while len(self._waiting) <= self._settings.staleness:
            self._waiting.append(self._generate())
        batch = self._waiting.popleft()
        if not batch.groups:
            raise NoSignal(
                f"none of {batch.generated} groups has answers with different rewards",
                hint="use easier or harder prompts, larger groups, or a model that solves some of them",
            )
        learned = self.learner.learn(batch.groups, step=self.steps)
        self.steps += 1
        return TrialStep(
            learned=learned,
            reward=sum(batch.rewards) / len(batch.rewards),
            solved=batch.solved / len(batch.rewards),
            generated=batch.generated,
            tokens_per_second=batch.tokens / batch.seconds,
            seconds=time.perf_counter() - began,
            examples=tuple(batch.examples),
            environments=batch.environments.results(),
        )

    def evaluate(self) -> Evaluation:
        """Evaluates the present policy on held-out prompts."""
        self._load()
        return self._evaluator.evaluate(self._engine)

    def write(self, folder: Path) -> Path:
        """Writes the present policy as a version with the recipe; returns its folder.

        Raises:
            NotWritten: The disk is full or refuses the write.
        """
        write_version(
            folder,
            self.model,
            start=self._base,
            dtype=Dtype.FLOAT32,
            recipe=self.recipe,
            eligible=self._eligible,
        )
        return folder

    def close(self) -> None:
        """Frees the engine."""
        self._engine.close()

    def _generate(self) -> _Batch:
        self._load()
        batch, settings, began = _Batch(results_of(self.recipe)), self._settings, time.perf_counter()
        for attempt in range(_MOST_ROUNDS):
            if len(batch.groups) >= settings.groups_per_step:
                break
            said = f"{settings.seed} {self.steps} {len(self._waiting)} {attempt}"
            self._draw(hashlib.sha256(said.encode()).digest(), batch)
        del batch.groups[settings.groups_per_step :]
        batch.seconds = time.perf_counter() - began
        return batch

    def _draw(self, seed: bytes, batch: _Batch) -> None:
        """Generates the groups of a seed, and adds those with signal to the batch."""
        plan = self._planner.plan(seed, groups=self._settings.groups_per_step)
        answers = self._answers(plan)
        for group in plan.groups:
            samples: list[TrainingSample] = []
            undecided = False
            for answer in map(answers.__getitem__, group.samples):
                reward = answer.reward
                batch.rewards.append(reward.total)
                batch.solved += reward.solved
                batch.environments.add(group.prompt.index, reward=reward.total, solved=reward.solved)
                batch.tokens += len(answer.drawn.tokens)
                undecided = undecided or bool(reward.undecided)
                if not samples and len(batch.examples) < _EXAMPLES:
                    batch.examples.append(
                        AnswerExample(
                            prompt=group.prompt.text[:_EXAMPLE_CHARACTERS],
                            answer=transcript(answer.drawn.tokens, answer.turns, self._tokenizer)[:_EXAMPLE_CHARACTERS],
                            correct=reward.solved,
                            finished=answer.drawn.finish is FinishReason.EOS,
                            reward=reward.total,
                            turns=len(answer.turns),
                        )
                    )
                samples.append(
                    TrainingSample(
                        output_tokens=np.array(answer.drawn.tokens, dtype=np.int32),
                        logprobs=answer.drawn.logprobs,
                        reward=reward.total,
                        turns=answer.turns,
                    )
                )
            batch.generated += 1
            made = TrainingGroup(
                work=ZERO_DIGEST,
                group=group.group,
                prompt_index=group.prompt.index,
                prompt_tokens=np.array(group.tokens, dtype=np.int32),
                version=self.steps,
                samples=tuple(samples),
            )
            if made.has_signal and not undecided:  # a run, too, excludes groups with undecided rewards
                batch.groups.append(made)

    def _answers(self, plan: SlotPlan) -> dict[int, _Answer]:
        """Returns the answers, or dialogues, of a plan, by the sample's number."""
        parameters = self.recipe.sampling.parameters
        if self.recipe.dialogue is not None:
            samples = [
                (PlannedPrompt(self._planner, plan.seed, group), sample)
                for sample, group in plan.group_of_sample().items()
            ]
            return {
                one.sample: _Answer(one.drawn, one.turns, one.reward)
                for one in play_planned(self._engine, samples, parameters)
            }
        groups = plan.group_of_sample()
        return {
            one.sample: _Answer(one, (), self._planner.reward(groups[one.sample].prompt, one.tokens, one.finish))
            for one in self._engine.generate(plan.requests(), parameters, with_proofs=False)
        }

    def _load(self) -> None:
        """Writes the present weights as a version, and loads the version into the engine.

        A version that exists already is not written again.
        """
        folder = self._scratch / f"version-{self.steps}"
        if not folder.exists():
            write_version(folder, self.model, start=self._base, dtype=Dtype.FLOAT32, recipe=None)
            _remove_before(self._scratch, self.steps)
        version = version_digest(folder_files(folder))
        if self._engine.version != version:
            self._engine.load(folder, version=version)


def _remove_before(scratch: Path, steps: int) -> None:
    for old in scratch.glob("version-*"):
        if int(old.name.removeprefix("version-")) < steps:
            shutil.rmtree(old)
