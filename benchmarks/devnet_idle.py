"""Measures idle engines of real devnets by asynchrony; `python -m benchmarks.devnet_idle`.

A devnet for each length distribution and asynchrony, one after another, each without a cheater. "short" is the preset
`answers`, with answers of up to 12 tokens. "long-tailed" is the model of the preset `length` with random weights: each
token ends an answer with about the same probability, 1 in 64, so lengths are geometric, with a median of 44 tokens and
a limit of 256. Its rewards are the distance from wanted lengths, so that groups differ.

The shares are of each honest node's time with the engine loaded, from its task's own sums, averaged over the nodes:
no answer in progress, and less than half of the batch. The machine should be otherwise idle, because wall time counts.
The model of "long-tailed" learns nothing, so such a devnet ends with a criterion that is not met.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.devnet_run import run
from benchmarks.ending import end_in_order
from trainer.presets import devnet_base

_MODELS: Any = AutoModelForCausalLM  # transformers annotates its methods only in part
LENGTHS = ("short", "long-tailed")
CONTEXT = 320
MOST = 256
GROUP = 8
_SHARES = re.compile(r"^worker-\d+ +(\d+)% +(\d+)%$", re.MULTILINE)


def long_tailed(folder: Path) -> Path:
    """Writes the model with random weights and its recipe."""
    base = devnet_base("devnet-length")
    shutil.copytree(base, folder)
    config = AutoConfig.from_pretrained(base)
    config.max_position_embeddings = CONTEXT
    torch.manual_seed(1)
    _MODELS.from_config(config).save_pretrained(folder)
    path = folder / "recipe.json"
    recipe = json.loads(path.read_text())
    recipe["sampling"]["max_new_tokens"] = MOST
    recipe["group_size"] = GROUP
    recipe["length"] |= {"targets": [16, 64, 128], "alpha": 0.002}
    path.write_text(json.dumps(recipe))
    return folder


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs all devnets and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asynchrony", default="on-policy,one-step,two-step")
    parser.add_argument("--lengths", default=",".join(LENGTHS))
    parser.add_argument("--steps", default="12")
    parser.add_argument("--workers", default="2")
    options = parser.parse_args(arguments)
    table = Table(title=f"{options.steps} steps, {options.workers} workers")
    for column in ("lengths", "asynchrony", "no answer in progress", "less than half full", "wall time"):
        table.add_column(column)
    with tempfile.TemporaryDirectory() as home_name:
        home = Path(home_name)
        home.chmod(0o755)  # tasks may run as another user
        model = long_tailed(home / "long")
        for lengths in options.lengths.split(","):
            own = ["--model", str(model), "--groups", "8"] if lengths == "long-tailed" else []
            for asynchrony in options.asynchrony.split(","):
                chosen = ["--steps", options.steps, "--workers", options.workers, "--cheat", "none"]
                folder = home / f"{lengths}-{asynchrony}"
                code, seconds, report, _ = run(
                    folder, seed=1, options=[*chosen, "--asynchrony", asynchrony, "--runtime", "process", *own]
                )
                found = [(int(idle), int(under)) for idle, under in _SHARES.findall(report)]
                if not found:
                    sys.exit(f"{lengths}, {asynchrony}: exit code {code}, and the report has no shares:\n{report}")
                idle, under = (f"{mean(each):.0f} %" for each in zip(*found, strict=True))
                print(lengths, asynchrony, idle, under, f"{seconds:.0f} s", file=sys.stderr, flush=True)
                table.add_row(lengths, asynchrony, idle, under, f"{seconds:.0f} s")
    Console(width=120).print(table)


if __name__ == "__main__":
    end_in_order()
    main()
