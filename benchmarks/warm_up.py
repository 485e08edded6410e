"""Retrains the devnet's base for several seeds and evaluates each; `python -m benchmarks.warm_up`.

The shipped weights are listed beside them. Each takes about three minutes of one CPU; `MUSTER_SEEDS` selects seeds
other
than 1, 2 and 3, `MUSTER_STEPS` fewer steps than the preset's, and `MUSTER_PRESET=devnet-length` the base whose prompts
have target lengths (one minute each). RL needs a base that answers about a third of the prompts right when it samples,
and nearly all of them once in eight samples; with target lengths, it must occasionally meet the target.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order
from cli.trainer.work import EvaluationChoices, WarmUpChoices, run_evaluation, settings_of
from trainer.evaluator import Evaluation
from trainer.presets import DEVNET, devnet_base
from trainer.sft.settings import WarmUpSettings
from trainer.sft.warm_up import WarmUpStep, warm_up

SEEDS = [int(seed) for seed in os.environ.get("MUSTER_SEEDS", "1,2,3").split(",")]
STEPS = os.environ.get("MUSTER_STEPS")
PRESET = os.environ.get("MUSTER_PRESET", DEVNET)
ASKED = EvaluationChoices(prompts=512, samples=8, held_out=None, engine="torch", dtype="float32", device="cpu")
WANTED = "about a third or more greedily; pass@8 ≥ 80 %"


def main() -> None:
    """Makes and prints."""
    torch.set_num_threads(1)
    table = Table(title=f"preset {PRESET}; {ASKED.prompts} held-out prompts; wanted: {WANTED}")
    columns = ("weights", "CPU s", "last loss", "greedy", "pass@1", "pass@8", "ended by itself", "from wanted length")
    for column in columns:
        table.add_column(column, justify="left" if column == "weights" else "right")
    table.add_row("shipped", "-", "-", *_figures(run_evaluation(devnet_base(PRESET), ASKED)))
    with tempfile.TemporaryDirectory() as home:
        for seed in SEEDS:
            folder, told, since = Path(home) / str(seed), list[WarmUpStep](), time.process_time()
            warm_up(_settings(folder, seed), folder, device=torch.device("cpu"), progress=told.append)
            cost = time.process_time() - since
            row = (f"{cost:.0f}", f"{told[-1].loss:.3f}", *_figures(run_evaluation(folder, ASKED)))
            table.add_row(f"seed {seed}", *row)
    Console(width=130).print(table)


def _figures(found: Evaluation) -> tuple[str, ...]:
    shares = (found.greedy, found.pass_at[1], found.pass_at[8], found.greedy_finished)
    return (*(f"{share:.1%}" for share in shares), "-" if found.distance is None else f"{found.distance:.2f}")


def _settings(to: Path, seed: int) -> WarmUpSettings:
    return settings_of(
        WarmUpChoices(
            to=to,
            preset=PRESET,
            config=None,
            start=None,
            file=None,
            environment=None,
            changes=("evaluation.prompts=0",),
            steps=None if STEPS is None else int(STEPS),
            seed=seed,
            device=None,
            every=25,
        )
    )


if __name__ == "__main__":
    end_in_order()
    main()
