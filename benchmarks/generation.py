"""Generation with proofs against generation without; `python -m benchmarks.generation`.

Both are measured in turns in one process, round after round, and the medians are compared: what else the machine does
falls on both. Wall time lets the proofs' thread use a core of its own; CPU time counts it in full. `MUSTER_SHAPES`
picks shapes by their first words (`tiny,small,wide`; the last takes minutes), `MUSTER_ENGINE` the engine (`torch`, or
`vllm` where it is installed). An accelerator is used if there is one.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.models import SHAPES, random_model
from protocol.identifiers import ZERO_DIGEST
from rollouts.engines.interface import Dtype, Engine, EngineName, SampleRequest
from rollouts.engines.opening import open_engine
from rollouts.sampling.parameters import SamplingParameters

ROUNDS = int(os.environ.get("MUSTER_BENCHMARK_ROUNDS", "5"))
CHOSEN = tuple(os.environ.get("MUSTER_SHAPES", "tiny,small").split(","))
ENGINE = EngineName(os.environ.get("MUSTER_ENGINE", "torch"))
GROUPS, EACH, NEW_TOKENS = 4, 8, 64
WANTED = 0.99


@dataclass
class Rates:
    """Tokens per second of wall time and of CPU time, one entry a round."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def measure(self, engine: Engine, *, with_proofs: bool) -> None:
        """Generates one batch."""
        requests = [
            SampleRequest(sample=sample, prompt_tokens=tuple(range(2 + sample // EACH, 26)), seed=b"\x01" * 32)
            for sample in range(GROUPS * EACH)
        ]
        parameters = SamplingParameters(max_new_tokens=NEW_TOKENS)
        wall, cpu = time.perf_counter(), time.process_time()
        tokens = sum(len(one.tokens) for one in engine.generate(requests, parameters, with_proofs=with_proofs))
        self.wall.append(tokens / (time.perf_counter() - wall))
        self.cpu.append(tokens / (time.process_time() - cpu))


def main() -> None:
    """Measures and prints."""
    torch.set_num_threads(1)
    table = Table(
        title=f"{ENGINE.value}: {GROUPS * EACH} answers of {NEW_TOKENS} tokens, medians of {ROUNDS} rounds in turns"
    )
    for column in ("model", "type", "tokens/s without", "with proofs", "share", "share of CPU time", "wanted"):
        table.add_column(column, justify="left" if column in {"model", "type"} else "right")
    shapes = [shape for shape in SHAPES if shape.startswith(CHOSEN)]
    with tempfile.TemporaryDirectory() as home:
        for shape in shapes:
            folder = random_model(Path(home) / shape, shape)
            for dtype in Dtype:
                engine = open_engine(ENGINE, dtype=dtype)
                engine.load(folder, version=ZERO_DIGEST)
                without, proved = Rates(), Rates()
                Rates().measure(engine, with_proofs=True)
                for _ in range(ROUNDS):
                    without.measure(engine, with_proofs=False)
                    proved.measure(engine, with_proofs=True)
                engine.close()
                base, ours = statistics.median(without.wall), statistics.median(proved.wall)
                cpu = statistics.median(proved.cpu) / statistics.median(without.cpu)
                row = (f"{base:,.0f}", f"{ours:,.0f}", f"{ours / base:.1%}", f"{cpu:.1%}", f"≥ {WANTED:.0%}")
                table.add_row(shape, dtype.value, *row)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
