"""Trains a policy towards target lengths; `python -m benchmarks.length_reward`.

The devnet's preset `length` in one process without a network (`trainer.trial`): its base, its learner, and
answers that are two steps old. For each seed a row every ten steps: right answers to held-out prompts, how far drawn
answers are from the wanted length, and their mean length for each wanted one. About 0.8 s of one core for each step.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order
from cli.devnet.options import LEARNING, PRESETS, PresetName
from trainer.evaluator import Evaluation
from trainer.learning.settings import LearningSettings
from trainer.presets import DEVNET_LENGTH, devnet_base
from trainer.trial import Trial, TrialSettings

TERMS = PRESETS[PresetName.LENGTH]
EVERY = 10
"""Steps between two evaluations."""
_COLUMNS = ("seed", "step", "CPU s", "greedy", "pass@1", "reward", "from wanted length", "mean length by wanted")


def row(found: Evaluation) -> tuple[str, ...]:
    """Returns the row of a version."""
    lengths = ", ".join(f"{wanted}: {mean:.2f}" for wanted, mean in found.lengths.items())
    figures = (f"{found.greedy:.1%}", f"{found.pass_at[1]:.1%}", f"{found.reward:.3f}", f"{found.distance:.2f}")
    return (*figures, lengths)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs all seeds, prints each row as it is measured, and then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--steps", type=int, default=TERMS.steps)
    parser.add_argument("--staleness", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    settings = LearningSettings.model_validate(LEARNING)
    table = Table(*_COLUMNS, title=f"preset length, answers {options.staleness} steps old, one process")
    console = Console(width=120)
    for seed in [int(one) for one in options.seeds.split(",")]:
        with tempfile.TemporaryDirectory() as home:
            trial = TrialSettings(learning=settings, seed=seed, staleness=options.staleness)
            loop = Trial(Path(home), trial, base=devnet_base(DEVNET_LENGTH))
            since = time.process_time()
            for step in range(options.steps + 1):
                if step:
                    loop.step()
                if step % EVERY == 0 or step == options.steps:
                    cells = (str(seed), str(step), f"{time.process_time() - since:.0f}", *row(loop.evaluate()))
                    table.add_row(*cells)
                    console.print("  ".join(cells), style="dim")
    console.print(table)


if __name__ == "__main__":
    end_in_order()
    main()
