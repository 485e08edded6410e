"""What building TOPLOC proofs costs an engine that generates; `python -m benchmarks.proofs_while_generating`.

Each engine that is installed answers the same seeded requests with and without proofs, in turns, so that both see the
same machine. Two models with random weights: the devnet's size, where a token is so cheap that any proof is felt, and a
larger one. Wall time is what counts (proofs are built on a thread of their own); CPU time says what that thread took.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from protocol.errors import NotFound
from protocol.identifiers import digest
from rollouts.engines.interface import Dtype, Engine, EngineName, SampleRequest
from rollouts.engines.opening import open_engine
from rollouts.sampling.parameters import SamplingParameters
from tests.rollouts.tiny import VOCABULARY, tiny_folder

ROUNDS = int(os.environ.get("MUSTER_BENCHMARK_ROUNDS", "7"))
ENGINES = os.environ.get("MUSTER_BENCHMARK_ENGINES", "torch vllm").split()
VERSION = digest(b"\x01" * 32)


@dataclass(frozen=True, slots=True)
class Work:
    """A model's shape and what it is asked for."""

    name: str
    config: dict[str, Any]
    answers: int
    tokens: int

    def requests(self) -> list[SampleRequest]:
        """Groups of eight share a prompt."""
        prompts = [tuple(4 + (group * 7 + place * 3) % (VOCABULARY - 4) for place in range(12)) for group in range(64)]
        return [
            SampleRequest(sample=sample, prompt_tokens=prompts[sample // 8], seed=b"\x07" * 32)
            for sample in range(self.answers)
        ]


WORKS = (
    Work(
        "0.4 M, hidden 128",
        {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 2, "num_key_value_heads": 2},
        answers=64,
        tokens=128,
    ),
    Work(
        "57 M, hidden 768",
        {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12, "num_hidden_layers": 8},
        answers=64,
        tokens=32,
    ),
)


@dataclass(frozen=True, slots=True)
class Turn:
    """Tokens, and seconds of wall and of this process's CPU."""

    tokens: int
    wall: float
    cpu: float


def turn(engine: Engine, work: Work, *, with_proofs: bool) -> Turn:
    """Generates everything once."""
    began, began_cpu = time.perf_counter(), time.process_time()
    parameters = SamplingParameters(max_new_tokens=work.tokens)
    tokens = sum(len(one.tokens) for one in engine.generate(work.requests(), parameters, with_proofs=with_proofs))
    return Turn(tokens, time.perf_counter() - began, time.process_time() - began_cpu)


def main() -> None:
    """Measures and prints."""
    torch.set_num_threads(1)
    console, table = Console(width=120), Table(title="Generating with proofs, against without")
    for column in ("engine", "model", "tokens", "tokens/s without", "with", "share kept, wall", "share kept, CPU"):
        table.add_column(column, justify="left" if column in {"engine", "model"} else "right")
    for name in map(EngineName, ENGINES):
        for work in WORKS:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    engine = open_engine(name, dtype=Dtype.FLOAT32, device="cpu")
                except NotFound as missing:
                    console.print(f"{name.value}: {missing.detail}")
                    break
                engine.load(tiny_folder(Path(folder), **work.config), version=VERSION)
                turn(engine, work, with_proofs=True)
                pairs = [
                    (turn(engine, work, with_proofs=False), turn(engine, work, with_proofs=True)) for _ in range(ROUNDS)
                ]
                engine.close()
            plain, proved = (min(side, key=lambda one: one.wall) for side in zip(*pairs, strict=True))
            wall = statistics.median(without.wall / proof.wall for without, proof in pairs)
            cpu = statistics.median(without.cpu / proof.cpu for without, proof in pairs)
            table.add_row(
                name.value, work.name, f"{plain.tokens:,}", f"{plain.tokens / plain.wall:,.0f}",
                f"{proved.tokens / proved.wall:,.0f}", f"{wall:.1%}", f"{cpu:.1%}",
            )  # fmt: skip
    console.print(table)
    console.print(f"Tokens/s are the best of {ROUNDS} turns, shares the median of pairs. Wanted: 99 % of tokens/s.")


if __name__ == "__main__":
    main()
