"""Counts the steps that a policy needs with old rollouts; `python -m benchmarks.asynchrony`.

The devnet's base, task, learner, generator and batch, in one process without a network (`trainer.trial`).
For each level of asynchrony (steps between the policy that answers and the one that learns) and each seed: the steps
until a fixed share of drawn answers to held-out prompts is right, and what the run reaches in the end, as a table like
INTELLECT-2's figure 7. `--levels 0,2 --seeds 1 --steps 60` does less; some 0.7 s of one core for each step.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order
from cli.devnet.options import LEARNING
from trainer.learning.settings import LearningSettings
from trainer.presets import devnet_base
from trainer.trial import Trial, TrialSettings

EVERY = 5
"""Steps between two evaluations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The result of one run.

    Args:
        reached: The first evaluated step at which enough drawn answers were right; None if the goal was never reached.
        pass_at_1: The share of right drawn answers at the end.
        greedy: The share of right greedy answers at the end.
        lowest_after: The lowest share of right drawn answers after the goal was reached.
    """

    reached: int | None
    pass_at_1: float
    greedy: float
    lowest_after: float | None


def run(*, level: int, seed: int, steps: int, goal: float) -> Curve:
    """Runs one level and seed; reports progress on standard error."""
    settings = LearningSettings.model_validate(LEARNING)
    with tempfile.TemporaryDirectory() as home:
        loop = Trial(Path(home), TrialSettings(learning=settings, seed=seed, staleness=level), base=devnet_base())
        drawn: list[tuple[int, float]] = []
        greedy, since = 0.0, time.perf_counter()
        for step in range(1, steps + 1):
            done = loop.step().learned
            if step % EVERY and step < steps:
                continue
            found = loop.evaluate()
            greedy = found.greedy
            drawn.append((step, found.pass_at[1]))
            took = (time.perf_counter() - since) / step
            said = f"level {level}, seed {seed}, step {step}: reward {done.reward_mean:.2f}"
            said += f", pass@1 {found.pass_at[1]:.1%}, greedy {greedy:.1%}, {took:.2f} s a step"
            print(said, file=sys.stderr, flush=True)
    reached = next((step for step, share in drawn if share >= goal), None)
    after = [share for step, share in drawn if reached is not None and step > reached]
    return Curve(reached=reached, pass_at_1=drawn[-1][1], greedy=greedy, lowest_after=min(after, default=None))


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs all levels and seeds and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--levels", default="0,1,2,4,8")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int, default=90)
    parser.add_argument("--goal", type=float, default=0.8, help="share of drawn answers that have to be right")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    table = Table(title=f"steps until {options.goal:.0%} of drawn answers are right (held out), of {options.steps}")
    for column in ("asynchrony", "steps, by seed", "mean", "pass@1 at the end", "greedy at the end", "lowest after it"):
        table.add_column(column, justify="right")
    for level in map(int, options.levels.split(",")):
        curves = [run(level=level, seed=seed, steps=options.steps, goal=options.goal) for seed in seeds]
        known = [curve.reached for curve in curves if curve.reached is not None]
        lowest = [curve.lowest_after for curve in curves]
        table.add_row(
            str(level),
            ", ".join(str(curve.reached or "-") for curve in curves),
            f"{mean(known):.0f}" if len(known) == len(curves) else "-",
            ", ".join(f"{curve.pass_at_1:.1%}" for curve in curves),
            ", ".join(f"{curve.greedy:.1%}" for curve in curves),
            ", ".join("-" if share is None else f"{share:.1%}" for share in lowest),
        )
    Console(width=120).print(table)


if __name__ == "__main__":
    end_in_order()
    main()
