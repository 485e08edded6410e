"""Records the resident memory of a trainer, step by step; `python -m benchmarks.trainer_memory`.

A real trainer process learns, publishes a version and saves its state at each step, with a real chain, Redis,
orchestrator and store. The model has the shape of SmolLM2-135M and random weights; batches are small, so that weights,
optimiser, versions and states dominate the memory. The figures of a row are the `memory` of that step in
`progress.jsonl`. `--steps 50` is the default.

Exits with 1 if the peak is above `--most-gb`, or if one of the last five steps held a tenth more memory than all of
steps 3 to 7.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import tempfile
from asyncio.subprocess import Process
from dataclasses import dataclass
from pathlib import Path

import structlog
from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order
from benchmarks.models import SHAPES
from benchmarks.pool_under_load import redis_server
from benchmarks.survival import pool_of
from ledger.devchain import ChainKind, start_chain
from rollouts.recipe import write_recipe
from tests.kit.chain_controls import ChainControls
from tests.kit.served_pool import ServedPool
from tests.kit.tiny_model import tiny_folder
from tests.kit.trained_pool import RECIPE, TrainedPool
from tests.kit.world import found

SHAPE = "deep, 134 M"
GROUPS = 2
SETTLED = 2
"""Steps until the optimiser's averages and every buffer are allocated."""
FEW = 5
LARGEST_GROWTH = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Memory of the process when it reported a step, in bytes."""

    step: int
    resident: int
    peak: int
    seconds: float


async def measure(*, steps: int, home: Path) -> list[Held]:
    """Trains and reads the memory of the process at each step."""
    shape = {"num_key_value_heads": SHAPES[SHAPE]["num_attention_heads"]} | SHAPES[SHAPE]
    tiny_folder(home / "base", kind="llama", initializer_range=0.02, **shape)
    write_recipe(home / "base", RECIPE)
    with redis_server() as redis_url:
        async with (
            start_chain(ChainKind.EMBEDDED, accounts=20) as chain,
            ChainControls(chain.url) as controls,
            pool_of(await found(chain), chain.url, controls, redis_url, home) as (pool, url),
        ):
            return await _watched(pool, url=url, steps=steps)


async def _watched(pool: TrainedPool, *, url: str, steps: int) -> list[Held]:
    log = pool.folder / "log"
    served = ServedPool(pool, url)
    process = await served.start(
        sys.executable, log=log, steps=steps, groups_per_step=GROUPS, keep_versions=2, patience_s=600
    )
    try:
        return await _readings(pool, process)
    finally:
        if process.returncode is None:
            process.kill()
        if await process.wait():
            print(log.read_text()[-2000:], file=sys.stderr)


async def _readings(pool: TrainedPool, process: Process) -> list[Held]:
    found: list[Held] = []
    while (running := process.returncode is None) or len(found) < len(pool.progress("step")):
        for line in pool.progress("step")[len(found) :]:
            memory, seconds = line["memory"], line["seconds"]["total"]
            held = Held(
                step=line["step"], resident=memory["resident_bytes"], peak=memory["peak_bytes"], seconds=seconds
            )
            found.append(held)
            print(f"step {held.step}: {_gb(held.resident)}, peak {_gb(held.peak)}", file=sys.stderr, flush=True)
        if running:
            await asyncio.sleep(0.1)
    return found


def _gb(count: int) -> str:
    return f"{count / 1e9:.2f} GB"


def main() -> None:
    """Runs and prints the table; exits with 1 if memory grows or exceeds the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--most-gb", type=float, default=4.0)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with tempfile.TemporaryDirectory(prefix="muster-memory-") as home:
        found = asyncio.run(measure(steps=options.steps, home=Path(home)))
    table = Table(title=f"{SHAPE}: resident memory of the trainer")
    for column in ("step", "resident", "peak so far", "seconds"):
        table.add_column(column, justify="right")
    for held in found:
        table.add_row(str(held.step), _gb(held.resident), _gb(held.peak), f"{held.seconds:.1f}")
    Console(width=80).print(table)
    raise SystemExit(0 if _good(found, steps=options.steps, most=options.most_gb * 1e9) else 1)


def _good(found: list[Held], *, steps: int, most: float) -> bool:
    if not found or found[-1].step != steps - 1:
        print("the run was not completed")
        return False
    settled = [held.resident for held in found if held.step >= SETTLED]
    early, late = settled[:FEW], settled[-FEW:]
    grown = max(late) / max(early)
    print(f"peak {_gb(found[-1].peak)}; the last {len(late)} steps held {grown:.2f} times the first {len(early)}")
    return found[-1].peak <= most and grown <= LARGEST_GROWTH


if __name__ == "__main__":
    end_in_order()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
