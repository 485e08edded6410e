"""Measures the rows of the sizing table in docs/validators.md; `python -m benchmarks.sizing [--quick]`.

Each row is `muster validator doctor --model DIR` in a process of its own, with a version that this script makes: random
weights of 2 million parameters, whose answers run to their limit, and SmolLM2-135M-Instruct with the recipe that the
devnet proposes for it (downloaded once, 93 MB). Wall time is measured, so the machine must be idle.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order
from benchmarks.validator_rates import version_of
from cli.devnet.model import SMOLLM2_ENVIRONMENT
from cli.devnet.smollm2 import smollm2_folder
from protocol.runtime.budgets import usable_cores
from rollouts.authoring.recipe_proposal import propose_recipe
from rollouts.recipe import write_recipe

ROOT = Path(__file__).parents[1]
EACH = ("files/min", "CPU s", "nodes")


@dataclass(frozen=True)
class Row:
    """A measured row: model, workers, and size and number of files."""

    model: str
    folder: Path
    workers: int
    groups: int
    files: int


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Files per minute of a validator, by model and number of workers.")
    parser.add_argument("--quick", action="store_true", help="one worker and one small file per model")
    parser.add_argument("--only", choices=["2 M", "SmolLM2-135M"], default=None)
    told = parser.parse_args()
    cores = usable_cores()
    table = Table(title=f"muster validator doctor --model, {cores} cores, one torch thread per worker")
    columns = (
        "model",
        "workers",
        "file",
        *(f"{share} of rows: {each}" for share in ("100 %", "10 %") for each in EACH),
    )
    for column in (*columns, "load"):
        table.add_column(column, justify="left" if column in {"model", "file"} else "right")
    with tempfile.TemporaryDirectory() as home:
        for row in _rows(Path(home), cores=cores, quick=told.quick, only=told.only):
            print(f"{row.model}, {row.workers} workers", file=sys.stderr)
            table.add_row(row.model, str(row.workers), *_measured(row))
    Console(width=150).print(table)
    print("nodes: like this machine with one thread; CPU s: of one file; load: average when the row began")


def _rows(home: Path, *, cores: int, quick: bool, only: str | None) -> list[Row]:
    rows = []
    counts = (1,) if quick or cores < 2 else (1, cores)
    if only in {None, "2 M"}:
        tiny = version_of(home / "tiny", "tiny, 2 M", group=16, tokens=256)
        rows += [Row("2 M", tiny, count, groups=1 if quick else 4, files=1 if quick else 2) for count in counts]
    if only in {None, "SmolLM2-135M"}:
        folder = home / "smollm2"
        shutil.copytree(smollm2_folder(lambda line: print(line, file=sys.stderr)), folder)
        write_recipe(folder, propose_recipe(folder, SMOLLM2_ENVIRONMENT).recipe)
        rows += [
            Row("SmolLM2-135M", folder, count, groups=1 if quick else 4, files=1 if quick else 2) for count in counts
        ]
    return rows


def _measured(row: Row) -> tuple[str, ...]:
    command = [sys.executable, "-m", "cli", "validator", "doctor", "--model", str(row.folder), "--json"]
    command += ["--workers", str(row.workers), "--groups", str(row.groups), "--files", str(row.files)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    rates = [
        (f"{one['files_per_minute']:.1f}", f"{one['cpu_s_per_file']:.2f}", f"{one['nodes']:.1f}")
        for one in found["examined"]
    ]
    file = f"{found['rows']} rows, {found['tokens']:,.0f} tokens, {found['arithmetic']}"
    return (file, *rates[0], *rates[1], f"{found['load_average']:.1f}")


if __name__ == "__main__":
    end_in_order()
    main()
