"""Runs the devnet's task in one process: draws answers, scores, filters and learns with a chosen staleness.

There is no network, chain or other process: the loop measures what a run learns, without transferring files.
`benchmarks.algorithms` and other learning benchmarks use it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from pathlib import Path

import numpy as np
import torch

from protocol.checkpoints import folder_files, version_digest
from protocol.identifiers import ZERO_DIGEST
from rollouts.engines.opening import open_engine
from rollouts.environments import load_environment
from rollouts.models.tokenizer import FolderTokenizer
from rollouts.plan import SlotPlanner
from rollouts.precision import Dtype, EngineName
from rollouts.recipe import eligible_prompts, read_recipe
from trainer.evaluator import Evaluation, Evaluator, held_out_prompts
from trainer.learning.groups import TrainingGroup, TrainingSample
from trainer.learning.learner import Learner
from trainer.learning.metrics import LearnedStep
from trainer.learning.settings import LearningSettings
from trainer.models import open_model, write_version
from trainer.presets import devnet_base


class LearningLoop:
    """One run.

    Args:
        scratch: A folder for the run's versions.
        settings: The learning settings.
        seed: The seed of prompts and answers.
        groups: The number of prompts per step.
        staleness: The steps between the generating policy and the learning one.
        base: The folder of the starting version.
    """

    def __init__(
        self,
        scratch: Path,
        settings: LearningSettings,
        *,
        seed: int = 1,
        groups: int = 16,
        staleness: int = 0,
        base: Path | None = None,
    ) -> None:
        self._base = base or devnet_base()
        self._scratch, self._seed, self._groups, self._staleness = scratch, seed, groups, staleness
        device = torch.device("cpu")
        self._model, _ = open_model(self._base, device=device)
        reference = open_model(self._base, device=device)[0] if settings.algorithm.kl else None
        self.recipe = read_recipe(self._base)
        self.learner = Learner(self._model, settings, temperature=self.recipe.sampling.temperature, reference=reference)
        choice = self.recipe.environment
        environment = load_environment(choice.name, version=choice.version, options=choice.options)
        tokenizer = FolderTokenizer(self._base)
        self._planner = SlotPlanner(
            recipe=self.recipe,
            eligible=eligible_prompts(self._base, self.recipe),
            environment=environment,
            tokenizer=tokenizer,
        )
        self._evaluator = Evaluator(
            environment=environment,
            recipe=self.recipe,
            tokenizer=tokenizer,
            indices=held_out_prompts(environment, self.recipe, count=256),
            samples=4,
        )
        self._engine = open_engine(EngineName.TORCH, dtype=Dtype.FLOAT32)
        self._waiting: deque[list[TrainingGroup]] = deque()
        self.steps = 0

    def step(self) -> LearnedStep:
        """Generates, delays the answers by the staleness and learns; groups without signal are replaced."""
        while len(self._waiting) <= self._staleness:
            self._waiting.append(self._ask())
        done = self.learner.learn(self._waiting.popleft(), step=self.steps)
        self.steps += 1
        return done

    def evaluate(self) -> Evaluation:
        """Evaluates the current policy on held-out prompts."""
        self._load()
        return self._evaluator.evaluate(self._engine)

    def keep(self, folder: Path) -> Path:
        """Writes the current policy as a version for generating rollouts; returns its folder."""
        write_version(
            folder,
            self._model,
            start=self._base,
            dtype=Dtype.FLOAT32,
            recipe=self.recipe,
            eligible=eligible_prompts(self._base, self.recipe),
        )
        return folder

    def _ask(self) -> list[TrainingGroup]:
        self._load()
        found: list[TrainingGroup] = []
        attempt = 0
        while len(found) < self._groups and attempt < 8:
            said = f"{self._seed} {self.steps} {len(self._waiting)} {attempt}"
            found += [group for group in self._draw(hashlib.sha256(said.encode()).digest()) if group.has_signal]
            attempt += 1
        return found[: self._groups]

    def _draw(self, seed: bytes) -> list[TrainingGroup]:
        plan = self._planner.plan(seed, groups=self._groups)
        answers = {
            answer.sample: answer
            for answer in self._engine.generate(plan.requests(), self.recipe.sampling.parameters, with_proofs=False)
        }
        return [
            TrainingGroup(
                work=ZERO_DIGEST,
                group=group.group,
                prompt_index=group.prompt.index,
                prompt_tokens=np.array(group.tokens, dtype=np.int32),
                version=self.steps,
                samples=tuple(
                    TrainingSample(
                        output_tokens=np.array(answer.tokens, dtype=np.int32),
                        logprobs=answer.logprobs,
                        reward=self._planner.reward(group.prompt, answer.tokens, answer.finish).total,
                    )
                    for answer in map(answers.__getitem__, group.samples)
                ),
            )
            for group in plan.groups
        ]

    def _load(self) -> None:
        folder = self._scratch / f"version-{self.steps}"
        if not folder.exists():
            write_version(folder, self._model, start=self._base, dtype=Dtype.FLOAT32, recipe=None)
        version = version_digest(folder_files(folder))
        if self._engine.version != version:
            self._engine.load(folder, version=version)
