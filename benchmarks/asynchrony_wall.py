"""Measures how much sooner a run ends when generation runs ahead; `python -m benchmarks.asynchrony_wall`.

Whole runs of the devnet, on-policy (no generation ahead) and two-step, with the same processes, settings and seed, in
alternating order (A B, then B A), so that a machine that slows down affects both sides equally. For each run: seconds
from the moment at which the trainer waits for its first rollouts until the last step is learned, the same from the end
of the first step (workers start during that step), and the idle time of trainer and workers. Then the ratio of the
medians. The machine should be otherwise idle. `--steps 40 --rounds 2 --seed 1` are the defaults; a round is two runs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.devnet_run import run
from benchmarks.ending import end_in_order

SIDES = ("on-policy", "two-step")
_GENERATION = re.compile(r"^generation .* (\d+)% +(\d+%)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The times of one run.

    Args:
        seconds: From the first wait for rollouts to the end of the last step.
        steady: From the end of the first step to the end of the last one, in seconds.
        steps: The number of learned steps.
        trainer_idle: The share of time, without the first step, in which the trainer waited for rollouts.
        workers_idle: The share of time in which a node generated nothing, from the run's report.
        stale: The mean age of the learned groups, in steps.
    """

    seconds: float
    steady: float
    steps: int
    trainer_idle: float
    workers_idle: float | None
    stale: float


def measured(progress: Path, report: str) -> Measured:
    """Reads the times from a run's own records.

    Raises:
        SystemExit: The run learned fewer than two steps.
    """
    lines = [json.loads(line) for line in progress.read_text().splitlines()] if progress.exists() else []
    steps = [line for line in lines if line["kind"] == "step"]
    if len(steps) < 2:
        raise SystemExit(f"the run learned {len(steps)} steps:\n{report}")
    began = next(line["at_ms"] for line in lines if line["kind"] == "started")
    ages = [(int(age), count) for line in steps for age, count in line["staleness"].items()]
    generation = _GENERATION.search(report)
    return Measured(
        seconds=(steps[-1]["at_ms"] - began) / 1000,
        steady=(steps[-1]["at_ms"] - steps[0]["at_ms"]) / 1000,
        steps=len(steps),
        trainer_idle=float(steps[-1]["idle_share"]),
        workers_idle=int(generation[1]) / 100 if generation else None,
        stale=sum(age * count for age, count in ages) / max(1, sum(count for _, count in ages)),
    )


def one(asynchrony: str, *, seed: int, steps: int, options: Sequence[str]) -> Measured:
    """Runs the devnet once."""
    chosen = ("--asynchrony", asynchrony, "--steps", str(steps), *options)
    with tempfile.TemporaryDirectory(prefix="muster-wall-") as folder:
        home = Path(folder) / "net"
        _, _, report, _ = run(home, seed=seed, options=chosen)
        return measured(home / "trainer" / "progress.jsonl", report)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs both sides and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runtime", default="process")
    chosen = parser.parse_args(arguments)
    table = Table(title=f"{chosen.steps} steps of the devnet, seed {chosen.seed}, {chosen.runtime} runtime")
    for column in (
        "asynchrony",
        "round",
        "seconds",
        "without the first step",
        "a step",
        "trainer idle",
        "workers idle",
    ):
        table.add_column(column, justify="right")
    table.add_column("mean age of groups", justify="right")
    found: dict[str, list[Measured]] = {side: [] for side in SIDES}
    for number in range(chosen.rounds):
        for side in SIDES if number % 2 == 0 else SIDES[::-1]:
            told = one(side, seed=chosen.seed, steps=chosen.steps, options=("--runtime", chosen.runtime))
            found[side].append(told)
            row = (
                f"{told.seconds:.1f}",
                f"{told.steady:.1f}",
                f"{told.steady / (told.steps - 1):.2f} s",
                f"{told.trainer_idle:.0%}",
                "-" if told.workers_idle is None else f"{told.workers_idle:.0%}",
                f"{told.stale:.2f}",
            )
            print(side, number + 1, *row, file=sys.stderr, flush=True)
            table.add_row(side, str(number + 1), *row)
    Console(width=120).print(table)
    slow, fast = (median(told.seconds for told in found[side]) for side in SIDES)
    print(f"two-step takes {fast / slow:.2f} of the time of on-policy, {slow / fast:.2f} times as fast")


if __name__ == "__main__":
    end_in_order()
    main()
