"""Measures the cost of building TOPLOC proofs while generating; `python -m benchmarks.proofs_while_generating`.

Each installed engine answers the same seeded requests with and without proofs, in alternating order, so that both see
the same machine. Models have random weights; the smallest has the devnet's size, where a token is so cheap that any
proof is noticeable. Small models take more pairs of turns, because two turns without proofs differ by more than proofs
cost. CPU time counts the proofs' thread in full and is comparable between a busy and an idle machine; the CPU time of
that thread is also printed alone, which varies less. For wall time the thread may use another core.

`MUSTER_BENCHMARK_SIZES` selects models by name (`0.4 M,57 M`), `MUSTER_BENCHMARK_ENGINES` and `MUSTER_BENCHMARK_TYPES`
engines and types, and `MUSTER_BENCHMARK_ROUNDS` the number of rounds. For vLLM on a CPU use
`OMP_NUM_THREADS=1 .tools/vllm/bin/python`.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order
from benchmarks.models import random_model
from protocol.errors import NotFound
from protocol.identifiers import ZERO_DIGEST
from rollouts.engines.interface import Engine, SampleRequest
from rollouts.engines.opening import open_engine
from rollouts.precision import Dtype, EngineName
from rollouts.sampling.parameters import SamplingParameters
from tests.kit.tiny_model import tiny_folder

ROUNDS = int(os.environ.get("MUSTER_BENCHMARK_ROUNDS", "0"))
ENGINES = os.environ.get("MUSTER_BENCHMARK_ENGINES", "torch vllm").split()
WANTED = 0.99


@dataclass(frozen=True, slots=True)
class Work:
    """A model and its requests: the number of tokens and repeats; groups of eight share a prompt."""

    model: Callable[[Path], Path]
    answers: int
    tokens: int
    pairs: int = 12

    def requests(self) -> list[SampleRequest]:
        """Makes requests with prompts of 12 to 19 tokens."""
        prompts = [tuple(4 + (group * 7 + place * 3) % 60 for place in range(12 + group)) for group in range(8)]
        return [
            SampleRequest(sample=sample, prompt_tokens=prompts[sample // 8], seed=b"\x07" * 32)
            for sample in range(self.answers)
        ]


def _narrow(folder: Path) -> Path:
    return tiny_folder(folder, hidden_size=128, intermediate_size=384, num_attention_heads=2, num_key_value_heads=2)


def _wide(folder: Path) -> Path:
    return tiny_folder(folder, hidden_size=768, intermediate_size=2048, num_attention_heads=12, num_hidden_layers=8)


WORKS = {
    "0.4 M": Work(_narrow, answers=64, tokens=128, pairs=40),
    "2 M": Work(lambda folder: random_model(folder, "tiny, 2 M"), answers=32, tokens=64, pairs=40),
    "20 M": Work(lambda folder: random_model(folder, "small, 20 M"), answers=32, tokens=64),
    "57 M": Work(_wide, answers=64, tokens=32),
}
TYPES = [Dtype(name) for name in os.environ.get("MUSTER_BENCHMARK_TYPES", " ".join(Dtype)).split()]
SIZES = os.environ.get("MUSTER_BENCHMARK_SIZES", ",".join(WORKS)).split(",")


@dataclass(frozen=True, slots=True)
class Turn:
    """Token count, wall seconds, CPU seconds of this process, and CPU seconds of threads other than the engine's."""

    tokens: int
    wall: float
    cpu: float
    beside: float


def turn(engine: Engine, work: Work, *, with_proofs: bool) -> Turn:
    """Generates all requests once."""
    began, began_cpu, began_own = time.perf_counter(), time.process_time(), time.thread_time()
    parameters = SamplingParameters(max_new_tokens=work.tokens)
    tokens = sum(len(one.tokens) for one in engine.generate(work.requests(), parameters, with_proofs=with_proofs))
    cpu, own = time.process_time() - began_cpu, time.thread_time() - began_own
    return Turn(tokens, time.perf_counter() - began, cpu, cpu - own)


def pairs_of(engine: Engine, work: Work) -> list[tuple[Turn, Turn]]:
    """Measures pairs without and with proofs; every second pair in reverse order."""
    for with_proofs in (True, False):
        turn(engine, work, with_proofs=with_proofs)
    pairs = []
    for number in range(ROUNDS or work.pairs):
        first = turn(engine, work, with_proofs=number % 2 == 1)
        second = turn(engine, work, with_proofs=number % 2 == 0)
        pairs.append((second, first) if number % 2 else (first, second))
    return pairs


def share(ratios: Sequence[float]) -> str:
    """Returns the mean of the middle half and its range: as robust as the median, and less noisy."""
    rising, quarter = sorted(100 * ratio for ratio in ratios), len(ratios) // 4
    middle = rising[quarter : len(rising) - quarter]
    return f"{statistics.mean(middle):.1f} ({middle[0]:.1f}-{middle[-1]:.1f}) %"


def row(name: EngineName, size: str, dtype: Dtype) -> Sequence[str]:
    """Measures one engine with one model in one type."""
    work, engine = WORKS[size], open_engine(name, dtype=dtype, device="cpu")
    with tempfile.TemporaryDirectory() as home:
        engine.load(work.model(Path(home) / "model"), version=ZERO_DIGEST)
        pairs = pairs_of(engine, work)
        engine.close()
    thread = statistics.median((proof.beside - without.beside) / without.cpu for without, proof in pairs)
    plain, proved = ([one.cpu / one.tokens for one in side] for side in zip(*pairs, strict=True))
    return (
        f"{name.value}/{dtype.value}", size, f"{pairs[0][0].tokens:,}", f"{statistics.median(plain) * 1e6:,.0f}",
        f"{statistics.median(proved) * 1e6:,.0f}", share([a / b for a, b in zip(plain, proved, strict=True)]),
        f"{thread:.1%}", share([without.wall / proof.wall for without, proof in pairs]),
    )  # fmt: skip


def main() -> None:
    """Measures and prints."""
    torch.set_num_threads(1)
    console, table = Console(width=130), Table(title="Generating with proofs against without, in pairs of turns")
    for column in (
        "engine",
        "model",
        "tokens",
        "CPU us/token without",
        "with",
        "kept, CPU time",
        "proofs' thread",
        "kept, wall",
    ):
        table.add_column(column, justify="left" if column in {"engine", "model"} else "right")
    for name in map(EngineName, ENGINES):
        try:
            for size in SIZES:
                for dtype in TYPES:
                    table.add_row(*row(name, size, dtype))
        except NotFound as missing:
            console.print(f"{name.value}: {missing.detail}")
    console.print(table)
    console.print(f"Shares are of pairs: the mean of the middle half, and between which it lies. Wanted: {WANTED:.0%}.")


if __name__ == "__main__":
    end_in_order()
    main()
