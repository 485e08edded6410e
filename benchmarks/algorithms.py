"""Compares the named algorithms on the devnet's base over equal numbers of steps; `python -m benchmarks.algorithms`.

One process, one seed and the devnet's settings except for the loss: differences of a few points between algorithms are
chance. `MUSTER_STEPS`, `MUSTER_STALENESS`, `MUSTER_SEED`, `MUSTER_ALGORITHMS` (names) and `MUSTER_OLD_POLICY` select
what is run.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order
from trainer.learning.algorithms import NAMED
from trainer.learning.settings import LearningSettings
from trainer.presets import devnet_base
from trainer.trial import Trial, TrialSettings

STEPS = int(os.environ.get("MUSTER_STEPS", "60"))
STALENESS = int(os.environ.get("MUSTER_STALENESS", "0"))
SEED = int(os.environ.get("MUSTER_SEED", "1"))
OLD_POLICY = os.environ.get("MUSTER_OLD_POLICY", "sampler")
CHOSEN = os.environ.get("MUSTER_ALGORITHMS", ",".join(NAMED)).split(",")
OF_DEVNET: dict[str, Any] = {"row_tokens": 256, "optimiser": {"learning_rate": 2e-4, "warm_up_steps": 5, "clip": 0.1}}


def main() -> None:
    """Measures and prints the table."""
    torch.set_num_threads(1)
    table = Table(
        title=f"{STEPS} steps of 16 x 16 answers, answers {STALENESS} steps old, old policy: {OLD_POLICY}, seed {SEED}"
    )
    for column in ("algorithm", "greedy", "pass@1", "entropy", "stopped", "largest ratio", "gradient", "CPU s"):
        table.add_column(column, justify="left" if column == "algorithm" else "right")
    for number, name in enumerate(CHOSEN):
        with tempfile.TemporaryDirectory() as scratch:
            settings = LearningSettings.model_validate(OF_DEVNET | {"algorithm": name, "old_policy": OLD_POLICY})
            trial = TrialSettings(learning=settings, seed=SEED, staleness=STALENESS)
            loop = Trial(Path(scratch), trial, base=devnet_base())
            if not number:
                before = loop.evaluate()
                table.add_row("before", f"{before.greedy:.1%}", f"{before.pass_at[1]:.1%}", *[""] * 5)
            began = time.process_time()
            steps = [loop.step().learned for _ in range(STEPS)]
            took, after = time.process_time() - began, loop.evaluate()
            late = steps[-10:]
            table.add_row(
                name,
                f"{after.greedy:.1%}",
                f"{after.pass_at[1]:.1%}",
                f"{sum(step.entropy for step in late) / len(late):.3f}",
                f"{sum(step.clip_fraction for step in late) / len(late):.2%}",
                f"{max(step.ratio_max for step in steps):.2f}",
                f"{sum(step.gradient_norm for step in late) / len(late):.2f}",
                f"{took:.0f}",
            )
    Console(width=110).print(table)


if __name__ == "__main__":
    end_in_order()
    main()
