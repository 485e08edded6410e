"""Bounds the ratio of prefill to drawing by matrix products alone; `python -m benchmarks.validator_bounds`.

A drawn token needs every weight once for all rows drawn with it: one row for a single answer, 16 for 16 answers.
Prefill does the same products for hundreds of rows at a time. Only these products are measured, in float32, one thread,
CPU time, minimum of `ROUNDS`, over consecutive weights as in a model; so the last columns are the ratios of
`benchmarks.validator` for a model without other work on either side. A generator's other work (Python, many small
kernels) makes ratios larger, a validator's makes them smaller.
"""

from __future__ import annotations

import time

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order
from benchmarks.models import SHAPES

ROUNDS = 5
ALONE, TOGETHER, PREFILL = 1, 16, 560
"""Numbers of rows; the last is two answers of 256 tokens with their prompts."""
MOST_BYTES = 1 << 28
"""The most bytes of weights; of a larger model only some layers are used."""


def main() -> None:
    """Measures and prints."""
    torch.set_num_threads(1)
    table = Table(title=f"matrix products of a model's layers, float32, one thread, CPU time, least of {ROUNDS}")
    columns = ("model", "weights, MiB", *(f"{rows} rows, GFLOP/s" for rows in (ALONE, TOGETHER, PREFILL)))
    for column in (*columns, "prefill, 1 answer", "prefill, 16 answers"):
        table.add_column(column, justify="right")
    for shape in SHAPES:
        weights = weights_of(shape)
        size = sum(weight.numel() for weight in weights)
        rates = [2 * rows * size / seconds(weights, rows) for rows in (ALONE, TOGETHER, PREFILL)]
        cells = [f"{4 * size / (1 << 20):.0f}", *(f"{rate / 1e9:.0f}" for rate in rates)]
        table.add_row(shape, *cells, *(f"{rates[-1] / rate:.1f}x" for rate in rates[:2]))
    Console(width=120).print(table)


def weights_of(shape: str) -> list[torch.Tensor]:
    """Returns the layers' matrices, [out, in] each."""
    config = SHAPES[shape]
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    shared = hidden * config.get("num_key_value_heads", heads) // heads
    shapes = [(hidden, hidden), (shared, hidden), (shared, hidden), (hidden, hidden)]
    shapes += [(inner, hidden), (inner, hidden), (hidden, inner)]
    layer = 4 * sum(out * into for out, into in shapes)
    return [torch.randn(each) for _ in range(min(config["num_hidden_layers"], MOST_BYTES // layer)) for each in shapes]


def seconds(weights: list[torch.Tensor], rows: int) -> float:
    """Returns the CPU seconds of all products with this number of rows."""
    given = {into: torch.randn(rows, into) for into in {weight.shape[1] for weight in weights}}
    took = []
    for _ in range(ROUNDS + 1):
        began = time.process_time()
        for weight in weights:
            torch.nn.functional.linear(given[weight.shape[1]], weight)
        took.append(time.process_time() - began)
    return min(took[1:])


if __name__ == "__main__":
    end_in_order()
    main()
