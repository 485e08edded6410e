"""Measures drawing and replaying a seeded token, one thread; `python -m benchmarks.sampling`.

Drawing is compared with torch's own sampling from the same logits, which cannot be repeated; replay is compared with
the output layer alone (hidden 1536, float32), which any prefill must compute for the same rows, so that the ratio is
comparable between machines. An accelerator is measured too where there is one: its noise by the fused kernel, if the
kernel works there, and by torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.ending import end_in_order
from rollouts.sampling.noise import fused_kernel, noise, noise_numpy, noise_torch, row_keys, stream, words
from rollouts.sampling.parameters import SamplingParameters
from rollouts.sampling.replay import gaps_of_rows
from rollouts.sampling.sampler import draw
from rollouts.sampling.seeded_draw import draw_seeded

SECONDS = float(os.environ.get("MUSTER_BENCHMARK_SECONDS", "1"))
ROWS, HIDDEN = 16, 1536
VOCABULARIES = (64, 32_000, 152_064)
PLAIN = SamplingParameters(max_new_tokens=1)
MASKED = SamplingParameters(max_new_tokens=1, top_k=50, top_p=0.9)
NUCLEUS = SamplingParameters(max_new_tokens=1, top_p=0.9)
SEED = b"\x42" * 32


def per_row(work: Callable[[], object], device: torch.device) -> float:
    """Returns milliseconds per row of `ROWS`, the best of many rounds: CPU time, or wall time of an accelerator."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    work()
    best, until = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        began = _settled(clock, device)
        work()
        best = min(best, _settled(clock, device) - began)
    return best * 1e3 / ROWS


def _settled(clock: Callable[[], float], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock()


def measure(vocabulary: int, device: torch.device) -> list[tuple[str, float]]:
    """Returns names and milliseconds per row; the first row is the reference for drawing."""
    generator = torch.Generator().manual_seed(1)
    logits = (torch.randn(ROWS, vocabulary, generator=generator) * 2).to(device)
    states = torch.randn(ROWS, HIDDEN, generator=generator).to(device)
    output_layer = torch.randn(vocabulary, HIDDEN, generator=generator).to(device)
    keys = row_keys([stream(SEED, sample) for sample in range(ROWS)], range(ROWS))
    drawn = noise(keys, vocabulary, device=device)
    tokens = draw(logits, drawn, PLAIN).tokens.tolist()
    by_row = np.ascontiguousarray(keys[:1])
    works: list[tuple[str, Callable[[], object]]] = [
        ("torch.multinomial of the softmax", lambda: torch.multinomial(logits.softmax(1), 1)),
        ("draw with noise at hand", lambda: draw(logits, drawn, PLAIN)),
        ("draw, all noise included", lambda: draw(logits, noise(keys, vocabulary, device=device), PLAIN)),
        ("draw, noise of candidates only (CPU)", lambda: draw_seeded(logits, keys, PLAIN)),
        ("draw, top-k 50 and top-p 0.9", lambda: draw(logits, noise(keys, vocabulary, device=device), MASKED)),
        ("draw, top-p 0.9", lambda: draw(logits, noise(keys, vocabulary, device=device), NUCLEUS)),
        ("output layer alone (hidden 1536)", lambda: states @ output_layer.T),
        ("replay", lambda: gaps_of_rows(logits, tokens, keys, PLAIN)),
        ("replay, top-k 50 and top-p 0.9", lambda: gaps_of_rows(logits, tokens, keys, MASKED)),
    ]
    noises: list[tuple[str, Callable[[], object]]] = [
        ("noise, torch", lambda: noise_torch(keys, vocabulary, device=device)),
    ]
    kernel = fused_kernel(device)
    if kernel is not None:
        noises.append(("noise, fused kernel", lambda: kernel(keys, vocabulary, device=device)))
    if device.type == "cpu":
        noises[:0] = [
            ("Philox words, numpy", lambda: words(keys, vocabulary)),
            ("noise, numpy", lambda: noise_numpy(keys, vocabulary)),
            ("noise, numpy, one row at a time", lambda: [noise_numpy(by_row, vocabulary) for _ in range(ROWS)]),
        ]
    works[1:1] = noises
    return [(name, per_row(work, device)) for name, work in works]


def main() -> None:
    """Measures and prints."""
    torch.set_num_threads(1)
    devices = [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]
    for device in devices:
        for vocabulary in VOCABULARIES:
            measured = measure(vocabulary, device)
            table = Table(title=f"{device}, vocabulary {vocabulary:,}, {ROWS} rows at once")
            for column in ("what", "ms a token", "against torch.multinomial", "against the output layer"):
                table.add_column(column, justify="left" if column == "what" else "right")
            base = measured[0][1]
            layer = next(cost for name, cost in measured if name.startswith("output layer"))
            for name, cost in measured:
                table.add_row(name, f"{cost:.4f}", f"{cost / base:.2f}x", f"{cost / layer:.2f}x")
            Console(width=110).print(table)


if __name__ == "__main__":
    end_in_order()
    main()
