"""Measures the shipped limits.

    python -m benchmarks.shipped_limits --out rollouts/calibration/calibrations.json

Uses the devnet's base, and the same after some steps of learning: its answers become more certain and its numbers
larger. Both engines generate in bfloat16 in batches of several sizes, and torch checks in bfloat16 and in float32. Each
limit is twice the largest value that any honest file showed at any training step. Float32 on both sides has built-in
limits (decision 22); it is measured for torch alone to show that it stays within them. vLLM needs `.tools/vllm`
(docs/engines.md).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.ending import end_in_order
from cli.devnet.options import LEARNING
from rollouts.precision import Dtype, EngineName
from trainer.learning.settings import LearningSettings
from trainer.presets import devnet_base
from trainer.trial import Trial, TrialSettings

ROOT = Path(__file__).parents[1]
INTERPRETERS = {EngineName.TORCH: Path(sys.executable), EngineName.VLLM: ROOT / ".tools" / "vllm" / "bin" / "python"}
DTYPES = {EngineName.TORCH: tuple(Dtype), EngineName.VLLM: (Dtype.BFLOAT16,)}
"""vLLM's float32 files use the built-in limits, and the validator benchmark has hundreds of them."""


def main() -> None:
    """Measures every engine at every chosen training step, and writes one calibration."""
    parser = argparse.ArgumentParser(description="Measures the limits that are shipped.")
    parser.add_argument("--out", type=Path, required=True, help="widened, if it is there")
    parser.add_argument("--engines", default="torch,vllm")
    parser.add_argument("--dtypes", default=",".join(Dtype), help="of those that the engine is measured in")
    parser.add_argument("--steps", default="0,20,40", help="of learning; the moments that are measured")
    parser.add_argument("--samples", type=int, default=4096, help="for each engine, type, batch size and moment")
    parser.add_argument("--batches", default="64,16,1")
    told = parser.parse_args()
    torch.set_num_threads(1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as home:
        for moment in moments(Path(home), sorted(int(step) for step in told.steps.split(","))):
            for engine in map(EngineName, told.engines.split(",")):
                print(f"{moment.name}, {engine.value}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
                _calibrate(moment, engine, told)


def moments(home: Path, steps: list[int]) -> Iterator[Path]:
    """Versions of one run, each as soon as it is learned; 0 is the base."""
    settings = TrialSettings(learning=LearningSettings.model_validate(LEARNING))
    loop = Trial(home / "loop", settings, base=devnet_base())
    for step in steps:
        while loop.steps < step:
            loop.step()
        yield devnet_base() if step == 0 else loop.write(home / f"step-{step}")


def _calibrate(model: Path, engine: EngineName, told: argparse.Namespace) -> None:
    dtypes = ",".join(one.value for one in DTYPES[engine] if one in told.dtypes.split(","))
    command = [str(INTERPRETERS[engine]), "-m", "cli", "validator", "calibrate", "--model", str(model), "--widen"]
    command += ["--engines", engine.value, "--dtypes", dtypes, "--batches", told.batches]
    command += ["--samples", str(told.samples), "--out", str(told.out.resolve())]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


if __name__ == "__main__":
    end_in_order()
    main()
