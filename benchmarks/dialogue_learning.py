"""Trains on dialogues with and without the loss mask; `python -m benchmarks.dialogue_learning`.

The devnet's preset `dialogue` in one process without a network (`trainer.trial`): its base, its learner, and answers of
the present policy. The control computes the loss on given tokens too, as if the model had drawn the tools' replies. For
each seed two rows: the mean reward of all dialogues of every fifth step, and right answers to held-out prompts before
and after. About 3 s of one core for each step.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order
from cli.devnet.options import LEARNING, PRESETS, PresetName
from rollouts.precision import Dtype
from trainer.learning.forward import answer_logits
from trainer.learning.groups import TrainingGroup, TrainingSample
from trainer.learning.layout import Layout, lay_out
from trainer.learning.learner import Learner
from trainer.learning.losses import logprobs_and_entropies
from trainer.learning.metrics import LearnedStep
from trainer.learning.settings import LearningSettings
from trainer.presets import DEVNET_DIALOGUE, devnet_base
from trainer.trial import Trial, TrialSettings

EVERY = 5
"""Steps between two printed rewards."""


class LossOnAllTokens(Learner):
    """The control: a learner that takes the given tokens of dialogues for drawn ones."""

    def learn(self, groups: Sequence[TrainingGroup], *, step: int, parts: Sequence[int] = ()) -> LearnedStep:
        """Performs a step with loss on all tokens after the prompt."""
        return super().learn([self._without_turns(group) for group in groups], step=step, parts=parts)

    def _without_turns(self, group: TrainingGroup) -> TrainingGroup:
        """Returns single answers with all tokens, and log-probabilities of the policy that generated them."""
        tokens = [np.append(one.inputs, one.output_tokens[-1]) for one in group.samples]
        samples = [
            TrainingSample(output_tokens=every, logprobs=np.zeros(len(every), np.float32), reward=one.reward)
            for every, one in zip(tokens, group.samples, strict=True)
        ]
        single = replace(group, samples=tuple(samples))
        (rows,) = lay_out([single], layout=Layout.PADDED, row_tokens=1 << 16, rows_at_once=1, width=1)
        token_n = torch.from_numpy(np.concatenate(tokens).astype(np.int64))
        with torch.no_grad():
            logits_nv = answer_logits(self._model, rows, dtype=Dtype.FLOAT32)
            logprob_n, _ = logprobs_and_entropies(logits_nv, token_n, temperature=self._temperature)
        parts = np.split(logprob_n.numpy(), np.cumsum([len(every) for every in tokens])[:-1])
        return replace(
            group,
            samples=tuple(replace(one, logprobs=logprobs) for one, logprobs in zip(samples, parts, strict=True)),
        )


def run(seed: int, *, steps: int, masked: bool) -> tuple[list[float], float, float]:
    """Trains; returns the reward of each step, and the held-out greedy accuracy before and after."""
    settings = LearningSettings.model_validate(LEARNING)
    with tempfile.TemporaryDirectory() as home:
        loop = Trial(
            Path(home),
            TrialSettings(learning=settings, seed=seed, evaluation_samples=0),
            base=devnet_base(DEVNET_DIALOGUE),
        )
        if not masked:
            loop.learner = LossOnAllTokens(loop.model, settings, temperature=loop.recipe.sampling.temperature)
        before = loop.evaluate().greedy
        rewards = [loop.step().reward for _ in range(steps)]
        after = loop.evaluate().greedy
        loop.close()
    return rewards, before, after


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs all seeds with and without the mask; prints each row as it is measured, and then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int, default=PRESETS[PresetName.DIALOGUE].steps)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    shown = [*range(0, options.steps, EVERY), options.steps - 1]
    columns = ("loss on", "seed", *(f"step {step + 1}" for step in shown), "greedy", "CPU s")
    table = Table(*columns, title="mean reward of a step's dialogues; greedy accuracy on held-out prompts")
    console = Console(width=150)
    for seed in [int(one) for one in options.seeds.split(",")]:
        for masked in (True, False):
            since = time.process_time()
            rewards, before, after = run(seed, steps=options.steps, masked=masked)
            cells = (
                "drawn tokens" if masked else "all tokens",
                str(seed),
                *(f"{rewards[step]:.2f}" for step in shown),
                f"{before:.0%} → {after:.0%}",
                f"{time.process_time() - since:.0f}",
            )
            table.add_row(*cells)
            console.print("  ".join(cells), style="dim")
    console.print(table)


if __name__ == "__main__":
    end_in_order()
    main()
