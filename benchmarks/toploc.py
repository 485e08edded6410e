"""Measures TOPLOC proofs that one thread builds and verifies; `python -m benchmarks.toploc`.

Compared with torch's own top-k of the same tensors, the minimum work of any builder or verifier of such proofs, so that
the ratio is comparable between machines. A proof covers about 32 steps and their 128 largest values. Times are CPU
seconds of this process, the median of several rounds.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order
from rollouts import toploc

ROUNDS = int(os.environ.get("MUSTER_BENCHMARK_ROUNDS", "7"))
INTERVALS = 64
SEQUENCES = 64


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of the proved states."""

    hidden: int
    dtype: torch.dtype

    def states(self) -> torch.Tensor:
        """Returns `INTERVALS` intervals of normal values."""
        generator = torch.Generator().manual_seed(self.hidden)
        return torch.randn(INTERVALS * 32, self.hidden, generator=generator).to(self.dtype)


SHAPES = (
    Shape(4096, torch.bfloat16),
    Shape(4096, torch.float32),
    Shape(896, torch.bfloat16),
    Shape(128, torch.float32),
)


def seconds(work: Callable[[], object], *, repeat: int = 1) -> float:
    """Returns CPU seconds of one call: the median over rounds of `repeat` calls, after a warm-up."""
    work()
    rounds = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(repeat):
            work()
        rounds.append((time.process_time() - began) / repeat)
    return statistics.median(rounds)


def top_k(states: torch.Tensor) -> None:
    """Runs the reference: the largest magnitudes of each interval, by torch."""
    for interval in states.view(INTERVALS, -1):
        interval.abs().topk(128)


def handing_over(states: torch.Tensor) -> float:
    """Measures the CPU seconds that generation spends on passing one step's rows to the builder."""
    rounds = []
    for _ in range(ROUNDS):
        with toploc.ProofBuilder() as builder:
            began = time.process_time()
            for step in range(31):
                builder.add(range(SEQUENCES), states[step * SEQUENCES : (step + 1) * SEQUENCES])
            rounds.append((time.process_time() - began) / 31)
    return statistics.median(rounds)


def measured(states: torch.Tensor) -> dict[str, float]:
    """Returns CPU seconds of each operation, per proof or per step."""
    proofs = toploc.build(states)
    one, its_proof = states[:32], proofs[:1]
    return {
        "torch top-k": seconds(lambda: top_k(states)) / INTERVALS,
        "build": seconds(lambda: toploc.build(states)) / INTERVALS,
        "verify": seconds(lambda: toploc.verify(states, proofs)) / INTERVALS,
        "build, one at a time": seconds(lambda: toploc.build(one), repeat=20),
        "verify, one at a time": seconds(lambda: toploc.verify(one, its_proof), repeat=20),
        f"hand over a step of {SEQUENCES} rows": handing_over(states),
    }


def main() -> None:
    """Measures and prints."""
    torch.set_num_threads(1)
    table = Table(title="TOPLOC, one thread, 32 steps, 128 points")
    for column in ("hidden", "type", "what", "us each", "per second", "against top-k"):
        table.add_column(column, justify="left" if column in {"type", "what"} else "right")
    for shape in SHAPES:
        times = measured(shape.states())
        name = str(shape.dtype).removeprefix("torch.")
        for what, each in times.items():
            ratio = "" if what.startswith("hand") else f"{times['torch top-k'] / each:.2f}x"
            table.add_row(f"{shape.hidden:,}", name, what, f"{each * 1e6:,.0f}", f"{1 / each:,.0f}", ratio)
        table.add_section()
    console = Console(width=100)
    console.print(table)
    console.print("Wanted at 4,096 and bfloat16: build 6,000 and verify 11,000 per second where top-k takes 170 us;")
    console.print("that is 1.02x and 1.87x of top-k on any machine.")


if __name__ == "__main__":
    end_in_order()
    main()
