"""Compares checking by prefill with generating the same tokens, one engine, one thread; `python -m benchmarks.prefill`.

Both are measured in alternating order in one process, and medians are compared, of CPU time where there is no
accelerator. `prefill` is states and logits of every token; `checked` is all that checks 8 to 10 need: the same, with
every proof compared and every draw replayed. Generation draws with the slot's noise and builds proofs. A batch of 16 or
more is in groups of 8. `MUSTER_BATCHES`, `MUSTER_TOKENS`, `MUSTER_SHAPES` (by first words) and
`MUSTER_BENCHMARK_ROUNDS` select the measurements; an accelerator is used if there is one.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order
from benchmarks.models import SHAPES, random_model
from benchmarks.rollout_files import as_file
from protocol.identifiers import ZERO_DIGEST
from rollouts.checks import Draws, gather
from rollouts.engines.interface import SampleRequest
from rollouts.engines.opening import open_engine
from rollouts.models.policy import Policy, load_policy
from rollouts.precision import Dtype, EngineName
from rollouts.prefill import PrefillItem, prefill
from rollouts.sampling.parameters import SamplingParameters

ROUNDS = int(os.environ.get("MUSTER_BENCHMARK_ROUNDS", "3"))
BATCHES = [int(one) for one in os.environ.get("MUSTER_BATCHES", "1,16,128").split(",")]
TOKENS = [int(one) for one in os.environ.get("MUSTER_TOKENS", "8,64,256,1024").split(",")]
CHOSEN = tuple(os.environ.get("MUSTER_SHAPES", "tiny,small").split(","))
PROMPT, EACH = 24, 8
SEED = b"\x01" * 32
WANTED = {(1, 256): 25.0, (16, 256): 6.0}


def seconds(work: Callable[[], object]) -> float:
    """Measures one call: CPU seconds, or wall seconds where an accelerator does the work."""
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    began = clock()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - began


def requests_of(batch: int) -> list[SampleRequest]:
    """Makes requests in groups of `EACH`, or one smaller group; prompts differ in their last token."""
    return [
        SampleRequest(sample=sample, prompt_tokens=(*range(2, PROMPT + 1), 30 + sample // EACH), seed=SEED)
        for sample in range(batch)
    ]


def measure(folder: Path, policy: Policy, batch: int, tokens: int) -> list[float]:
    """Returns median seconds of generation, of prefill and of all checking."""
    engine = open_engine(EngineName.TORCH, dtype=Dtype.FLOAT32, max_batch=batch)
    engine.load(folder, version=ZERO_DIGEST)
    requests, parameters = requests_of(batch), SamplingParameters(max_new_tokens=tokens)
    drawn = engine.generate(requests, parameters)
    file = as_file(requests, drawn, engine=EngineName.TORCH, dtype=Dtype.FLOAT32)
    answers = [PrefillItem(sample.prompt_tokens, sample.output_tokens) for sample in file.samples]
    draws = Draws(seed=SEED, parameters=parameters)
    works: tuple[Callable[[], object], ...] = (
        lambda: list(engine.generate(requests, parameters)),
        lambda: sum(len(rows.spans) for rows in prefill(policy, answers)),
        lambda: gather(policy, file, dict.fromkeys(range(batch), draws)),
    )
    took: list[list[float]] = [[] for _ in works]
    for _ in range(ROUNDS):
        for of_one, work in zip(took, works, strict=True):
            of_one.append(seconds(work))
    engine.close()
    return [statistics.median(of_one) for of_one in took]


def main() -> None:
    """Measures and prints."""
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as home:
        for shape in (shape for shape in SHAPES if shape.startswith(CHOSEN)):
            folder = random_model(Path(home) / shape, shape)
            policy = load_policy(folder, dtype=Dtype.FLOAT32, device=device)
            table = Table(title=f"{shape} parameters, float32 on {device}, medians of {ROUNDS} rounds in turns")
            columns = (
                "answers",
                "new tokens",
                "generated, s",
                "prefill, s",
                "checked, s",
                "prefill",
                "checked",
                "wanted",
            )
            for column in columns:
                table.add_column(column, justify="right")
            for batch in BATCHES:
                for tokens in TOKENS:
                    generated, prefilled, checked = measure(folder, policy, batch, tokens)
                    table.add_row(
                        str(batch),
                        str(tokens),
                        *(f"{one:.3f}" for one in (generated, prefilled, checked)),
                        *(f"{generated / one:.1f}x" for one in (prefilled, checked)),
                        f"≥ {WANTED.get((batch, tokens), 1.0):g}x",
                    )
            Console(width=120).print(table)


if __name__ == "__main__":
    end_in_order()
    main()
